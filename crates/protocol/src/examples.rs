//! An example of each request that people and executors write, for the document of the interface. Each
//! is one that is taken.

use serde_json::{Value, json};

macro_rules! examples {
    ($($type:ident($($with:expr)?) = $example:tt,)*) => {
        /// Requests by the name of their schema.
        pub fn requests() -> Vec<(&'static str, Value)> {
            vec![$((stringify!($type), json!($example)),)*]
        }

        #[cfg(test)]
        mod tests {
            use serde_json::json;
            use tapedeck_domain::RunId;

            use crate::checkpoint::{CreateCheckpointRequest, ForkRequest};
            use crate::executor::{
                ApprovalRequest, ClaimRunRequest, CompleteRequest, HeartbeatRequest, QuestionRequest,
                LeaveRequest, ReleaseRequest, SnapshotRequest, TapeRequest, UploadRequest,
            };
            use crate::interaction::{ApproveRequest, ResolveRequest};
            use crate::rule::CreateRuleRequest;
            use crate::run::{PromptRequest, ResumeRequest};
            use crate::session::{CreateSessionRequest, UpdateSessionRequest};
            use crate::token::CreateTokenRequest;

            fn run_id() -> RunId {
                "018f0000-0000-7000-8000-000000000001".parse().unwrap()
            }

            #[test]
            fn each_example_is_a_request_that_is_taken() {
                $(
                    let request: $type = serde_json::from_value(json!($example)).unwrap();
                    let checked = request.check($($with)?);
                    assert!(checked.is_ok(), "{}: {:?}", stringify!($type), checked.err());
                )*
            }
        }
    };
}

examples! {
    CreateSessionRequest() = {
        "title": "Fix the flaky test",
        "run_target": {
            "workspace": {"kind": "local_path", "path": "/home/ada/code/shop"},
            "executor": {"pool": "default", "labels": {"os": "linux"}},
            "constraints": {"max_run_seconds": 3600}
        },
        "approval_policy": "interactive"
    },
    UpdateSessionRequest() = {"title": "Fix the flaky tests"},
    PromptRequest() = {"prompt": "Fix the flaky test in checkout", "on_active": "enqueue"},
    ResumeRequest() = {"prompt": "Go on, and run the tests at the end"},
    CreateCheckpointRequest() = {"label": "before the refactoring"},
    ForkRequest() = {"session_seq": 42, "title": "Another way"},
    ResolveRequest() = {"approved": true, "scope": "session", "feedback": "go ahead"},
    ApproveRequest() = {"request_id": "q1", "approved": true},
    CreateTokenRequest() = {"name": "ci", "role": "client", "expires_in_seconds": 2_592_000},
    CreateRuleRequest() = {
        "tool_name": "shell",
        "arguments": {"fields": {"command": "git *"}},
        "decision": "allow"
    },
    ClaimRunRequest() = {
        "executor_id": "laptop",
        "claim_request_id": "9f2c1f2e6b0d4b7f8a51e6a6c0d7b3e2",
        "pool": "default",
        "labels": {"os": "linux"},
        "lease_seconds": 60,
        "wait_seconds": 30,
        "max_runs": 2
    },
    HeartbeatRequest() = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "lease_seconds": 60,
        "wait_seconds": 20
    },
    UploadRequest() = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "events": [
            {"event_id": "1-1", "event": "StreamDelta", "data": {"content": "Looking.", "role": "assistant"}},
            {"event_id": "1-2", "event": "ToolCallDelta",
             "data": {"call_id": "c1", "tool_name": "shell", "arguments": {"command": "cargo test"}}},
            {"event_id": "1-3", "event": "ToolResultDelta",
             "data": {"call_id": "c1", "display_result": "ok", "is_error": false}}
        ]
    },
    ApprovalRequest() = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "request_id": "q1",
        "tool_name": "shell",
        "tool_kind": "execute",
        "arguments": {"command": "cargo publish"},
        "call_id": "c2",
        "wait_seconds": 20
    },
    QuestionRequest() = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "request_id": "q2",
        "message": "Which branch?",
        "form": {
            "type": "object",
            "properties": {"branch": {"type": "string", "title": "Branch"}},
            "required": ["branch"]
        }
    },
    SnapshotRequest() = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "messages": [{"role": "user", "content": "Fix the flaky test in checkout"}]
    },
    TapeRequest(run_id()) = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "tape_entries": [{"kind": "assistant_message", "payload": {"text": "Done."}}]
    },
    CompleteRequest(run_id()) = {
        "executor_id": "laptop",
        "claim_token": "1.4f1d0f6c2b",
        "status": "completed",
        "result": {"stop_reason": "end_turn"},
        "event_count": 3
    },
    ReleaseRequest() = {"executor_id": "laptop", "claim_token": "1.4f1d0f6c2b"},
    LeaveRequest() = {"executor_id": "laptop", "worker_instance_id": "laptop-4711"},
}
