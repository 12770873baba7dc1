#!/usr/bin/env python3
"""Scripted LLM endpoint for driving real coding agents offline.

One file, standard library only, loopback only.  Speaks four API dialects:

    POST .../chat/completions                     OpenAI chat completions
    POST .../responses                            OpenAI responses
    POST .../messages                             Anthropic messages
    POST .../models/<m>:generateContent           Gemini (also :streamGenerateContent)
    GET  .../models                               a model list that suits all of them

What the "model" does is written in the user's prompt as a marker:

    [[mock:text]]                                 plain answer
    [[mock:text n=40 delay=0.1]]                  40 chunks, 0.1 s apart (slow stream)
    [[mock:think]]                                reasoning first, then an answer
    [[mock:shell cmd="echo hi > a.txt"]]          call the agent's shell tool, then answer
    [[mock:write path=/x/a.txt content="hello"]]  call the agent's write tool, then answer
    [[mock:read path=/x/a.txt]]                   call the agent's read tool, then answer
    [[mock:tool name=foo args={"a":1}]]           call a tool by its exact name
    [[mock:loop n=3 cmd="date"]]                  n tool calls one after another, then answer
    [[mock:par n=2 cmd="date"]]                   n tool calls in one reply, then answer
    [[mock:error code=500]]                       HTTP error (add times=2 to recover after two)
    [[mock:hang]]                                 a few chunks, then silence for ever
    [[mock:stall]]                                accepts the request, never answers
    [[mock:cut]]                                  a few chunks, then the socket is closed
    [[mock:endless delay=0.05]]                   chunks for ever
    [[mock:huge kb=512]]                          one chunk of that size
    [[mock:badargs]]                              tool call whose JSON arguments are broken
    [[mock:length]]                               answer that stops for max tokens
    [[mock:refuse]]                               answer that stops for a content filter

Any parameter may be given as base64 under its name with 64 after it: cmd64=ZGF0ZQ==

A request that offers no tools is taken for an auxiliary one (title, summary,
routing) and gets a short answer at once, whatever the marker says, unless the
marker carries force=1.

GET  /__log        everything asked so far, one JSON object per line
POST /__reset      forget it
GET  /__last       the last full request body that offered tools
"""
import argparse
import base64
import json
import re
import select
import socket
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARK = re.compile(r"\[\[mock:(\w+)((?:\s+\w+=(?:\"(?:[^\"\\]|\\.)*\"|\{.*?\}|[^\s\]]+))*)\s*\]\]", re.S)
PARAM = re.compile(r"(\w+)=(\"(?:[^\"\\]|\\.)*\"|\{.*?\}(?=\s|$)|[^\s\]]+)", re.S)

STATE = {"log": [], "last": None, "errors": {}, "logfile": None, "lock": threading.Lock(), "t0": time.time()}


def note(**kw):
    kw["t"] = round(time.time() - STATE["t0"], 3)
    with STATE["lock"]:
        STATE["log"].append(kw)
        if STATE["logfile"]:
            STATE["logfile"].write(json.dumps(kw) + "\n")
            STATE["logfile"].flush()


# ---------------------------------------------------------------- reading requests

