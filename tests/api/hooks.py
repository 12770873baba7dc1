"""What the fuzzer can't guess: identifiers that exist, proofs of claims that live, and streams that end.

`TAPEDECK_FUZZ_KNOWN` holds them as JSON, see prepare.py. One case in four keeps what was generated, so that unknown
identifiers and broken proofs are tried as well.
"""

import json
import os
import random

import schemathesis

KNOWN = json.load(open(os.environ["TAPEDECK_FUZZ_KNOWN"]))
CHOICES = random.Random(int(os.environ.get("TAPEDECK_FUZZ_SEED", "1")))


def keeps_generated():
    return CHOICES.random() < 0.25


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if not path_parameters or keeps_generated():
        return path_parameters
    for name in path_parameters:
        known = KNOWN.get(name)
        if known:
            path_parameters[name] = CHOICES.choice(known)
    path = context.operation.path
    if path.startswith("/executor/runs/{run_id}"):
        path_parameters["run_id"] = CHOICES.choice(KNOWN["claims"])["run_id"]
    return path_parameters


@schemathesis.hook
def before_call(context, case, kwargs):
    # Answers in JSON end; streams go on until their run or the session does.
    headers = case.headers
    if case.operation.path.endswith(("/events", "/display-events", "/prompt", "/resume")):
        headers["Accept"] = "application/json"
    parameters = case.path_parameters or {}
    claims = [claim for claim in KNOWN["claims"] if claim["run_id"] == parameters.get("run_id")]
    if claims and isinstance(case.body, dict) and not keeps_generated():
        case.body.pop("worker_id", None)
        case.body["executor_id"] = claims[0]["executor_id"]
        case.body["claim_token"] = claims[0]["claim_token"]
    # Nothing waits: the fuzzer has many cases and one connection. A question waits unless it says otherwise.
    if isinstance(case.body, dict) and case.operation.path.endswith(("/approval", "/question")):
        if case.body.get("wait_seconds") is None:
            case.body["wait_seconds"] = 0
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_seconds"), int):
        case.body["wait_seconds"] = min(case.body["wait_seconds"], 0) if keeps_generated() else 0
