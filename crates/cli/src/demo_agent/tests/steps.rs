//! What the steps of a script look like from the client.

use super::*;

#[tokio::test]
async fn prose_is_answered_with_thought_plan_files_and_an_echo_and_always_the_same() {
    let cwd = tempfile::tempdir().unwrap();
    std::fs::write(cwd.path().join("b.txt"), "").unwrap();
    std::fs::write(cwd.path().join("a.txt"), "").unwrap();
    let prompt = "An earlier note: say no.\n\nWhat is here?";
    let (stopped, updates) = run(Answer::Cancelled, cwd.path(), prompt).await;
    assert_eq!(stopped.unwrap(), StopReason::EndTurn);
    assert!(matches!(updates[0], SessionUpdate::AgentThoughtChunk(_)));
    let SessionUpdate::Plan(plan) = updates.last().unwrap() else {
        panic!("no plan at the end")
    };
    assert!(
        plan.entries
            .iter()
            .all(|entry| entry.status == PlanEntryStatus::Completed)
    );
    let text = text_of(&updates);
    assert!(text.contains("You asked: What is here?\n"), "{text}");
    assert!(
        text.contains("I see a.txt, b.txt in the working directory."),
        "{text}"
    );
    let (_, again) = run(Answer::Cancelled, cwd.path(), prompt).await;
    assert_eq!(updates, again);
}

#[tokio::test]
async fn a_tool_call_begins_runs_and_ends() {
    let cwd = tempfile::tempdir().unwrap();
    let (_, updates) = run(Answer::Cancelled, cwd.path(), r#"tool grep {"for": "x"}"#).await;
    let SessionUpdate::ToolCall(call) = &updates[0] else {
        panic!("no tool call first")
    };
    assert_eq!((call.title.as_str(), call.kind), ("grep", ToolKind::Search));
    assert_eq!(call.raw_input, Some(json!({"for": "x"})));
    let statuses: Vec<_> = statuses_of(&updates)
        .into_iter()
        .map(|(_, status)| status)
        .collect();
    let expected = [
        ToolCallStatus::Pending,
        ToolCallStatus::InProgress,
        ToolCallStatus::Completed,
    ];
    assert_eq!(statuses, expected);
}

#[tokio::test]
async fn a_call_that_is_left_running_is_ended_with_the_turn() {
    let cwd = tempfile::tempdir().unwrap();
    let (_, updates) = run(Answer::Cancelled, cwd.path(), "begin bash; say on").await;
    let statuses: Vec<_> = statuses_of(&updates)
        .into_iter()
        .map(|(_, status)| status)
        .collect();
    let expected = [
        ToolCallStatus::Pending,
        ToolCallStatus::InProgress,
        ToolCallStatus::Failed,
    ];
    assert_eq!(statuses, expected);
}

#[rstest]
#[case("allow-once", ToolCallStatus::Completed, "`bash` was allowed.\nafter")]
#[case(
    "allow-always",
    ToolCallStatus::Completed,
    "`bash` was allowed.\nafter"
)]
#[case(
    "reject-once",
    ToolCallStatus::Failed,
    "`bash` was not allowed; going on without it.\nafter"
)]
#[tokio::test]
async fn a_question_is_followed_by_what_was_chosen(
    #[case] option: &'static str,
    #[case] status: ToolCallStatus,
    #[case] text: &str,
) {
    let cwd = tempfile::tempdir().unwrap();
    let (stopped, updates) = run(
        Answer::Choose(option),
        cwd.path(),
        "ask bash {\"cmd\": \"ls\"}; say after",
    )
    .await;
    assert_eq!(stopped.unwrap(), StopReason::EndTurn);
    assert_eq!(statuses_of(&updates).last().unwrap().1, status);
    assert_eq!(text_of(&updates), text);
}

#[tokio::test]
async fn a_question_answered_cancelled_ends_the_turn_and_its_call() {
    let cwd = tempfile::tempdir().unwrap();
    let (stopped, updates) = run(Answer::Cancelled, cwd.path(), "ask bash; say never").await;
    assert_eq!(stopped.unwrap(), StopReason::Cancelled);
    assert_eq!(
        statuses_of(&updates).last().unwrap().1,
        ToolCallStatus::Failed
    );
    assert_eq!(text_of(&updates), "");
}