def flat(content):
    """Text of a content field in any dialect."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return flat(content.get("text") or content.get("content") or content.get("output") or "")
    out = []
    for part in content:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, dict):
            if isinstance(part.get("text"), str):
                out.append(part["text"])
            elif "content" in part:
                out.append(flat(part["content"]))
    return "\n".join(out)


def read_chat(b):
    turns = []
    for m in b.get("messages", []):
        if m.get("role") == "tool":
            turns.append(("tool", flat(m.get("content"))))
        else:
            turns.append((m.get("role"), flat(m.get("content"))))
    tools = []
    for t in b.get("tools") or []:
        f = t.get("function", t)
        tools.append({"name": f.get("name"), "schema": f.get("parameters") or {}, "kind": "function"})
    schema = ((b.get("response_format") or {}).get("json_schema") or {}).get("schema")
    return turns, tools, schema, bool(b.get("stream"))


def read_responses(b):
    turns = []
    inp = b.get("input")
    if isinstance(inp, str):
        inp = [{"type": "message", "role": "user", "content": inp}]
    for it in inp or []:
        ty = it.get("type", "message")
        if ty == "message":
            turns.append((it.get("role"), flat(it.get("content"))))
        elif ty.endswith("_output"):
            turns.append(("tool", flat(it.get("output"))))
    tools = []

    def add(t, ns=None):
        ty = t.get("type")
        if ty == "namespace":
            for x in t.get("tools") or []:
                add(x, t.get("name"))
        elif ty in ("function", "custom", "local_shell", "shell"):
            tools.append({"name": t.get("name") or ty, "schema": t.get("parameters") or {}, "kind": ty, "ns": ns})

    for t in b.get("tools") or []:
        add(t)
    fmt = ((b.get("text") or {}).get("format") or {})
    return turns, tools, fmt.get("schema"), bool(b.get("stream"))


def read_anthropic(b):
    turns = []
    for m in b.get("messages", []):
        c = m.get("content")
        if isinstance(c, str):
            turns.append((m.get("role"), c))
            continue
        for part in c or []:
            if part.get("type") == "tool_result":
                turns.append(("tool", flat(part.get("content"))))
            elif part.get("type") == "text":
                turns.append((m.get("role"), part.get("text", "")))
    tools = [{"name": t.get("name"), "schema": t.get("input_schema") or {}, "kind": "function"}
             for t in b.get("tools") or [] if "input_schema" in t]
    fmt = (b.get("output_config") or {}).get("format") or b.get("output_format") or {}
    return turns, tools, fmt.get("schema"), bool(b.get("stream"))


def read_gemini(b, stream):
    turns = []
    for c in b.get("contents", []):
        for p in c.get("parts", []):
            if "functionResponse" in p:
                turns.append(("tool", json.dumps(p["functionResponse"].get("response"))))
            elif "text" in p:
                turns.append((c.get("role", "user"), p["text"]))
    tools = []
    for t in b.get("tools") or []:
        for f in t.get("functionDeclarations") or []:
            tools.append({"name": f.get("name"), "schema": f.get("parametersJsonSchema") or f.get("parameters") or {},
                          "kind": "function"})
    g = b.get("generationConfig") or {}
    schema = g.get("responseJsonSchema") or g.get("responseSchema")
    return turns, tools, schema, stream


def find_mark(turns):
    """The newest marker in a user turn, and the tool results that came after it."""
    for i in range(len(turns) - 1, -1, -1):
        role, text = turns[i]
        if role not in ("user",):
            continue
        ms = list(MARK.finditer(text or ""))
        if ms:
            m = ms[-1]
            params = {}
            for k, v in PARAM.findall(m.group(2) or ""):
                if v.startswith('"'):
                    v = json.loads(v)
                if k.endswith("64"):
                    # for agents that re-quote their arguments: cmd64=<base64 of cmd>
                    k, v = k[:-2], base64.b64decode(v).decode()
                params[k] = v
            results = [t for r, t in turns[i + 1:] if r == "tool"]
            return m.group(1), params, results, m.group(0)
    return "text", {}, [], ""


# ---------------------------------------------------------------- choosing tools

SHELL = ["exec_command", "run_shell_command", "bash", "shell", "local_shell", "shell_command", "execute_command",
         "run_terminal_command", "run_command", "run_commands", "terminal", "execute", "execute_bash",
         "run_terminal_cmd", "runcommand"]
WRITE = ["write_file", "write", "writefile", "create_file", "create", "write_to_file", "write_text_file", "save_file",
         "apply_patch", "file_editor", "str_replace_editor", "edit", "editor"]
READ = ["read_file", "read", "readfile", "view", "cat", "read_text_file", "read_many_files", "file_editor"]


def pick(tools, names):
    low = {}
    for t in tools:
        low.setdefault((t["name"] or "").lower(), t)
    for n in names:
        if n in low:
            return low[n]
    for n in names:
        for k, t in low.items():
            if n in k and k != "write_stdin":
                return t
    return None


def filler(schema):
    """The smallest value that satisfies a JSON schema."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    for k in ("anyOf", "oneOf"):
        if schema.get(k):
            return filler(schema[k][0])
    ty = schema.get("type")
    if isinstance(ty, list):
        ty = ty[0]
    ty = (ty or "object" if "properties" in schema else ty or "string").lower()
    if ty == "object":
        props = schema.get("properties") or {}
        return {k: filler(props.get(k, {})) for k in schema.get("required") or []}
    if ty == "array":
        return []
    if ty in ("integer", "number"):
        return schema.get("minimum", 1)
    if ty == "boolean":
        return False
    return "mock"


PATHS = ("file_path", "filepath", "path", "absolute_path", "filename", "file", "target_file")
BODY = ("content", "contents", "file_text", "text", "new_str", "new_string", "newtext", "code", "code_edit")
CMD = ("command", "cmd", "script", "commands", "code", "input")


