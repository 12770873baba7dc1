#!/usr/bin/env python3
"""One session with a real agent, through the real binary and the HTTP API alone.

A prompt whose tool call is allowed through the API; a slow stream that is cancelled; one whose server
is killed and started again; one that loses its executor by SIGKILL, is interrupted, and is resumed by
a new executor to its end; then the same agent behind an editor, whose server restarts in the middle
of a prompt. Standard library only; every wait has a bound; only processes started here are ended, found by pid and by a mark in their
environment. Started by `run`.
"""
import argparse
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid

import profiles
from editor import Editor

LEASE_SECONDS = 10
TERMINAL = ("completed", "failed", "cancelled", "interrupted")


class Stop(Exception):
    """A step that the rest depends on has failed."""


class Report:
    def __init__(self):
        self.passed, self.failed, self.start = 0, 0, time.monotonic()

    def step(self, name, good, detail=""):
        """Prints one line; says whether it was good."""
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        mark = "ok  " if good else "FAIL"
        tail = "" if good or detail == "" else ": " + str(detail)[:1500]
        print("%s %6.1fs  %s%s" % (mark, time.monotonic() - self.start, name, tail), flush=True)
        return bool(good)

    def must(self, name, good, detail=""):
        if not self.step(name, good, detail):
            raise Stop(name)


def wait_for(seconds, look, every=0.1):
    """The first true value of `look`, or its last value when the time is over."""
    end = time.monotonic() + seconds
    while True:
        value = look()
        if value or time.monotonic() >= end:
            return value
        time.sleep(every)


def marked(mark):
    """The living processes with this text as one entry of their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                entries = file.read().split(b"\0")
            with open("/proc/%s/stat" % name) as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in entries and state != "Z":
            found.append(int(name))
    return found


class Api:
    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url).netloc

    def connect(self, timeout):
        return http.client.HTTPConnection(self.address, timeout=timeout)

    def call(self, method, path, body=None, timeout=30):
        """(status, parsed body). A server that can't be reached is status 0."""
        connection = self.connect(timeout)
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            raw = response.read()
            return response.status, json.loads(raw) if raw[:1] in (b"{", b"[") else raw.decode()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()


