//! An editor with a server: a whole conversation, errors, and a server that restarts in the middle.

use agent_client_protocol::v1::schema::{
    CloseSessionRequest, ListSessionsRequest, NewSessionRequest, ResumeSessionRequest, SessionId,
    SetSessionModeRequest, StopReason,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::editor::texts;
use super::{LIMIT, Stage, ended};
use crate::wait::{eventually, within};

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates
        .iter()
        .map(|update| update["sessionUpdate"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_conversation_is_told_and_told_the_same_when_it_is_loaded() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let capabilities = serde_json::to_value(&editor.hello.agent_capabilities).unwrap();
    assert_eq!(capabilities["loadSession"], true);
    for name in ["list", "resume", "close", "additionalDirectories"] {
        assert!(
            capabilities["sessionCapabilities"][name].is_object(),
            "{name}: {capabilities}"
        );
    }
    assert!(capabilities["sessionCapabilities"]["delete"].is_null());
    let session = editor.session(&stage.place).await;
    let script = "think hm; say hello; plan a | b; tool read {\"path\":\"x\"}; usage; say bye";
    ended(editor.prompt(&session, script).await);
    let live = editor.updates(&session);
    let told = kinds(&live);
    let of_agent: Vec<_> = told
        .iter()
        .filter(|kind| **kind != "session_info_update")
        .collect();
    assert_eq!(of_agent[0], &"agent_thought_chunk", "{told:?}");
    for kind in [
        "agent_message_chunk",
        "plan",
        "tool_call",
        "tool_call_update",
        "usage_update",
    ] {
        assert!(told.contains(&kind), "{kind} in {told:?}");
    }
    assert_eq!(editor.said(&session), "hellobye");
    ended(editor.prompt(&session, "say more; noise; say on").await);

    // Another editor, or the same one later.
    let again = stage.editor().await;
    again.load(&stage.place, &session).await.unwrap();
    let replayed = again.updates(&session);
    assert_eq!(
        texts(&replayed, "user_message_chunk"),
        format!("{script}say more; noise; say on")
    );
    let without = |updates: &[Value]| -> Vec<Value> {
        let own = ["user_message_chunk", "session_info_update"];
        let told = updates.iter();
        told.filter(|update| !own.contains(&update["sessionUpdate"].as_str().unwrap()))
            .cloned()
            .collect()
    };
    // Ids and all.
    assert_eq!(without(&replayed), without(&editor.updates(&session)));
    let ids = replayed
        .iter()
        .filter(|update| update["content"]["text"].is_string());
    assert!(ids.clone().count() > 4);
    assert!(
        ids.into_iter()
            .all(|update| update["messageId"].is_string())
    );
    assert!(again.leaves().await.success());
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_person_at_the_editor_answers_the_agents_questions() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    let asking = editor.prompt(&session, "ask edit {\"path\":\"a\"}; say on");
    let answering = async {
        let asked = editor.asked().await;
        let call = asked.request.tool_call.tool_call_id.0.to_string();
        let told = editor.updates(&session);
        let known = told.iter().any(|update| {
            update["sessionUpdate"] == "tool_call" && update["toolCallId"] == json!(call)
        });
        assert!(known, "the call is told before it is asked about: {told:?}");
        let options = serde_json::to_value(&asked.request.options).unwrap();
        let kinds: Vec<_> = options
            .as_array()
            .unwrap()
            .iter()
            .map(|option| &option["kind"])
            .collect();
        assert_eq!(
            kinds,
            ["allow_once", "allow_always", "allow_always", "reject_once"]
        );
        asked.choose("allow-session");
    };
    let (reason, ()) = tokio::join!(asking, answering);
    ended(reason);
    assert!(editor.said(&session).contains("was allowed"));
    // For the session it need not be asked again.
    ended(editor.prompt(&session, "ask edit {\"path\":\"a\"}").await);
    assert_eq!(editor.open_questions(), 0);
    let refusing = editor.prompt(&session, "ask shell {\"command\":\"b\"}; say still");
    let (reason, ()) = tokio::join!(refusing, async {
        editor.asked().await.choose("reject-once");
    });
    ended(reason);
    assert!(editor.said(&session).contains("not allowed"));
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_cancel_is_answered_after_the_last_update_and_is_harmless_when_idle() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    editor.cancel(&session);
    ended(editor.prompt(&session, "say first").await);
    editor.cancel(&session);
    let running = editor.prompt(&session, "begin tool {}; slow 600");
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&session, "tick 2").await;
        let busy = editor.prompt(&session, "say no").await.unwrap_err();
        assert_eq!(i32::from(busy.code), -32600, "{busy:?}");
        assert!(busy.message.contains("in progress"), "{busy:?}");
        editor.cancel(&session);
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    let told = editor.updates(&session);
    let call = told
        .iter()
        .rfind(|update| update["toolCallId"].is_string())
        .unwrap();
    assert_eq!(call["status"], "failed", "no call is left open");
    // A question in a turn that is cancelled is taken back by either side.
    let asking = editor.prompt(&session, "ask edit {}");
    let (reason, ()) = tokio::join!(asking, async {
        let asked = editor.asked().await;
        asked.answer(agent_client_protocol::v1::schema::RequestPermissionOutcome::Cancelled);
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    let asking = editor.prompt(&session, "ask edit {}");
    let (reason, ()) = tokio::join!(asking, async {
        let asked = editor.asked().await;
        editor.cancel(&session);
        asked.withdrawn().await;
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    ended(editor.prompt(&session, "say alive").await);
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn what_cannot_be_done_is_an_error_of_its_kind() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let unknown = SessionId::new("018f0000-0000-7000-8000-000000000001");
    let odd = SessionId::new("no-id-of-ours");
    for id in [&unknown, &odd] {
        let code = |error: agent_client_protocol::Error| i32::from(error.code);
        assert_eq!(editor.prompt(id, "say x").await.map_err(code), Err(-32002));
        let loaded = editor.load(&stage.place, id).await;
        assert_eq!(loaded.map(drop).map_err(code), Err(-32002));
        let resumed = ResumeSessionRequest::new(id.clone(), stage.place.work());
        assert_eq!(
            editor.ask(resumed).await.map(drop).map_err(code),
            Err(-32002)
        );
        let closed = CloseSessionRequest::new(id.clone());
        assert_eq!(
            editor.ask(closed).await.map(drop).map_err(code),
            Err(-32002)
        );
        editor.cancel(id);
    }
    let relative = editor
        .ask(NewSessionRequest::new("work"))
        .await
        .unwrap_err();
    assert_eq!(i32::from(relative.code), -32602);
    let relative = ListSessionsRequest::new().cwd(std::path::PathBuf::from("work"));
    assert_eq!(
        i32::from(editor.ask(relative).await.unwrap_err().code),
        -32602
    );
    let cursor = ListSessionsRequest::new().cursor("nonsense".to_owned());
    assert_eq!(
        i32::from(editor.ask(cursor).await.unwrap_err().code),
        -32602
    );
    let session = editor.session(&stage.place).await;
    let empty = editor.prompt(&session, "  ").await.unwrap_err();
    assert_eq!(i32::from(empty.code), -32602);
    let mode = SetSessionModeRequest::new(session.clone(), "bold");
    assert_eq!(i32::from(editor.ask(mode).await.unwrap_err().code), -32602);
    let failed = editor
        .prompt(&session, "say before; fail no luck")
        .await
        .unwrap_err();
    assert_eq!(i32::from(failed.code), -32603);
    assert!(failed.message.contains("no luck"), "{failed:?}");
    // A failure is no part of what the agent says.
    assert_eq!(editor.said(&session), "before");
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn sessions_are_listed_by_directory_and_by_page_and_closing_ends_the_turn() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let elsewhere = stage.place.work().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let session = editor.session(&stage.place).await;
    ended(editor.prompt(&session, "say hello there").await);
    let other = editor
        .ask(NewSessionRequest::new(&elsewhere))
        .await
        .unwrap()
        .session_id;
    // One that works nowhere that an editor could open.
    stage
        .server
        .post("/sessions", &json!({"title": "scratch"}))
        .await;
    let listed = |cwd: Option<std::path::PathBuf>| async {
        let list = editor
            .ask(ListSessionsRequest::new().cwd(cwd))
            .await
            .unwrap();
        let ids = list.sessions.iter().map(|info| info.session_id.clone());
        (ids.collect::<Vec<_>>(), list)
    };
    assert_eq!(listed(None).await.0, [other.clone(), session.clone()]);
    assert_eq!(
        listed(Some(elsewhere)).await.0,
        std::slice::from_ref(&other)
    );
    let (ids, list) = listed(Some(stage.place.work())).await;
    assert_eq!(ids, std::slice::from_ref(&session));
    assert_eq!(list.sessions[0].title.as_deref(), Some("say hello there"));
    assert!(list.sessions[0].updated_at.is_some());
    assert_eq!(list.next_cursor, None);

    let running = editor.prompt(&other, "slow 600");
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&other, "tick 1").await;
        editor
            .ask(CloseSessionRequest::new(other.clone()))
            .await
            .unwrap();
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    eventually("the run is cancelled", LIMIT, async || {
        let runs = stage.runs(&other.0).await;
        (runs[0]["status"] == "cancelled").then_some(())
    })
    .await;
    let closed = editor.prompt(&other, "say x").await.unwrap_err();
    assert_eq!(i32::from(closed.code), -32002, "{closed:?}");
    // Nothing is lost by closing.
    editor.load(&stage.place, &other).await.unwrap();
    ended(editor.prompt(&other, "say again").await);
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_long_list_comes_in_pages_and_each_session_once() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let (here, there) = (stage.place.work(), stage.place.path("there"));
    let mut made = Vec::new();
    for number in 0..230 {
        let path = if number % 10 == 0 { &there } else { &here };
        let body = json!({"repo_path": path, "title": format!("{number}")});
        let session = stage.server.post("/sessions", &body).await.ok();
        made.push((
            path.clone(),
            session["session_id"].as_str().unwrap().to_owned(),
        ));
    }
    for cwd in [
        None,
        Some(here.clone()),
        Some(there.clone()),
        Some(stage.place.data()),
    ] {
        let mut listed = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let request = ListSessionsRequest::new().cwd(cwd.clone()).cursor(cursor);
            let page = editor.ask(request).await.unwrap();
            listed.extend(
                page.sessions
                    .iter()
                    .map(|info| info.session_id.0.to_string()),
            );
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        let wanted = made.iter().rev();
        let wanted = wanted.filter(|(path, _)| cwd.as_ref().is_none_or(|cwd| cwd == path));
        let wanted: Vec<_> = wanted.map(|(_, id)| id.clone()).collect();
        assert_eq!(listed, wanted, "{cwd:?}");
    }
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_server_that_restarts_in_the_middle_of_a_prompt_is_not_noticed() {
    let mut stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    let running = editor.prompt(&session, "slow 6; ask edit {}; say the end");
    let server = &mut stage.server;
    let (reason, ()) = tokio::join!(running, async {
        editor.hears(&session, "tick 5\n").await;
        server.restart().await;
        let asked = editor.asked().await;
        // The question is answered while the server is away: the answer must not be lost.
        server.process.kill().await;
        asked.choose("allow-once");
        server.restart().await;
    });
    ended(reason);
    let said = editor.said(&session);
    let ticks = said.matches("tick ").count();
    assert_eq!(ticks, 60, "each tick once: {said}");
    assert!(
        said.contains("was allowed") && said.ends_with("the end"),
        "{said}"
    );
    assert_eq!(stage.runs(&session.0).await.len(), 1);
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn a_run_outlives_its_editor_and_asks_the_next_one() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    let running = editor.prompt(&session, "say one; ask edit {}; say two");
    let first = tokio::select! {
        reason = running => panic!("the prompt ended: {reason:?}"),
        asked = editor.asked() => asked.request,
    };
    editor.kill().await;

    let next = stage.editor().await;
    let loaded = next.load(&stage.place, &session).await.unwrap();
    let meta = serde_json::to_value(loaded.meta).unwrap();
    let run = stage.runs(&session.0).await[0]["run_id"].clone();
    assert_eq!(meta["tapedeck"]["activeRunId"], run);
    assert_eq!(next.said(&session), "one");
    let asked = next.asked().await;
    assert_eq!(
        asked.request.tool_call.tool_call_id,
        first.tool_call.tool_call_id
    );
    asked.choose("allow-once");
    next.hears(&session, "two").await;
    ended(next.prompt(&session, "say three").await);

    // Without the past.
    next.forget();
    let resumed = ResumeSessionRequest::new(session.clone(), stage.place.work());
    next.ask(resumed).await.unwrap();
    ended(next.prompt(&session, "say four").await);
    assert_eq!(next.said(&session), "four");
    assert!(next.leaves().await.success());
}

#[tokio::test]
async fn a_long_message_comes_in_lines_that_every_client_can_read() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    ended(editor.prompt(&session, "long 3000000; say end").await);
    assert!(editor.said(&session).len() > 3_000_000);
    ended(editor.prompt(&session, "flood 2000; say over").await);
    assert!(editor.said(&session).ends_with("over"));
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn lines_that_are_no_messages_do_not_end_the_agent() {
    let stage = Stage::new().await;
    let url = stage.server.url();
    let mut command = stage.place.command(&["acp", "--server", &url]);
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 7, "method": "initialize",
        "params": {"protocolVersion": 99, "clientCapabilities": {}}});
    let unknown = json!({"jsonrpc": "2.0", "id": 8, "method": "session/dance", "params": {}});
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer_to = async |message: &Value| {
        let text = format!("no json\n\n{{\"jsonrpc\":\"2.0\"}}\n{message}\n");
        stdin.write_all(b"\xff\xfe\n").await.unwrap();
        stdin.write_all(text.as_bytes()).await.unwrap();
        loop {
            let line = within("a line", LIMIT, lines.next_line()).await.unwrap();
            let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if answer["id"] == message["id"] {
                return answer;
            }
        }
    };
    assert_eq!(answer_to(&hello).await["result"]["protocolVersion"], 1);
    assert_eq!(answer_to(&unknown).await["error"]["code"], -32601);
    drop(stdin);
    let status = within("the agent ends", LIMIT, child.wait()).await;
    assert!(status.unwrap().success());
}
