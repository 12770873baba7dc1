"""A scripted ACP agent for tests. What it does in a turn is a list of steps, given as JSON in its
first argument; {"options": {...}, "steps": [...]}. Everything it receives is
also written to `received.jsonl` in its working directory."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

script = json.loads(sys.argv[1])
options = script.get("options", {})
log = open(os.path.join(os.getcwd(), "received.jsonl"), "a")
SESSION = options.get("session", "s1")
asked = 0
called = 0
terminal = None
authenticated = False
# How many prompts the open session has had.
prompts = 0
held = []


def send(message):
    message["jsonrpc"] = "2.0"
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def update(fields):
    send({"method": "session/update", "params": {"sessionId": SESSION, "update": fields}})


def text(content):
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": content}}


def receive():
    """The next message, or None at the end."""
    if held:
        return held.pop(0)
    line = sys.stdin.readline()
    if not line:
        return None
    log.write(line)
    log.flush()
    return json.loads(line)


def await_message(wanted):
    """The next message that is wanted; others wait."""
    others = []
    while True:
        message = receive()
        if message is None:
            sys.exit(0)
        if wanted(message):
            held[:0] = others
            return message
        others.append(message)


def ask(call, kinds):
    global asked
    asked += 1
    offered = [{"optionId": "the-" + kind, "name": kind, "kind": kind} for kind in kinds]
    params = {"sessionId": SESSION, "toolCall": call, "options": offered}
    send({"id": "ask-%d" % asked, "method": "session/request_permission", "params": params})
    return "ask-%d" % asked


def outcome(request):
    answer = await_message(lambda message: message.get("id") == request)
    if "error" in answer:
        return "error %d" % answer["error"]["code"]
    result = answer["result"]["outcome"]
    return result.get("optionId", result["outcome"])


def reply(request):
    answer = await_message(lambda message: message.get("id") == request)
    return answer["result"] if "result" in answer else {"code": answer["error"]["code"]}


def call(method, params):
    """A request of the client; `$terminal` stands for the newest terminal."""
    global called, terminal
    called += 1
    filled = {key: terminal if value == "$terminal" else value for key, value in params.items()}
    send({"id": "call-%d" % called, "method": method, "params": dict({"sessionId": SESSION}, **filled)})
    result = reply("call-%d" % called)
    terminal = (result or {}).get("terminalId", terminal)
    return result


def flood(count):
    for number in range(count):
        update(text("%d " % number))
        open("progress", "w").write(str(number))


ALL = ["allow_once", "allow_always", "reject_once", "reject_always"]


def step(prompt, name, *arguments):
    if name == "say":
        update(text(arguments[0]))
    elif name == "update":
        update(arguments[0])
    elif name == "raw":
        sys.stdout.buffer.write(arguments[0].encode("latin-1"))
        sys.stdout.flush()
    elif name == "stderr":
        sys.stderr.write(arguments[0])
        sys.stderr.flush()
    elif name == "ask":
        request = ask({"toolCallId": arguments[0], "title": arguments[1], "rawInput": {"n": 1},
                       "kind": arguments[2] if len(arguments) > 2 else "execute"}, ALL)
        update(text("answer " + outcome(request)))
    elif name == "outcome":
        update(text(" answer " + outcome(arguments[0])))
    elif name == "ask_two":
        first, second = ask({"toolCallId": "a", "title": "one"}, ALL), ask({"toolCallId": "b", "title": "two"}, ALL)
        update(text("answers %s %s" % (outcome(first), outcome(second))))
    elif name == "ask_and_withdraw":
        request = ask({"toolCallId": "a", "title": "one"}, ALL)
        send({"method": "$/cancel_request", "params": {"requestId": request}})
        update(text("answer " + outcome(request)))
    elif name == "request":
        send({"id": 77, "method": arguments[0], "params": {}})
        answer = await_message(lambda message: message.get("id") == 77)
        update(text("code %d" % answer["error"]["code"]))
    elif name == "call":
        update(text(json.dumps(call(*arguments), sort_keys=True)))
    elif name == "form":
        send({"id": "form", "method": "elicitation/create", "params": dict(
            {"sessionId": SESSION, "mode": "form"}, **arguments[0])})
        update(text(json.dumps(reply("form"), sort_keys=True)))
    elif name == "form_and_withdraw":
        send({"id": "form", "method": "elicitation/create", "params": dict(
            {"sessionId": SESSION, "mode": "form"}, **arguments[0])})
        send({"method": "$/cancel_request", "params": {"requestId": "form"}})
        update(text(json.dumps(reply("form"), sort_keys=True)))
    elif name == "flood":
        flood(arguments[0])
    elif name == "flood_aside":
        threading.Thread(target=flood, args=arguments, daemon=True).start()
    elif name == "long_line":
        sys.stdout.write("x" * arguments[0])
        sys.stdout.flush()
        time.sleep(600)
    elif name == "tool_command":
        subprocess.Popen(["sleep", arguments[0]], start_new_session=True)
    elif name == "hang":
        while True:
            time.sleep(600)
    elif name == "await_cancel":
        await_message(lambda message: message.get("method") == "session/cancel")
        return {"stopReason": "cancelled"}
    elif name == "exit":
        sys.exit(arguments[0])
    elif name == "error":
        send({"id": prompt["id"], "error": arguments[0]})
        return False
    elif name == "stop":
        return {"stopReason": arguments[0]}
    elif name == "echo_prompt":
        update(text(prompt["params"]["prompt"][0]["text"]))
    return None


def take_up(message):
    if options.get("lost"):
        send({"id": message["id"], "error": {"code": -32002, "message": "no such session"}})
        return
    global SESSION
    SESSION = message["params"]["sessionId"]
    update(text("replayed before"))
    send({"id": message["id"], "result": options.get("new", {})})
    for _ in range(3):
        time.sleep(0.02)
        update(text("replayed after"))


if options.get("ignore_signals"):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

while True:
    message = receive()
    if message is None:
        if options.get("ignore_signals"):
            time.sleep(600)
        break
    method = message.get("method")
    if method in ("session/new", "session/load", "session/resume"):
        prompts = 0
    if method == "initialize":
        send({"id": message["id"], "result": {
            "protocolVersion": options.get("version", 1),
            "agentCapabilities": options.get("capabilities", {}),
            "authMethods": options.get("auth_methods", []),
            "agentInfo": {"name": "scripted", "version": "1.2"}}})
    elif method == "authenticate":
        authenticated = True
        send({"id": message["id"], "result": {}})
    elif method in ("session/new", "session/load", "session/resume") and options.get("locked") and not authenticated:
        send({"id": message["id"], "error": {"code": -32000, "message": "Authentication required"}})
    elif method == "session/new":
        if options.get("early"):
            update(text("early "))
        send({"id": message["id"], "result": dict({"sessionId": SESSION}, **options.get("new", {}))})
    elif method in ("session/load", "session/resume"):
        take_up(message)
    elif method in ("session/set_mode", "session/set_config_option", "session/set_model"):
        if "set_update" in options:
            update(options["set_update"])
        send({"id": message["id"], "result": options.get("set_answer", {})})
    elif method == "session/prompt" and options.get("forgets") and prompts > 0:
        send({"id": message["id"], "error": {"code": -32002, "message": "no such session"}})
    elif method == "session/prompt":
        prompts += 1
        result = {"stopReason": "end_turn"}
        for entry in script.get("steps", []):
            answer = step(message, *entry)
            if answer is not None:
                result = answer
                break
        if result:
            send({"id": message["id"], "result": result})
            if options.get("late"):
                update({"sessionUpdate": "usage_update", "used": 1, "size": 2})