class Stream:
    """Server-sent events, read by a thread; `frames` holds all of them so far."""

    def __init__(self, api, method, path, body=None):
        self.frames, self.fresh, self.ended = [], queue.Queue(), threading.Event()
        # The server sends a comment every 10 s, so a silent minute is a dead stream.
        self.connection = api.connect(60)
        headers = {"accept": "text/event-stream"}
        if body is not None:
            headers["content-type"] = "application/json"
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.location = self.response.getheader("content-location")
        self.error = None
        if self.status == 200:
            threading.Thread(target=self.read, daemon=True).start()
        else:
            self.error = self.response.read()[:1000]
            self.ended.set()

    def read(self):
        frame = {}
        try:
            for raw in self.response:
                line = raw.decode("utf-8").rstrip("\r\n")
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(":")
                    value = value[1:] if value.startswith(" ") else value
                    frame[name] = frame[name] + "\n" + value if name in frame else value
                    continue
                if "data" in frame:
                    kept = {"id": frame.get("id"), "event": frame.get("event"),
                            "data": json.loads(frame["data"])}
                    self.frames.append(kept)
                    self.fresh.put(kept)
                frame = {}
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = repr(error)
        self.ended.set()

    def until(self, seconds, wanted):
        """The next frame, not yet looked at, that satisfies `wanted`; None if none comes."""
        end = time.monotonic() + seconds
        while True:
            try:
                frame = self.fresh.get(timeout=max(0.0, min(0.5, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end or self.ended.is_set() and self.fresh.empty():
                    return None
                continue
            if wanted(frame):
                return frame

    def text(self):
        return "".join(frame["data"].get("content", "") for frame in list(self.frames)
                       if frame["event"] == "StreamDelta")

    def kinds(self):
        return [frame["event"] for frame in list(self.frames)]

    def close(self):
        # Closing the socket itself ends the reader, which may be waiting in it.
        try:
            if self.connection.sock is not None:
                self.connection.sock.shutdown(2)
        except OSError:
            pass


class Bench:
    """The processes of this run and where they write."""

    def __init__(self, options, profile):
        self.options, self.profile = options, profile
        self.mark = "TAPEDECK_AGENT_TEST=" + uuid.uuid4().hex
        self.workspace = os.path.join(options.work, "workspace")
        self.started = []
        os.makedirs(self.workspace)
        name, value = self.mark.split("=")
        self.env = {"PATH": os.environ["PATH"], "HOME": os.path.join(options.work, "own-home"),
                    "LANG": "C.UTF-8", "NO_COLOR": "1", name: value}
        os.makedirs(self.env["HOME"])

    def start(self, name, arguments):
        log = open(os.path.join(self.options.work, name + ".log"), "wb")
        process = subprocess.Popen([self.options.tapedeck] + arguments, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, env=self.env, start_new_session=True)
        log.close()
        process.label = name
        self.started.append(process)
        return process

    def server(self, name="server", address="127.0.0.1:0"):
        ready = os.path.join(self.options.work, name + ".ready")
        process = self.start(name, ["serve", "--listen", address, "--data-dir",
                                        os.path.join(self.options.work, "data"),
                                        "--ready-file", ready])

        def url():
            try:
                with open(ready) as file:
                    return file.read().strip()
            except OSError:
                return ""
        return process, wait_for(20, lambda: url() or process.poll() is not None and "gone")

    def executor(self, name, url):
        arguments = ["executor", "--server", url, "--executor-id", "e1", "--workspace-root",
                     self.workspace, "--lease-seconds", str(LEASE_SECONDS), "--agent",
                     self.profile["command"]]
        variable, value = self.mark.split("=")
        for key, text in {**self.profile["env"], variable: value}.items():
            arguments += ["--agent-env", "%s=%s" % (key, text)]
        if self.profile["mode"]:
            arguments += ["--agent-mode", self.profile["mode"]]
        return self.start(name, arguments)

    def editor(self, url):
        with open(os.path.join(self.options.work, "editor.log"), "wb") as log:
            process = subprocess.Popen([self.options.tapedeck, "acp", "--server", url],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                       env=self.env, start_new_session=True)
        process.label = "editor"
        self.started.append(process)
        return Editor(process)

    def end(self, process, seconds):
        """Asks the process to end; how it did, or None where it had to be killed."""
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            return None

    def clean_up(self):
        for process in reversed(self.started):
            self.end(process, 5)
        for pid in marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def logs(self):
        for label in dict.fromkeys(process.label for process in self.started):
            with open(os.path.join(self.options.work, label + ".log"), "rb") as file:
                tail = file.read()[-3000:].decode("utf-8", "replace")
            print("---- end of %s.log ----\n%s" % (label, tail))


class Conversation:
    def __init__(self, options, report):
        self.options, self.report = options, report
        home = os.path.join(options.work, "agent-home")
        profile = profiles.ALL[options.agent](options.agents_dir, home, options.llm)
        self.bench = Bench(options, profile)
        self.file = os.path.join(self.bench.workspace, "made-by-the-agent.txt")
        self.session = None

    def get(self, path):
        return self.api.call("GET", path)[1]

    def run_status(self, run):
        answer = self.get("/runs/" + run)
        return answer.get("status") if isinstance(answer, dict) else None

    def play(self):
        self.begin()
        asked = self.tool_call()
        cancelled = self.cancel()
        outlived = self.lose_server()
        interrupted = self.lose_executor()
        resumed = self.resume(interrupted)
        self.at_the_editor()
        self.whole_log({asked: "completed", cancelled: "cancelled", outlived: "completed",
                        interrupted: "interrupted", resumed: "completed"})
        self.finish()

    def begin(self):
        report = self.report
        self.server, url = self.bench.server()
        report.must("the server is ready", str(url).startswith("http://127.0.0.1:"), url)
        self.url, self.api = url, Api(url)
        status, body = self.api.call("GET", "/readyz")
        report.must("it answers /readyz", status == 200, (status, body))
        self.executor = self.bench.executor("executor-1", url)
        report.must("the executor has come in touch", wait_for(20, self.executor_seen),
                    self.get("/executors"))
        status, body = self.api.call("POST", "/sessions", {
            "repo_path": self.bench.workspace, "approval_policy": "interactive",
            "title": "a session with " + self.options.agent})
        report.must("a session is created", status == 201, (status, body))
        self.session = body["session_id"]

    def agent_processes(self):
        """What runs under the executor; a warm agent bears the mark of the run that started it."""
        own = {process.pid for process in self.bench.started}
        return [pid for pid in marked(self.bench.mark) if pid not in own]

    def executor_seen(self):
        answer = self.get("/executors")
        known = answer.get("executors", []) if isinstance(answer, dict) else []
        return any(executor["executor_id"] == "e1" for executor in known)

    def tool_call(self):
        report = self.report
        prompt = 'Make a file. [[mock:shell cmd="printf made-by-%%s 42 > %s"]]' % self.file
        stream = Stream(self.api, "POST", "/sessions/%s/prompt" % self.session, {"prompt": prompt})
        report.must("a prompt is admitted and streams", stream.status == 200, stream.error)
        wanted = stream.until(30, lambda frame: frame["event"] == "RunRequested")
        report.must("the stream begins with the run", wanted is not None, stream.kinds())
        run = wanted["data"]["run_id"]
        report.step("it names the stream that continues it", "/events" in (stream.location or "")
                    and run in stream.location, stream.location)

        def pending():
            path = "/interactions?status=pending&session_id=" + self.session
            answer = self.get(path)
            asked = answer.get("interactions", []) if isinstance(answer, dict) else []
            return [one for one in asked if one["run_id"] == run]
        asked = wait_for(90, pending, 0.2)
        report.must("the agent's question is in the inbox", asked, (self.run_status(run),
                                                                   stream.kinds()))
        report.step("the file is not there yet", not os.path.exists(self.file))
        waiting = self.get("/sessions/" + self.session)
        report.step("the session waits for the approval",
                    waiting.get("status") == "waiting_approval", waiting)
        shown = json.dumps(asked[0]["request"])
        report.step("the question shows the command", "made-by-" in shown, shown)
        path = "/interactions/%s/resolve" % asked[0]["interaction_id"]
        status, body = self.api.call("POST", path, {"approved": True})
        report.must("it is allowed through the API", status == 200
                    and body.get("status") == "approved", (status, body))
        status, body = self.api.call("POST", path, {"approved": True})
        report.step("the same answer again is taken", status == 200, (status, body))
        status, body = self.api.call("POST", path, {"approved": False})
        report.step("another answer is refused", status == 409
                    and body.get("code") == "already_resolved", (status, body))

        end = stream.until(90, lambda frame: frame["event"] == "TurnEnd")
        report.must("the run completes", end is not None
                    and end["data"].get("run_status") == "completed", end or stream.kinds())
        report.step("the stream ends by itself", stream.ended.wait(10)
                    and stream.kinds()[-1] == "stream.end", stream.kinds()[-3:])
        made = ""
        if os.path.exists(self.file):
            with open(self.file) as file:
                made = file.read()
        report.step("the tool has written its file", made == "made-by-42", repr(made))
        report.step("the model's answer came through", "MOCK DONE" in stream.text(), stream.text())
        kinds = set(stream.kinds())
        missing = {"ApprovalRequest", "ApprovalResponse"} - kinds
        report.step("question, answer and tool call are in the log", not missing
                    and any(kind.startswith("ToolCall") for kind in kinds), sorted(kinds))
        return run

    def slow(self, words, chunks):
        """A run that is in the middle of a slow answer, and its stream."""
        report = self.report
        path = "/sessions/%s/prompt" % self.session
        status, body = self.api.call("POST", path, {
            "prompt": "%s [[mock:text n=%d delay=0.1]]" % (words, chunks)})
        report.must("a slow prompt is admitted", status == 202, (status, body))
        run = body["run_id"]
        stream = self.follow(run, body["session_seq"] - 1)

        def is_delta(frame):
            return frame["event"] == "StreamDelta"
        for _ in range(3):
            report.must("it streams", stream.until(60, is_delta), stream.kinds())
        return run, stream

    def follow(self, run, after):
        stream = Stream(self.api, "GET", "/sessions/%s/events?run_id=%s&after=%d"
                        % (self.session, run, after))
        self.report.must("its events are followed", stream.status == 200, stream.error)
        return stream

    def cancel(self):
        report = self.report
        run, stream = self.slow("Tell me of the sea.", 600)
        asked = time.monotonic()
        status, body = self.api.call("POST", "/sessions/%s/cancel" % self.session)
        report.must("it is told to stop", status == 202, (status, body))
        end = stream.until(30, lambda frame: frame["event"] == "TurnEnd")
        took = time.monotonic() - asked
        report.must("the run is cancelled (%.1f s)" % took, end is not None
                    and end["data"].get("run_status") == "cancelled", end or stream.kinds()[-5:])
        report.step("within ten seconds", took < 10, took)
        report.step("what it had said stays", "chunk" in stream.text() or stream.text(),
                    stream.kinds())
        return run

    def lose_server(self):
        report = self.report
        run, stream = self.slow("Tell me of the hills.", 60)
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait(10)
        report.step("the stream breaks without an end", stream.ended.wait(10)
                    and "stream.end" not in stream.kinds(), stream.kinds()[-3:])
        self.server, url = self.bench.server("server-2", urllib.parse.urlsplit(self.url).netloc)
        report.must("a new server takes the old one's place", url == self.url, url)
        last = [int(frame["id"]) for frame in stream.frames if frame["id"]][-1]
        rest = self.follow(run, last)
        end = rest.until(90, lambda frame: frame["event"] == "TurnEnd")
        report.must("the run goes on and completes", end is not None
                    and end["data"].get("run_status") == "completed", end or rest.kinds()[-5:])
        numbers = [int(frame["id"]) for part in (stream, rest) for frame in part.frames
                   if frame["id"]]
        report.step("both streams together have every event once",
                    numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers)
        report.step("its agent was never asked again", self.get("/runs/" + run)["attempt"] == 1)
        report.step("the answer is whole", "MOCK END." in stream.text() + rest.text(),
                    rest.text())
        return run

    def lose_executor(self):
        report = self.report
        run, stream = self.slow("Tell me a long story.", 600)
        report.must("its agent is there", self.agent_processes())
        killed = time.monotonic()
        os.kill(self.executor.pid, signal.SIGKILL)
        self.executor.wait(10)
        status = wait_for(60, lambda: self.run_status(run) in TERMINAL
                          and self.run_status(run), 0.2)
        took = time.monotonic() - killed
        report.must("without its executor the run becomes interrupted (%.1f s)" % took,
                    status == "interrupted", self.get("/runs/" + run))
        left = wait_for(3, lambda: not self.agent_processes())
        report.step("no process of its agent is left", left, self.agent_processes())
        end = stream.until(10, lambda frame: frame["event"] == "TurnEnd")
        report.step("the follower sees its end", end is not None
                    and end["data"].get("run_status") == "interrupted", stream.kinds()[-5:])
        report.step("and why", "RunLeaseExpired" in stream.kinds(), stream.kinds()[-5:])
        stream.close()
        session = self.get("/sessions/" + self.session)
        report.step("the session can be resumed", session.get("resumable") is True, session)
        return run

    def resume(self, previous):
        report = self.report
        before = self.get("/runs/" + previous)
        self.executor = self.bench.executor("executor-2", self.url)
        stream = Stream(self.api, "POST", "/sessions/%s/resume" % self.session, {
            "prompt": "Go on and finish. [[mock:text n=20 delay=0.05]]"})
        report.must("a resume is admitted and streams", stream.status == 200, stream.error)
        wanted = stream.until(30, lambda frame: frame["event"] == "RunRequested")
        report.must("it is a new run", wanted is not None
                    and wanted["data"]["run_id"] != previous, wanted or stream.kinds())
        run = wanted["data"]["run_id"]
        parent = self.get("/runs/" + run).get("parent_run_id")
        report.step("it is linked to the interrupted one", parent == previous, parent)
        end = stream.until(120, lambda frame: frame["event"] == "TurnEnd")
        report.must("it completes", end is not None
                    and end["data"].get("run_status") == "completed", end or stream.kinds())
        report.step("it streamed to its end", "MOCK END." in stream.text(), stream.text())
        report.step("the interrupted run is as it was", self.get("/runs/" + previous) == before)
        result = self.get("/runs/" + run).get("result") or {}
        report.step("its agent took the session up as it can (%s)" % result.get("continuity"),
                    result.get("continuity") in self.bench.profile["continuity"], result)
        asked = json.dumps(Api(self.options.llm).call("GET", "/__last")[1])
        report.step("the model was told what had happened before",
                    "Go on and finish." in asked and "Tell me a long story." in asked
                    and os.path.basename(self.file) in asked, asked[-1500:])
        return run

    def at_the_editor(self):
        report = self.report
        editor = self.bench.editor(self.url)
        hello = editor.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        report.must("an editor is answered by its agent", hello and "result" in hello, hello)
        made = editor.call("session/new", {"cwd": self.bench.workspace, "mcpServers": []})
        report.must("it gets a session", made and "result" in made, made)
        session = made["result"]["sessionId"]
        file = os.path.join(self.bench.workspace, "made-at-the-editor.txt")
        editor.prompt(session, 'Make a file. [[mock:shell cmd="printf made > %s"]]' % file)
        answer = editor.answer(120) or {}
        report.step("its prompt ends well", answer.get("result", {}).get("stopReason") == "end_turn",
                    answer)
        report.step("the agent asked there, about a tool call that was told", editor.asked
                    and editor.asked[0]["toolCall"]["toolCallId"] in
                    [update.get("toolCallId") for update in editor.updates], editor.asked)
        report.step("the tool has written its file", os.path.exists(file))
        del editor.updates[:]
        editor.prompt(session, "Tell me of the woods. [[mock:text n=60 delay=0.1]]")
        report.must("the next one streams", wait_for(60, editor.text), editor.updates)
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.wait(10)
        address = urllib.parse.urlsplit(self.url).netloc
        self.server, url = self.bench.server("server-3", address)
        report.must("its server is killed and takes its place again", url == self.url, url)
        answer = editor.answer(120) or {}
        report.step("the prompt ends well in spite of that",
                    answer.get("result", {}).get("stopReason") == "end_turn", answer)
        report.step("the answer is whole", editor.text().count("MOCK END.") == 1, editor.text())
        editor.process.stdin.close()
        wait_for(5, lambda: editor.process.poll() is not None)
        report.step("the editor's agent ends with it", editor.process.poll() == 0)
        report.step("it wrote nothing but messages", not editor.noise, editor.noise)

    def whole_log(self, runs):
        report = self.report
        events, after = [], 0
        while len(events) < 100_000:
            page = self.get("/sessions/%s/events?after=%d&limit=200" % (self.session, after))
            if not isinstance(page, dict) or not page.get("events"):
                break
            events += page["events"]
            after = page["events"][-1]["session_seq"]
        numbers = [event["session_seq"] for event in events]
        report.step("the log has every number once, in order (%d events)" % len(events),
                    numbers and numbers == list(range(1, len(numbers) + 1)), numbers[:50])
        ends = [(event["run_id"], event["payload"].get("run_status")) for event in events
                if event["kind"] == "TurnEnd"]
        report.step("each run has one end", ends == list(runs.items()), ends)
        statuses = {run: self.run_status(run) for run in runs}
        report.step("and the runs say the same", statuses == runs, statuses)

    def finish(self):
        report = self.report
        code = self.bench.end(self.executor, 20)
        report.step("the executor ends on SIGTERM", code == 0, code)
        code = self.bench.end(self.server, 20)
        report.step("the server ends on SIGTERM", code == 0, code)
        left = wait_for(5, lambda: not marked(self.bench.mark))
        report.step("nothing is left running", left, marked(self.bench.mark))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", choices=sorted(profiles.ALL), default="opencode")
    parser.add_argument("--agents-dir", required=True)
    parser.add_argument("--llm", required=True, help="base URL of mock_llm.py")
    parser.add_argument("--work", required=True, help="an empty directory")
    parser.add_argument("--tapedeck", required=True, help="the binary")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    conversation = Conversation(options, report)
    try:
        conversation.play()
    except Stop:
        pass
    except (OSError, KeyError, TypeError, AttributeError, ValueError,
            http.client.HTTPException) as error:
        report.step("the answers have the expected shape", False, repr(error))
    finally:
        conversation.bench.clean_up()
        if report.failed:
            conversation.bench.logs()
        print("%d passed, %d failed" % (report.passed, report.failed), flush=True)
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