def fit(value, schema):
    """Give a value the type that the schema asks for."""
    if not isinstance(schema, dict):
        return value
    ty = schema.get("type")
    if isinstance(ty, list):
        ty = ty[0]
    for k in ("anyOf", "oneOf"):
        if ty is None and schema.get(k):
            kinds = [s.get("type") for s in schema[k] if isinstance(s, dict)]
            ty = "string" if "string" in kinds else kinds[0]
    if (ty or "").lower() == "array":
        item = schema.get("items") or {}
        if (item.get("type") or "").lower() == "object":
            inner = filler(item) or {}
            for name in (item.get("properties") or {}):
                if name.lower() in CMD:
                    inner[name] = value
            return [inner]
        return ["bash", "-lc", value] if "argv" in json.dumps(schema) or "execvp" in json.dumps(schema) else [value]
    return value


def shell_args(tool, cmd, esc=True):
    props = tool["schema"].get("properties") or {}
    args = filler({**tool["schema"], "type": "object"}) or {}
    for name, sch in props.items():
        if name.lower() in CMD:
            if tool["name"] == "shell" and (sch.get("type") == "array"):
                args[name] = ["bash", "-lc", cmd]
            else:
                args[name] = fit(cmd, sch)
            break
    if "description" in props and "description" not in args:
        args["description"] = "mock command"
    if esc and "sandbox_permissions" in props:
        # codex: ask the user instead of running inside the sandbox
        args["sandbox_permissions"] = "require_escalated"
        args["justification"] = "the mock model wants out of the sandbox"
    return args


def write_args(tool, path, content):
    props = tool["schema"].get("properties") or {}
    args = filler({**tool["schema"], "type": "object"}) or {}
    for name, sch in props.items():
        low = name.lower()
        if low in PATHS:
            args[name] = path
        elif low in BODY:
            args[name] = content
        elif low == "command" and sch.get("enum") and "create" in sch["enum"]:
            args[name] = "create"
        elif low in ("old_string", "old_str", "oldtext"):
            args[name] = ""
    return args


def read_args(tool, path):
    props = tool["schema"].get("properties") or {}
    args = filler({**tool["schema"], "type": "object"}) or {}
    for name, sch in props.items():
        low = name.lower()
        if low in PATHS:
            args[name] = path
        elif low in ("paths", "files"):
            args[name] = fit(path, sch)
        elif low == "command" and sch.get("enum") and "view" in sch["enum"]:
            args[name] = "view"
    return args


def patch_text(path, content):
    body = "".join("+" + ln + "\n" for ln in content.split("\n"))
    return "*** Begin Patch\n*** Add File: %s\n%s*** End Patch\n" % (path, body)


def call_for(kind, params, tools):
    """(name, args-or-text, tool) for one tool call, or None when the agent offers none that fits."""
    if kind == "tool":
        want = params.get("name", "")
        for t in tools:
            if t["name"] == want:
                raw = params.get("args", "{}")
                return want, (raw if t["kind"] == "custom" else json.loads(raw)), t
        return None
    if kind == "write":
        path, content = params.get("path", "mock.txt"), params.get("content", "written by the mock model\n")
        t = pick(tools, WRITE)
        if t is None:
            t = pick(tools, SHELL)
            if t is None:
                return None
            return t["name"], shell_args(t, "printf %s " + json.dumps(content) + " > " + path), t
        if t["kind"] == "custom":
            return t["name"], patch_text(path, content), t
        if t["name"] == "apply_patch":
            key = next(iter(t["schema"].get("properties") or {"input": 0}))
            return t["name"], {key: patch_text(path, content)}, t
        return t["name"], write_args(t, path, content), t
    if kind == "read":
        t = pick(tools, READ)
        if t is not None:
            return t["name"], read_args(t, params.get("path", "mock.txt")), t
        kind, params = "shell", {"cmd": "cat " + params.get("path", "mock.txt")}
    t = pick(tools, SHELL)
    if t is None:
        return None
    cmd = params.get("cmd", "echo mock")
    if t["kind"] == "custom":
        # code-mode: the tool takes a program text instead of JSON arguments
        inner = params.get("inner", "exec_command")
        return t["name"], "const r = await tools.%s({cmd: %s}); text(r);" % (inner, json.dumps(cmd)), t
    return t["name"], shell_args(t, cmd, params.get("esc") != "0"), t


# ---------------------------------------------------------------- the script of one reply

LOREM = ("This is the mock model speaking. It streams words slowly enough to be seen and "
         "carries no meaning beyond proving that the stream is alive. ").split(" ")


