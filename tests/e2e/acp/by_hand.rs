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
use crate::wait::{eventually, within};

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
    child: Child,
}

impl Raw {
    fn start(place: &Place, url: &str) -> Self {
        let mut command = place.command(&["acp", "--server", url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
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

    /// Opens a session in the place's directory.
    async fn session(&mut self, place: &Place) -> Value {
        let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
        self.asks(1, "initialize", &hello).await;
        let new = json!({"cwd": place.work(), "mcpServers": []});
        self.asks(2, "session/new", &new).await["result"]["sessionId"].clone()
    }

    async fn prompts(&mut self, id: u32, session: &Value, text: &str) {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        self.writes(
            json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt",
            "params": params}),
        )
        .await;
    }

    /// Writes no more, and reads what still comes.
    async fn leaves(self) -> Vec<Value> {
        let Self {
            stdin,
            mut lines,
            mut child,
        } = self;
        drop(stdin);
        let mut last = Vec::new();
        while let Some(line) = within("a line", LIMIT, lines.next_line()).await.unwrap() {
            last.push(serde_json::from_str(&line).unwrap());
        }
        let status = within("the agent ends", LIMIT, child.wait()).await;
        assert!(status.unwrap().success());
        last
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
    let session = raw.session(&place).await;
    let long = "x".repeat(40 << 20);
    for (line, code) in [
        ("garbage", -32700),
        (&long, -32700),
        ("[]", -32600),
        (
            r#"[{"jsonrpc":"2.0","id":9,"method":"session/list"}]"#,
            -32600,
        ),
        (r#"{"foo":1}"#, -32600),
    ] {
        raw.writes(line).await;
        let answer = raw.reads(|message| message["id"].is_null()).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer.to_string().len() < 10_000);
    }
    for cursor in ["x".repeat(200_000), "nonsense".to_owned()] {
        let listed = raw
            .asks(2, "session/list", &json!({"cursor": cursor}))
            .await;
        assert_eq!(listed["error"]["code"], -32602, "{listed}");
    }
    raw.prompts(4, &session, "ask edit {}").await;
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

#[tokio::test]
async fn what_an_editor_writes_last_is_done_although_it_has_gone() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let _executor = executor(&place, &server.url(), &ExecutorOptions::named("x"));
    let ended = async |session: &Value, status: &str| {
        let path = format!("/sessions/{}", session.as_str().unwrap());
        eventually("the session's run has ended so", LIMIT, async || {
            let session = server.get(&path).await.ok();
            (session["status"] == status && session["active_run_id"].is_null()).then_some(())
        })
        .await;
    };
    let notice =
        |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    // A cancel.
    let mut raw = Raw::start(&place, &server.url());
    let session = raw.session(&place).await;
    raw.prompts(3, &session, "say begun; slow 600").await;
    raw.reads(|message| message.to_string().contains("tick 1"))
        .await;
    raw.writes(notice("session/cancel", json!({"sessionId": session})))
        .await;
    raw.leaves().await;
    ended(&session, "cancelled").await;
    // An answer, and an answer to the last request.
    let mut raw = Raw::start(&place, &server.url());
    let session = raw.session(&place).await;
    raw.prompts(3, &session, "ask edit {}").await;
    let asked = raw
        .reads(|message| message["method"] == "session/request_permission")
        .await;
    let no = json!({"outcome": {"outcome": "selected", "optionId": "reject-once"}});
    raw.writes(json!({"jsonrpc": "2.0", "id": asked["id"], "result": no}))
        .await;
    raw.writes(json!({"jsonrpc": "2.0", "id": 4, "method": "session/list", "params": {}}))
        .await;
    let last = raw.leaves().await;
    assert!(last.iter().any(|message| message["id"] == 4), "{last:?}");
    ended(&session, "completed").await;
    // A prompt.
    let mut raw = Raw::start(&place, &server.url());
    let session = raw.session(&place).await;
    raw.prompts(3, &session, "write late.txt x").await;
    raw.leaves().await;
    ended(&session, "completed").await;
    assert!(place.work().join("late.txt").exists());
}

#[tokio::test]
async fn a_session_that_is_opened_twice_at_once_and_another_ones_run_are_told_of() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let _executor = executor(&place, &server.url(), &ExecutorOptions::named("x"));
    let mut raw = Raw::start(&place, &server.url());
    let session = raw.session(&place).await;
    let load = |id: u32| {
        json!({"jsonrpc": "2.0", "id": id, "method": "session/load",
            "params": {"sessionId": session, "cwd": place.work(), "mcpServers": []}})
    };
    raw.writes(format!("{}\n{}", load(3), load(4))).await;
    let mut codes = Vec::new();
    for _ in 0..2 {
        let answer = raw.reads(|message| message["id"].is_number()).await;
        codes.push(answer["error"]["code"].as_i64());
    }
    codes.sort_unstable();
    assert_eq!(codes, [None, Some(-32600)]);

    let id = session.as_str().unwrap();
    let body = json!({"prompt": "ask edit {}; say over"});
    server.post(&format!("/sessions/{id}/prompt"), &body).await;
    let asked = raw
        .reads(|message| message["method"] == "session/request_permission")
        .await;
    // It isn't this editor's turn, so this ends nothing.
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    raw.writes(json!({"jsonrpc": "2.0", "id": asked["id"], "result": cancelled}))
        .await;
    raw.reads(|message| message.to_string().contains("has not answered"))
        .await;
    let list = ["approvals", "list", "--json", "--server", &server.url()];
    let open = place.run(&list).await.exits(0).json_lines().remove(0);
    let question = open["interactions"][0]["interaction_id"].as_str().unwrap();
    let approve = ["approvals", "approve", question, "--server", &server.url()];
    place.run(&approve).await.exits(0);
    let is_over = |message: &Value| {
        let update = &message["params"]["update"];
        let state = &update["_meta"]["tapedeck"];
        update["sessionUpdate"] == "session_info_update"
            && state.get("activeRunId").is_some_and(Value::is_null)
    };
    raw.reads(is_over).await;
    raw.leaves().await;
}
