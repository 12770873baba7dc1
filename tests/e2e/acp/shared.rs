//! One session and several people: two editors, and somebody who answers from elsewhere.

use agent_client_protocol::v1::schema::{
    SetSessionConfigOptionRequest, SetSessionModeRequest, StopReason,
};
use serde_json::{Value, json};

use super::editor::texts;
use super::{LIMIT, Stage, ended};
use crate::wait::eventually;

#[tokio::test]
async fn two_editors_see_each_others_turns() {
    let stage = Stage::new().await;
    let (here, there) = (stage.editor().await, stage.editor().await);
    let session = here.session(&stage.place).await;
    there.load(&stage.place, &session).await.unwrap();
    let running = here.prompt(&session, "say from here; ask edit {}; slow 600");
    let (reason, ()) = tokio::join!(running, async {
        there.hears(&session, "from here").await;
        let prompt = texts(&there.updates(&session), "user_message_chunk");
        assert_eq!(prompt, "say from here; ask edit {}; slow 600");
        // Both are asked; the first answer wins and takes the question back from the other.
        let (mine, theirs) = tokio::join!(here.asked(), there.asked());
        theirs.choose("allow-once");
        mine.withdrawn().await;
        here.hears(&session, "tick 1").await;
        let busy = there.prompt(&session, "say no").await.unwrap_err();
        assert_eq!(i32::from(busy.code), -32600, "{busy:?}");
        there.cancel(&session);
    });
    assert_eq!(reason.unwrap(), StopReason::Cancelled);
    ended(there.prompt(&session, "say from there").await);
    here.hears(&session, "from there").await;
    assert!(here.leaves().await.success());
    assert!(there.leaves().await.success());
}

#[tokio::test]
async fn a_question_that_is_answered_elsewhere_is_taken_back() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    let running = editor.prompt(&session, "ask edit {}; say on");
    let (reason, ()) = tokio::join!(running, async {
        let asked = editor.asked().await;
        let inbox = stage.server.get("/interactions?status=pending").await.ok();
        let id = inbox["interactions"][0]["interaction_id"].as_str().unwrap();
        let path = format!("/interactions/{id}/resolve");
        stage
            .server
            .post(&path, &json!({"approved": false}))
            .await
            .ok();
        asked.withdrawn().await;
    });
    ended(reason);
    assert!(editor.said(&session).contains("not allowed"));
    assert!(editor.leaves().await.success());
}

#[tokio::test]
async fn who_answers_is_chosen_at_the_editor_and_seen_by_the_other() {
    let stage = Stage::new().await;
    let (here, there) = (stage.editor().await, stage.editor().await);
    let session = here.session(&stage.place).await;
    there.load(&stage.place, &session).await.unwrap();
    here.ask(SetSessionModeRequest::new(session.clone(), "yolo"))
        .await
        .unwrap();
    eventually("the other sees the mode", LIMIT, async || {
        let told = there.updates(&session);
        let mode = told
            .iter()
            .find(|update| update["sessionUpdate"] == "current_mode_update")?;
        assert_eq!(mode["currentModeId"], "yolo");
        Some(())
    })
    .await;
    ended(here.prompt(&session, "ask edit {}").await);
    assert_eq!(here.open_questions() + there.open_questions(), 0);
    let option = SetSessionConfigOptionRequest::new(session.clone(), "tapedeck.approvals", "auto");
    let answer = here.ask(option).await.unwrap();
    let options = serde_json::to_value(&answer.config_options).unwrap();
    assert_eq!(options[0]["currentValue"], "auto");
    let shown: Value = stage.server.get(&format!("/sessions/{session}")).await.ok();
    assert_eq!(shown["approval_policy"], "auto");
    assert!(here.leaves().await.success());
    assert!(there.leaves().await.success());
}

#[tokio::test]
async fn what_a_restore_has_put_aside_is_not_told() {
    let stage = Stage::new().await;
    let editor = stage.editor().await;
    let session = editor.session(&stage.place).await;
    ended(editor.prompt(&session, "say kept").await);
    let path = format!("/sessions/{session}/checkpoints");
    let checkpoint = stage
        .server
        .post(&path, &json!({"label": "here"}))
        .await
        .ok();
    ended(editor.prompt(&session, "say put aside").await);
    let id = checkpoint["checkpoint_id"].as_str().unwrap();
    stage
        .server
        .post(&format!("{path}/{id}/restore"), &json!({}))
        .await
        .ok();
    let again = stage.editor().await;
    again.load(&stage.place, &session).await.unwrap();
    assert_eq!(again.said(&session), "kept");
    ended(again.prompt(&session, "say after").await);
    assert_eq!(again.said(&session), "keptafter");
    assert!(again.leaves().await.success());
    assert!(editor.leaves().await.success());
}
