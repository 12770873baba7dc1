"""Fills a server with something of everything, and writes what a fuzzer needs to know of it as JSON to stdout.

usage: prepare.py URL
"""

import json
import os
import sys
import urllib.request

URL = sys.argv[1]


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json",
               "Authorization": "Bearer " + os.environ["TAPEDECK_FUZZ_TOKEN"]}
    request = urllib.request.Request(URL + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def claimed(session, prompt, executor):
    call("POST", f"/sessions/{session}/prompt", {"prompt": prompt})
    claim = call("POST", "/executor/runs/claim", {"executor_id": executor, "session_id": session, "lease_seconds": 300})
    proof = {"executor_id": executor, "claim_token": claim["claim_token"]}
    run = claim["run_id"]
    call("POST", f"/executor/runs/{run}/heartbeat", dict(proof, lease_seconds=300))
    events = [
        {"event_id": "e1", "event": "StreamDelta", "data": {"content": "hello", "role": "assistant"}},
        {"event_id": "e2", "event": "ToolCallDelta", "data": {"call_id": "c1", "tool_name": "shell", "arguments": {"command": "ls"}}},
        {"event_id": "e3", "event": "ToolResultDelta", "data": {"call_id": "c1", "display_result": "a.txt", "is_error": False}},
    ]
    call("POST", f"/executor/runs/{run}/events", dict(proof, events=events))
    return run, proof


def settled(session, prompt, executor):
    run, proof = claimed(session, prompt, executor)
    call("POST", f"/executor/runs/{run}/snapshot", dict(proof, messages=[{"role": "user", "content": prompt}]))
    call("POST", f"/executor/runs/{run}/artifacts", dict(proof, artifacts=[
        {"name": name, "media_type": "application/json", "content": json.dumps({
            "base": "0" * 40, "head": "1" * 40, "files": [], "file_count": 0, "additions": 0, "deletions": 0, "truncated": False})}
        for name in ("run.diff", "session.diff")]))
    call("POST", f"/executor/runs/{run}/complete", dict(proof, status="completed", result={"answer": 42}, event_count=3))
    return run


def main():
    sessions, runs, checkpoints, claims, interactions = [], [], [], [], []
    for number in range(3):
        session = call("POST", "/sessions", {"title": f"session {number}"})["session_id"]
        sessions.append(session)
        runs.append(settled(session, "look", "e-settled"))
        checkpoints.append(call("POST", f"/sessions/{session}/checkpoints", {"label": "here"})["checkpoint_id"])
    for number in range(8):
        session = call("POST", "/sessions", {"title": f"busy {number}"})["session_id"]
        sessions.append(session)
        run, proof = claimed(session, "go on", f"e-{number}")
        runs.append(run)
        asked = call("POST", f"/executor/runs/{run}/approval", dict(
            proof, request_id="q1", tool_name="shell", arguments={"command": "rm x"}, wait_seconds=0))
        interactions.append(asked["interaction_id"])
        claims.append(dict(proof, run_id=run))
    rule = call("POST", "/approval-rules", {"tool_name": "read*", "decision": "allow"})["rule_id"]
    token = call("POST", "/tokens", {"name": "prepared", "role": "client"})["token_id"]
    json.dump({
        "session_id": sessions, "run_id": runs, "checkpoint_id": checkpoints, "interaction_id": interactions,
        "rule_id": [rule], "token_id": [token], "executor_id": ["e-settled", "e-0"], "claims": claims,
    }, sys.stdout)


main()
