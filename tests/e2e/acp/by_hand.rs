//! An editor whose runs are executed by hand, for what the demo agent doesn't do, or by nobody.

use std::process::Stdio;
use std::sync::Arc;

use agent_client_protocol::v1::schema::{
    ElicitationAction, NewSessionRequest, SetSessionConfigOptionRequest, StopReason,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::LIMIT;
use super::editor::Editor;
use crate::server::{ExecutorOptions, Place, Server, executor};
use crate::wait::within;

#[tokio::test]
async fn a_form_is_filled_in_at_the_editor() {
    // The demo agent has no forms: an executor is played by hand.
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let editor = Editor::start(&place, &["--server", &server.url()]).await;
    let session = editor.session(&place).await;
    let running = editor.prompt(&session, "go");
    let (reason, ()) = tokio::join!(running, async {
        let body =
            json!({"executor_id": "hand", "session_id": session.0.as_ref(), "wait_seconds": 30});
        let claim = server.post("/executor/runs/claim", &body).await.ok();
        let run = claim["run_id"].as_str().unwrap();
        let (token, path) = (&claim["claim_token"], format!("/executor/runs/{run}"));
        let form = json!({"type": "object", "properties": {"name": {"type": "string",
            "title": "Name"}}, "required": ["name"]});
        let question = json!({"executor_id": "hand", "claim_token": token, "request_id": "q",
            "message": "What is it called?", "form": form, "wait_seconds": 30});
        let ask = format!("{path}/question");
        let asking = server.post(&ask, &question);
        let accepted: ElicitationAction =
            serde_json::from_value(json!({"action": "accept", "content": {"name": "x"}})).unwrap();
        let (answer, request) = tokio::join!(asking, editor.fills_in(accepted));
        assert_eq!(request.message, "What is it called?");
        assert_eq!(
            answer.json()["response"],
            json!({"name": "x"}),
            "{}",
            answer.text()
        );
        let done = json!({"executor_id": "hand", "claim_token": token, "status": "completed",
            "result": {"stop_reason": "max_tokens"}});
        server.post(&format!("{path}/complete"), &done).await.ok();
    });
    assert_eq!(reason.unwrap(), StopReason::MaxTokens);
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn what_the_agent_offers_is_chosen_at_the_editor_and_what_the_editor_gives_reaches_the_agent()
{
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let editor = Editor::start(&place, &["--server", &server.url()]).await;
    let tools = json!([{"name": "files", "command": "/bin/files", "args": ["-v"],
        "env": [{"name": "A", "value": "b"}]}]);
    let request =
        json!({"cwd": place.work(), "additionalDirectories": ["/lib"], "mcpServers": tools});
    let request: NewSessionRequest = serde_json::from_value(request).unwrap();
    let session = editor.ask(request).await.unwrap().session_id;
    let running = editor.prompt(&session, "go");
    let options = |effort: &str, mode: &str| {
        json!([
            {"id": "effort", "name": "Effort", "type": "select", "currentValue": effort,
                "options": [{"value": "low", "name": "Low"}, {"value": "high", "name": "High"}]},
            {"id": "way", "name": "Way", "category": "mode", "type": "select", "currentValue": mode,
                "options": [{"value": "ask", "name": "Ask"}, {"value": "plan", "name": "Plan"}]},
        ])
    };
    let (reason, ()) = tokio::join!(running, async {
        let body =
            json!({"executor_id": "hand", "session_id": session.0.as_ref(), "wait_seconds": 30});
        let claim = server.post("/executor/runs/claim", &body).await.ok();
        let expected = json!({"additional_directories": ["/lib"], "mcp_servers": tools});
        assert_eq!(claim["agent"], expected);
        let path = format!("/executor/runs/{}", claim["run_id"].as_str().unwrap());
        let told = json!({"executor_id": "hand", "claim_token": claim["claim_token"], "events": [
            {"event_id": "1", "event": "agent.options", "data": {"options": options("low", "ask")}}]});
        server.post(&format!("{path}/events"), &told).await.ok();
        let done = json!({"executor_id": "hand", "claim_token": claim["claim_token"],
            "status": "completed", "result": {"stop_reason": "refusal"}});
        server.post(&format!("{path}/complete"), &done).await.ok();
    });
    assert_eq!(reason.unwrap(), StopReason::Refusal);
    let told = editor.updates(&session);
    let update = told
        .iter()
        .rfind(|update| update["sessionUpdate"] == "config_option_update");
    let shown = update.unwrap()["configOptions"].as_array().unwrap();
    let ids: Vec<_> = shown
        .iter()
        .map(|option| option["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["tapedeck.approvals", "effort", "way"]);
    let choose = async |option: &'static str, value: &'static str| {
        let request = SetSessionConfigOptionRequest::new(session.clone(), option, value);
        let answer = editor.ask(request).await.unwrap();
        serde_json::to_value(answer.config_options).unwrap()
    };
    choose("effort", "high").await;
    let answer = choose("way", "plan").await;
    assert_eq!(
        json!(answer.as_array().unwrap()[1..]),
        options("high", "plan")
    );
    let agent = server.get(&format!("/sessions/{session}")).await.ok()["agent"].clone();
    assert_eq!(
        (&agent["options"], &agent["mode"]),
        (&json!({"effort": "high"}), &json!("plan"))
    );
    // A choice is still one when the session is loaded, and the editor's new word on servers counts.
    let loaded = editor.load(&place, &session).await.unwrap();
    let loaded = serde_json::to_value(loaded.config_options).unwrap();
    assert_eq!(
        json!(loaded.as_array().unwrap()[1..]),
        options("high", "plan")
    );
    let agent = server.get(&format!("/sessions/{session}")).await.ok()["agent"].clone();
    assert_eq!(
        agent,
        json!({"options": {"effort": "high"}, "mode": "plan"})
    );
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_run_that_nobody_takes_says_why_and_can_be_cancelled() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let editor = Editor::start(&place, &["--server", &server.url()]).await;
    let session = editor.session(&place).await;
    let running = editor.prompt(&session, "say hello");
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&session, "The run waits: no executor").await;
        editor.cancel(&session);
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn an_editor_that_reads_no_more_or_has_left_a_silent_server_ends_the_agent_well() {
    // It accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let place = Place::new();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": 1, "clientCapabilities": {}}});
    let new = json!({"jsonrpc": "2.0", "id": 2, "method": "session/new",
        "params": {"cwd": place.work(), "mcpServers": []}});
    for reads in [true, false] {
        let mut command = place.command(&["acp", "--server", &url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        stdin
            .write_all(format!("{hello}\n").as_bytes())
            .await
            .unwrap();
        if reads {
            let mut lines = BufReader::new(stdout).lines();
            within("hello", LIMIT, lines.next_line())
                .await
                .unwrap()
                .unwrap();
            stdin
                .write_all(format!("{new}\n").as_bytes())
                .await
                .unwrap();
            drop(stdin);
        } else {
            drop(stdout);
        }
        let status = within("the agent ends", LIMIT, child.wait()).await;
        assert_eq!(status.unwrap().code(), Some(0), "reads: {reads}");
    }
}

/// An editor that writes what no client of the protocol would.
struct Raw {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Raw {
    fn start(place: &Place, url: &str) -> Self {
        let mut command = place.command(&["acp", "--server", url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        }
    }

    async fn writes(&mut self, line: impl std::fmt::Display) {
        let line = format!("{line}\n");
        self.stdin.write_all(line.as_bytes()).await.unwrap();
    }

    /// The next message that is wanted.
    async fn reads(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = within("a line", LIMIT, self.lines.next_line()).await;
            let message = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
            if is_wanted(&message) {
                return message;
            }
        }
    }

    async fn asks(&mut self, id: u32, method: &str, params: &Value) -> Value {
        self.writes(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        self.reads(|message| message["id"] == id).await
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_and_no_question_is_lost_by_it() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let _executor = executor(&place, &server.url(), &ExecutorOptions::named("x"));
    let mut raw = Raw::start(&place, &server.url());
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    raw.asks(1, "initialize", &hello).await;
    for (line, code) in [
        ("garbage", -32700),
        ("[]", -32600),
        (
            r#"[{"jsonrpc":"2.0","id":9,"method":"session/list"}]"#,
            -32600,
        ),
        (r#"{"foo":1}"#, -32600),
    ] {
        raw.writes(line).await;
        let answer = raw.reads(|message| message["id"].is_null()).await;
        assert_eq!(answer["error"]["code"], code, "{line}");
    }
    for cursor in ["x".repeat(200_000), "nonsense".to_owned()] {
        let listed = raw
            .asks(2, "session/list", &json!({"cursor": cursor}))
            .await;
        assert_eq!(listed["error"]["code"], -32602, "{listed}");
    }
    let new = json!({"cwd": place.work(), "mcpServers": []});
    let session = raw.asks(3, "session/new", &new).await["result"]["sessionId"].clone();
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "ask edit {}"}]});
    raw.writes(json!({"jsonrpc": "2.0", "id": 4, "method": "session/prompt", "params": prompt}))
        .await;
    let asked = raw
        .reads(|message| message["method"] == "session/request_permission")
        .await;
    raw.writes(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": "perhaps"}}))
        .await;
    let told = raw
        .reads(|message| message.to_string().contains("tapedeck approvals approve"))
        .await;
    let text = told["params"]["update"]["content"]["text"]
        .as_str()
        .unwrap();
    let id = text.split_whitespace().last().unwrap();
    let id = id.trim_end_matches(['`', '.']);
    let approve = ["approvals", "approve", id, "--server", &server.url()];
    place.run(&approve).await.exits(0);
    let ended = raw.reads(|message| message["id"] == 4).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
}