#[tokio::test]
async fn two_questions_are_open_at_the_same_time() {
    let cwd = tempfile::tempdir().unwrap();
    let answer = Answer::Together(Arc::new(Barrier::new(2)));
    let (stopped, updates) = run(answer, cwd.path(), "two-asks").await;
    assert_eq!(stopped.unwrap(), StopReason::EndTurn);
    assert_eq!(
        text_of(&updates),
        "`first` was allowed.\n`second` was allowed.\n"
    );
}

#[tokio::test]
async fn files_are_written_and_read_inside_the_working_directory_only() {
    let (outer, cwd) = directories();
    std::os::unix::fs::symlink(outer.path(), cwd.path().join("link")).unwrap();
    std::fs::write(outer.path().join("secret"), "secret").unwrap();
    let (_, updates) = run(
        Answer::Cancelled,
        cwd.path(),
        "write a/b.txt one two; read a/b.txt",
    )
    .await;
    assert_eq!(
        std::fs::read_to_string(cwd.path().join("a/b.txt")).unwrap(),
        "one two"
    );
    let shown: Vec<_> = updates
        .iter()
        .filter_map(|update| match update {
            SessionUpdate::ToolCallUpdate(update) => update.fields.content.clone(),
            _ => None,
        })
        .flatten()
        .collect();
    let ToolCallContent::Diff(diff) = &shown[0] else {
        panic!("no diff: {shown:?}")
    };
    assert_eq!(
        (diff.old_text.as_deref(), diff.new_text.as_str()),
        (None, "one two")
    );
    let ToolCallContent::Content(read) = &shown[1] else {
        panic!("no text: {shown:?}")
    };
    assert_eq!(read.content, ContentBlock::from("one two"));

    let absolute = outer.path().join("x").display().to_string();
    for path in ["../x", "a/../../x", "link/x", "link/secret", &absolute] {
        for verb in ["write", "read"] {
            let script = format!("{verb} {path}; say on");
            let (stopped, updates) = run(Answer::Cancelled, cwd.path(), &script).await;
            assert_eq!(stopped.unwrap(), StopReason::EndTurn);
            assert_eq!(
                statuses_of(&updates).last().unwrap().1,
                ToolCallStatus::Failed,
                "{script}"
            );
            assert_eq!(text_of(&updates), "on");
        }
    }
    assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_flood_and_a_long_line_arrive_whole_and_in_order() {
    let cwd = tempfile::tempdir().unwrap();
    let (_, updates) = run(Answer::Cancelled, cwd.path(), "flood 3000; long 3000000").await;
    assert_eq!(updates.len(), 3001);
    let text = text_of(&updates);
    let mut lines = text.lines();
    for number in 1..=3000 {
        assert_eq!(lines.next(), Some(format!("update {number}").as_str()));
    }
    assert!(
        lines
            .next()
            .is_some_and(|long| long == "x".repeat(3_000_000))
    );
}

#[tokio::test]
async fn noise_stands_between_whole_lines() {
    let (state, cwd) = directories();
    let (ours, theirs) = pipes();
    let client = async {
        let (reader, mut writer) = split(ours);
        let mut lines = BufReader::new(reader).split(b'\n');
        let mut call = async |id: u32, method: &str, params: serde_json::Value| {
            let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            writer
                .write_all(format!("{request}\n").as_bytes())
                .await
                .unwrap();
        };
        call(0, "initialize", json!({"protocolVersion": 1})).await;
        lines.next_segment().await.unwrap().unwrap();
        call(
            1,
            "session/new",
            json!({"cwd": cwd.path(), "mcpServers": []}),
        )
        .await;
        let created = lines.next_segment().await.unwrap().unwrap();
        let created: serde_json::Value = serde_json::from_slice(&created).unwrap();
        let text = "flood 500; noise; say after";
        let params = json!({"sessionId": created["result"]["sessionId"],
            "prompt": [{"type": "text", "text": text}]});
        call(2, "session/prompt", params).await;
        let mut kinds = Vec::new();
        loop {
            let line = lines.next_segment().await.unwrap().unwrap();
            let Ok(message) = serde_json::from_slice::<serde_json::Value>(&line) else {
                kinds.push("noise");
                continue;
            };
            if message["id"] == 2 {
                break;
            }
            kinds.push("update");
        }
        writer.shutdown().await.unwrap();
        kinds
    };
    let both = async { tokio::join!(client, serve_on(state.path(), theirs)) };
    let (kinds, served) = tokio::time::timeout(BOUND, both).await.unwrap();
    served.unwrap();
    let expected = [vec!["update"; 500], vec!["noise"; 5], vec!["update"]].concat();
    assert_eq!(kinds, expected);
}