def script(kind, params, results, tools, aux, schema):
    """Yields ("text"|"think"|"tool"|"sleep"|"stop"|"http"|"cut"|"quiet", ...) steps."""
    delay = float(params.get("delay", 0.0))
    step = len(results)
    if schema is not None and aux:
        yield ("text", json.dumps(filler(schema)))
        yield ("stop", "stop")
        return
    if aux and not params.get("force"):
        yield ("text", "Mock title")
        yield ("stop", "stop")
        return
    if kind in ("shell", "write", "read", "tool", "loop", "par", "badargs"):
        n = int(params.get("n", 1))
        want = 1 if kind in ("par",) else n
        done = step >= (n if kind in ("loop", "par") else 1)
        if not done:
            base = kind if kind in ("shell", "write", "read", "tool") else params.get("kind", "shell")
            got = call_for(base, params, tools)
            if got is None:
                yield ("text", "MOCK: no fitting tool among: " + ", ".join(t["name"] or "?" for t in tools))
                yield ("stop", "stop")
                return
            yield ("text", "I will call %s. " % got[0])
            if delay:
                yield ("sleep", delay)
            if kind == "badargs":
                yield ("tool", got[0], '{"broken": ', got[2])
            else:
                for _ in range(n if kind == "par" else 1):
                    yield ("tool", got[0], got[1], got[2])
            yield ("stop", "tool")
            return
        last = results[-1] if results else ""
        yield ("text", "MOCK DONE after %d tool result(s). Last result was: " % step)
        yield ("text", last[:400].replace("\n", " | "))
        yield ("stop", "stop")
        return
    if kind == "error":
        code = int(params.get("code", 500))
        times = int(params.get("times", 10 ** 9))
        key = json.dumps([code, times, params.get("id", "")])
        STATE["errors"][key] = STATE["errors"].get(key, 0) + 1
        if STATE["errors"][key] <= times:
            yield ("http", code)
            return
        yield ("text", "MOCK recovered after %d errors." % times)
        yield ("stop", "stop")
        return
    if kind == "stall":
        yield ("quiet", True)
        return
    if kind in ("hang", "cut"):
        for w in LOREM[:6]:
            yield ("text", w + " ")
        yield ("cut",) if kind == "cut" else ("quiet", False)
        return
    if kind == "endless":
        i = 0
        while True:
            yield ("text", LOREM[i % len(LOREM)] + " ")
            yield ("sleep", delay or 0.05)
            i += 1
    if kind == "huge":
        kb = int(params.get("kb", 256))
        line = "0123456789abcdef" * 4
        yield ("text", (line * (kb * 1024 // len(line) + 1))[: kb * 1024])
        yield ("stop", "stop")
        return
    if kind == "think":
        for w in "The user wants me to think before I answer.".split(" "):
            yield ("think", w + " ")
            if delay:
                yield ("sleep", delay)
        yield ("text", "MOCK thought about it.")
        yield ("stop", "stop")
        return
    n = int(params.get("n", 0))
    if n:
        for i in range(n):
            yield ("text", LOREM[i % len(LOREM)] + " ")
            if delay:
                yield ("sleep", delay)
        yield ("text", "MOCK END.")
    else:
        for w in ("Hello ", "from ", "the ", "mock ", "model."):
            yield ("text", w)
            if delay:
                yield ("sleep", delay)
    yield ("stop", {"length": "length", "refuse": "filter"}.get(kind, "stop"))


def rid(prefix):
    return prefix + uuid.uuid4().hex[:24]


# ---------------------------------------------------------------- dialect encoders

class Enc:
    """Turns script steps into events.  Each method returns a list of (event-name, object)."""

    def __init__(self, model, body):
        self.model, self.body, self.n_out = model, body, 0

    def usage_in(self):
        return max(1, len(json.dumps(self.body)) // 4)

    def begin(self):
        return []


class Chat(Enc):
    def begin(self):
        self.id, self.ti = rid("chatcmpl-"), 0
        self.text, self.calls, self.think_ = "", [], ""
        return [self.ch({"role": "assistant", "content": ""})]

    def ch(self, delta, fin=None):
        return (None, {"id": self.id, "object": "chat.completion.chunk", "created": int(time.time()),
                       "model": self.model, "choices": [{"index": 0, "delta": delta, "finish_reason": fin}]})

    def say(self, s):
        self.text += s
        return [self.ch({"content": s})]

    def think(self, s):
        self.think_ += s
        return [self.ch({"reasoning_content": s})]

    def tool(self, name, args, tool):
        raw = args if isinstance(args, str) else json.dumps(args)
        call = {"index": self.ti, "id": rid("call_"), "type": "function", "function": {"name": name, "arguments": raw}}
        self.calls.append(call)
        self.ti += 1
        half = len(raw) // 2
        first = json.loads(json.dumps(call))
        first["function"]["arguments"] = raw[:half]
        return [self.ch({"tool_calls": [first]}),
                self.ch({"tool_calls": [{"index": call["index"], "function": {"arguments": raw[half:]}}]})]

    def usage(self):
        i, o = self.usage_in(), max(1, len(self.text) // 4)
        return {"prompt_tokens": i, "completion_tokens": o, "total_tokens": i + o}

    def end(self, why):
        fin = {"tool": "tool_calls", "stop": "stop", "length": "length", "filter": "content_filter"}[why]
        self.fin = fin
        out = [self.ch({}, fin)]
        out.append((None, {"id": self.id, "object": "chat.completion.chunk", "created": int(time.time()),
                           "model": self.model, "choices": [], "usage": self.usage()}))
        return out + [(None, "[DONE]")]

    def whole(self):
        msg = {"role": "assistant", "content": self.text or None}
        if self.calls:
            msg["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in self.calls]
        return {"id": self.id, "object": "chat.completion", "created": int(time.time()), "model": self.model,
                "choices": [{"index": 0, "message": msg, "finish_reason": self.fin}], "usage": self.usage()}


class Responses(Enc):
    def begin(self):
        self.id, self.seq, self.out, self.cur, self.text = rid("resp_"), 0, [], None, ""
        return [self.ev("response.created", response=self.resp("in_progress")),
                self.ev("response.in_progress", response=self.resp("in_progress"))]

    def resp(self, status):
        i, o = self.usage_in(), max(1, len(self.text) // 4)
        r = {"id": self.id, "object": "response", "created_at": int(time.time()), "status": status, "error": None,
             "incomplete_details": None, "instructions": None, "model": self.model, "output": list(self.out),
             "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {},
             "usage": None}
        if status != "in_progress":
            r["usage"] = {"input_tokens": i, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": o,
                          "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": i + o}
        return r

    def ev(self, ty, **kw):
        e = {"type": ty, "sequence_number": self.seq}
        e.update(kw)
        self.seq += 1
        return (ty, e)

    def close(self):
        if not self.cur:
            return []
        c, self.cur = self.cur, None
        i, item = c["i"], c["item"]
        if item["type"] == "message":
            part = {"type": "output_text", "text": c["text"], "annotations": [], "logprobs": []}
            item = {**item, "status": "completed", "content": [part]}
            evs = [self.ev("response.output_text.done", item_id=item["id"], output_index=i, content_index=0,
                           text=c["text"], logprobs=[]),
                   self.ev("response.content_part.done", item_id=item["id"], output_index=i, content_index=0, part=part)]
        else:
            part = {"type": "summary_text", "text": c["text"]}
            item = {**item, "summary": [part]}
            evs = [self.ev("response.reasoning_summary_text.done", item_id=item["id"], output_index=i,
                           summary_index=0, text=c["text"]),
                   self.ev("response.reasoning_summary_part.done", item_id=item["id"], output_index=i,
                           summary_index=0, part=part)]
        self.out.append(item)
        return evs + [self.ev("response.output_item.done", output_index=i, item=item)]

    def open(self, ty):
        if self.cur and self.cur["item"]["type"] == ty:
            return []
        evs = self.close()
        i = len(self.out)
        if ty == "message":
            item = {"type": "message", "id": rid("msg_"), "status": "in_progress", "role": "assistant", "content": []}
        else:
            item = {"type": "reasoning", "id": rid("rs_"), "summary": []}
        self.cur = {"i": i, "item": item, "text": ""}
        evs.append(self.ev("response.output_item.added", output_index=i, item=item))
        if ty == "message":
            evs.append(self.ev("response.content_part.added", item_id=item["id"], output_index=i, content_index=0,
                               part={"type": "output_text", "text": "", "annotations": [], "logprobs": []}))
        else:
            evs.append(self.ev("response.reasoning_summary_part.added", item_id=item["id"], output_index=i,
                               summary_index=0, part={"type": "summary_text", "text": ""}))
        return evs

    def say(self, s):
        evs = self.open("message")
        self.cur["text"] += s
        self.text += s
        return evs + [self.ev("response.output_text.delta", item_id=self.cur["item"]["id"],
                              output_index=self.cur["i"], content_index=0, delta=s, logprobs=[])]

    def think(self, s):
        evs = self.open("reasoning")
        self.cur["text"] += s
        return evs + [self.ev("response.reasoning_summary_text.delta", item_id=self.cur["item"]["id"],
                              output_index=self.cur["i"], summary_index=0, delta=s)]

    def tool(self, name, args, tool):
        evs = self.close()
        i = len(self.out)
        if tool and tool["kind"] == "custom":
            item = {"type": "custom_tool_call", "id": rid("ctc_"), "call_id": rid("call_"), "name": name, "input": args,
                    "status": "completed"}
            evs.append(self.ev("response.output_item.added", output_index=i, item={**item, "input": "", "status": "in_progress"}))
            evs.append(self.ev("response.custom_tool_call_input.delta", item_id=item["id"], output_index=i, delta=args))
            evs.append(self.ev("response.custom_tool_call_input.done", item_id=item["id"], output_index=i, input=args))
        elif tool and tool["kind"] == "local_shell":
            item = {"type": "local_shell_call", "id": rid("lsh_"), "call_id": rid("call_"), "status": "completed",
                    "action": {"type": "exec", "command": ["bash", "-lc", args.get("command", "true")], "env": {}}}
            evs.append(self.ev("response.output_item.added", output_index=i, item=item))
        else:
            raw = args if isinstance(args, str) else json.dumps(args)
            item = {"type": "function_call", "id": rid("fc_"), "call_id": rid("call_"), "name": name,
                    "arguments": raw, "status": "completed"}
            if tool and tool.get("ns"):
                item["namespace"] = tool["ns"]
            evs.append(self.ev("response.output_item.added", output_index=i,
                               item={**item, "arguments": "", "status": "in_progress"}))
            half = len(raw) // 2
            for piece in (raw[:half], raw[half:]):
                evs.append(self.ev("response.function_call_arguments.delta", item_id=item["id"], output_index=i, delta=piece))
            evs.append(self.ev("response.function_call_arguments.done", item_id=item["id"], output_index=i, arguments=raw))
        self.out.append(item)
        return evs + [self.ev("response.output_item.done", output_index=i, item=item)]

    def end(self, why):
        evs = self.close()
        if why in ("length", "filter"):
            r = self.resp("incomplete")
            r["incomplete_details"] = {"reason": "max_output_tokens" if why == "length" else "content_filter"}
            self.final = r
            return evs + [self.ev("response.incomplete", response=r)]
        self.final = self.resp("completed")
        return evs + [self.ev("response.completed", response=self.final)]

    def whole(self):
        return self.final


class Anthropic(Enc):
    def begin(self):
        self.id, self.blocks, self.kind, self.text = rid("msg_"), [], None, ""
        msg = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": self.usage_in(), "output_tokens": 1,
               "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}}
        self.msg = msg
        return [("message_start", {"type": "message_start", "message": msg}), ("ping", {"type": "ping"})]

    def close(self):
        if self.kind is None:
            return []
        i = len(self.blocks) - 1
        evs = []
        if self.kind == "thinking":
            evs.append(("content_block_delta", {"type": "content_block_delta", "index": i,
                                                "delta": {"type": "signature_delta", "signature": "bW9jaw=="}}))
            self.blocks[-1]["signature"] = "bW9jaw=="
        self.kind = None
        return evs + [("content_block_stop", {"type": "content_block_stop", "index": i})]

    def open(self, kind):
        if self.kind == kind:
            return []
        evs = self.close()
        blk = {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
        self.blocks.append(dict(blk))
        self.kind = kind
        return evs + [("content_block_start", {"type": "content_block_start", "index": len(self.blocks) - 1,
                                               "content_block": blk})]

    def say(self, s):
        evs = self.open("text")
        self.blocks[-1]["text"] += s
        self.text += s
        return evs + [("content_block_delta", {"type": "content_block_delta", "index": len(self.blocks) - 1,
                                               "delta": {"type": "text_delta", "text": s}})]

    def think(self, s):
        evs = self.open("thinking")
        self.blocks[-1]["thinking"] += s
        return evs + [("content_block_delta", {"type": "content_block_delta", "index": len(self.blocks) - 1,
                                               "delta": {"type": "thinking_delta", "thinking": s}})]

    def tool(self, name, args, tool):
        evs = self.close()
        raw = args if isinstance(args, str) else json.dumps(args)
        blk = {"type": "tool_use", "id": rid("toolu_"), "name": name, "input": {}}
        i = len(self.blocks)
        self.blocks.append({**blk, "input": args if isinstance(args, dict) else {}})
        evs.append(("content_block_start", {"type": "content_block_start", "index": i, "content_block": blk}))
        half = len(raw) // 2
        for piece in (raw[:half], raw[half:]):
            evs.append(("content_block_delta", {"type": "content_block_delta", "index": i,
                                                "delta": {"type": "input_json_delta", "partial_json": piece}}))
        return evs + [("content_block_stop", {"type": "content_block_stop", "index": i})]

    def end(self, why):
        evs = self.close()
        self.why = {"tool": "tool_use", "stop": "end_turn", "length": "max_tokens", "filter": "refusal"}[why]
        return evs + [("message_delta", {"type": "message_delta", "delta": {"stop_reason": self.why, "stop_sequence": None},
                                         "usage": {"output_tokens": max(1, len(self.text) // 4)}}),
                      ("message_stop", {"type": "message_stop"})]

    def whole(self):
        m = dict(self.msg)
        m.update(content=self.blocks, stop_reason=self.why)
        m["usage"] = {**m["usage"], "output_tokens": max(1, len(self.text) // 4)}
        return m


class Gemini(Enc):
    def begin(self):
        self.parts, self.id, self.text = [], rid("g"), ""
        return []

    def chunk(self, parts, fin=None):
        cand = {"content": {"role": "model", "parts": parts}, "index": 0}
        if fin:
            cand["finishReason"] = fin
        i, o = self.usage_in(), max(1, len(self.text) // 4)
        return (None, {"candidates": [cand], "modelVersion": self.model, "responseId": self.id,
                       "usageMetadata": {"promptTokenCount": i, "candidatesTokenCount": o, "totalTokenCount": i + o}})

    def say(self, s):
        self.text += s
        self.parts.append({"text": s})
        return [self.chunk([{"text": s}])]

    def think(self, s):
        return [self.chunk([{"text": s, "thought": True}])]

    def tool(self, name, args, tool):
        p = {"functionCall": {"id": rid("fc"), "name": name, "args": args if isinstance(args, dict) else {"broken": args}},
             "thoughtSignature": "bW9jaw=="}
        self.parts.append(p)
        return [self.chunk([p])]

    def end(self, why):
        fin = {"tool": "STOP", "stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[why]
        self.fin = fin
        return [self.chunk([{"text": ""}], fin)]

    def whole(self):
        return self.chunk(self.parts or [{"text": ""}], self.fin)[1]


MODELS = ["mock-model", "mock-small"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "mock-llm"

    def log_message(self, *a):
        pass

    # -- helpers
    def send_json(self, obj, code=200, extra=()):
        raw = json.dumps(obj).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        for k, v in extra:
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(raw)

    def gone(self, wait):
        """Waits, and tells whether the client has hung up meanwhile."""
        end = time.time() + wait
        while True:
            left = end - time.time()
            r, _, _ = select.select([self.connection], [], [], max(0, min(left, 0.25)))
            if r:
                try:
                    if self.connection.recv(1, socket.MSG_PEEK) == b"":
                        return True
                except OSError:
                    return True
                if left <= 0:
                    return False
                time.sleep(max(0, min(left, 0.05)))
            if left <= 0:
                return False

    # -- GET
    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/")
        if path == "/__log":
            with STATE["lock"]:
                raw = "".join(json.dumps(x) + "\n" for x in STATE["log"]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            return
        if path == "/__last":
            return self.send_json(STATE["last"])
        note(get=self.path, ua=self.headers.get("user-agent", ""))
        if path.endswith("/models"):
            if "v1beta" in path:
                return self.send_json({"models": [{"name": "models/" + m, "displayName": m, "inputTokenLimit": 1000000,
                                                   "outputTokenLimit": 8192, "supportedGenerationMethods": ["generateContent"]}
                                                  for m in MODELS]})
            return self.send_json({"object": "list", "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1],
                                   "models": [],
                                   "data": [{"id": m, "object": "model", "type": "model", "created": 1700000000,
                                             "created_at": "2026-01-01T00:00:00Z", "display_name": m, "owned_by": "mock",
                                             "context_length": 200000} for m in MODELS]})
        m = re.search(r"/models/([^/]+)$", path)
        if m:
            return self.send_json({"id": m.group(1), "name": "models/" + m.group(1), "object": "model", "type": "model",
                                   "display_name": m.group(1), "inputTokenLimit": 1000000, "outputTokenLimit": 8192})
        if path in ("", "/healthz"):
            return self.send_json({"ok": True})
        self.send_json({"error": {"message": "mock: nothing here", "type": "not_found"}}, 404)

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    # -- POST
    def do_POST(self):
        n = int(self.headers.get("content-length") or 0)
        if (self.headers.get("transfer-encoding") or "").lower() == "chunked":
            raw = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0].strip() or b"0", 16)
                if size == 0:
                    self.rfile.readline()
                    break
                raw += self.rfile.read(size)
                self.rfile.readline()
        else:
            raw = self.rfile.read(n)
        path = self.path.split("?")[0].rstrip("/")
        if path == "/__reset":
            with STATE["lock"]:
                STATE["log"].clear()
                STATE["errors"].clear()
            return self.send_json({"ok": True})
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            note(post=self.path, bad=repr(raw[:80]), enc=self.headers.get("content-encoding"))
            return self.send_json({"error": {"message": "mock: request body is no JSON"}}, 400)
        stream_path = False
        if path.endswith("/chat/completions"):
            dialect, cls, parsed = "chat", Chat, read_chat(body)
        elif path.endswith("/responses"):
            dialect, cls, parsed = "responses", Responses, read_responses(body)
        elif path.endswith("/messages/count_tokens"):
            return self.send_json({"input_tokens": len(raw) // 4})
        elif path.endswith("/messages"):
            dialect, cls, parsed = "anthropic", Anthropic, read_anthropic(body)
        elif path.endswith(":countTokens"):
            return self.send_json({"totalTokens": len(raw) // 4})
        elif path.endswith("enerateContent"):
            stream_path = "stream" in path.rsplit(":", 1)[1]
            dialect, cls, parsed = "gemini", Gemini, read_gemini(body, stream_path)
        else:
            note(post=self.path, unknown=True, ua=self.headers.get("user-agent", ""))
            return self.send_json({"error": {"message": "mock: nothing here", "type": "not_found"}}, 404)
        turns, tools, schema, stream = parsed
        if tools:
            STATE["last"] = body
        kind, params, results, mark = find_mark(turns)
        aux = not tools
        model = body.get("model") or (re.search(r"models/([^:]+):", path) or [None, "mock-model"])[1]
        t_start = time.time()
        rec = dict(dialect=dialect, path=self.path, model=model, stream=stream, kind=kind, mark=mark, aux=aux,
                   n_turns=len(turns), n_results=len(results), tools=[t["name"] for t in tools], bytes=len(raw),
                   ua=self.headers.get("user-agent", "")[:80], roles="".join((r or "?")[0] for r, _ in turns))
        note(**rec)
        enc = cls(model, body)
        steps = script(kind, params, results, tools, aux, schema)
        started = False

        def start():
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("cache-control", "no-cache")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()

        def put(events):
            out = []
            for name, obj in events:
                line = ("event: %s\n" % name if name and dialect in ("responses", "anthropic") else "")
                out.append(line + "data: " + (obj if isinstance(obj, str) else json.dumps(obj)) + "\n\n")
            data = "".join(out).encode()
            if data:
                self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
                self.wfile.flush()

        def closed(where):
            note(event="client_closed", kind=kind, where=where, after=round(time.time() - t_start, 3))

        try:
            for st in steps:
                op = st[0]
                if op == "http":
                    self.close_connection = True
                    return self.send_json({"type": "error", "error": {"type": "api_error" if st[1] >= 500 else "invalid_request_error",
                                                                      "message": "mock error %d" % st[1], "code": st[1],
                                                                      "status": "INTERNAL"}}, st[1])
                if op == "quiet" and st[1]:
                    while not self.gone(1.0):
                        pass
                    closed("before headers")
                    self.close_connection = True
                    return
                if not started:
                    started = True
                    if stream:
                        start()
                        put(enc.begin())
                    else:
                        enc.begin()
                if op == "text":
                    ev = enc.say(st[1])
                elif op == "think":
                    ev = enc.think(st[1])
                elif op == "tool":
                    ev = enc.tool(st[1], st[2], st[3])
                    note(event="tool_call", name=st[1], args=st[2])
                elif op == "stop":
                    ev = enc.end(st[1])
                elif op == "sleep":
                    if self.gone(st[1]):
                        closed("mid stream")
                        self.close_connection = True
                        return
                    continue
                elif op == "cut":
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    note(event="cut", kind=kind)
                    return
                elif op == "quiet":
                    while not self.gone(1.0):
                        pass
                    closed("mid stream")
                    self.close_connection = True
                    return
                if stream:
                    put(ev)
            if stream:
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()
            else:
                self.send_json(enc.whole())
        except (BrokenPipeError, ConnectionResetError):
            closed("on write")
            self.close_connection = True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--port", type=int, default=18080)
    ap.add_argument("--log", help="append every request's summary to this file")
    a = ap.parse_args()
    if a.log:
        STATE["logfile"] = open(a.log, "a")
    srv = ThreadingHTTPServer(("127.0.0.1", a.port), Handler)
    srv.daemon_threads = True
    print("mock llm on http://127.0.0.1:%d" % srv.server_address[1], flush=True)
    try:
        srv.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
