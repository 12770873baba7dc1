//! Sessions, cancels and refusals as the client meets them.

use super::*;

#[tokio::test]
async fn a_cancel_withdraws_an_open_question() {
    let (state, cwd) = directories();
    let asked = Arc::new(Notify::new());
    with_agent(
        state.path(),
        Answer::Never(Arc::clone(&asked)),
        async |driver| {
            let session = driver.new_session(cwd.path()).await;
            let cancel = async {
                asked.notified().await;
                driver.cancel(&session);
            };
            let (stopped, ()) = tokio::join!(driver.prompt(&session, "ask bash"), cancel);
            assert_eq!(stopped.unwrap(), StopReason::Cancelled);
            assert_eq!(
                statuses_of(&driver.taken()).last().unwrap().1,
                ToolCallStatus::Failed
            );
        },
    )
    .await;
}

#[rstest]
#[case("say started; slow 60")]
#[case("say started; stream 1000 60000")]
#[case("say started; flood 1000000")]
#[case("say started; hang")]
#[tokio::test]
async fn a_cancel_in_mid_turn_is_answered_at_once(#[case] script: &str) {
    let (state, cwd) = directories();
    with_agent(state.path(), Answer::Cancelled, async |driver| {
        let session = driver.new_session(cwd.path()).await;
        let cancel = async {
            driver
                .seen(|update| text_of(std::slice::from_ref(update)) == "started")
                .await;
            driver.cancel(&session);
            tokio::time::Instant::now()
        };
        let (stopped, cancelled) = tokio::join!(driver.prompt(&session, script), cancel);
        assert_eq!(stopped.unwrap(), StopReason::Cancelled);
        // It takes about a millisecond; the bound is for a machine that is busy.
        let took = cancelled.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        // The session is as good as before.
        assert_eq!(
            driver.prompt(&session, "say on").await.unwrap(),
            StopReason::EndTurn
        );
    })
    .await;
}

#[tokio::test]
async fn a_deaf_step_delays_the_cancel_and_no_more() {
    let (state, cwd) = directories();
    with_agent(state.path(), Answer::Cancelled, async |driver| {
        let session = driver.new_session(cwd.path()).await;
        let cancel = async {
            driver
                .seen(|update| text_of(std::slice::from_ref(update)) == "tick 1\n")
                .await;
            driver.cancel(&session);
        };
        let script = "ignore-cancel 0.5; say never";
        let (stopped, ()) = tokio::join!(driver.prompt(&session, script), cancel);
        assert_eq!(stopped.unwrap(), StopReason::Cancelled);
        assert_eq!(
            text_of(&driver.taken()),
            "tick 1\ntick 2\ntick 3\ntick 4\ntick 5\n"
        );
    })
    .await;
}

#[tokio::test]
async fn another_process_loads_the_session_and_remembers_its_prompts() {
    let (state, cwd) = directories();
    let session = with_agent(state.path(), Answer::Cancelled, async |driver| {
        let session = driver.new_session(cwd.path()).await;
        driver
            .prompt(&session, "A note.\n\nsay one; say two")
            .await
            .unwrap();
        driver.prompt(&session, "fail again").await.unwrap_err();
        session
    })
    .await;
    with_agent(state.path(), Answer::Cancelled, async |driver| {
        let load = LoadSessionRequest::new(session.clone(), cwd.path());
        let modes = driver
            .connection
            .send_request(load)
            .block_task()
            .await
            .unwrap()
            .modes
            .unwrap();
        assert_eq!(modes.current_mode_id.0.as_ref(), "default");
        let replayed = driver.taken();
        assert_eq!(text_of(&replayed), "onetwo");
        assert!(matches!(replayed[0], SessionUpdate::UserMessageChunk(_)));
        assert_eq!(replayed.len(), 3);
        driver.prompt(&session, "remember").await.unwrap();
        let expected = "I remember 2 earlier prompts:\n1. say one; say two\n2. fail again\n";
        assert_eq!(text_of(&driver.taken()), expected);
    })
    .await;
}

#[tokio::test]
async fn wrong_requests_are_refused_with_the_codes_of_the_protocol() {
    let (state, cwd) = directories();
    std::fs::write(state.path().join("outside.json"), r#"{"turns": []}"#).unwrap();
    with_agent(
        &state.path().join("inner"),
        Answer::Cancelled,
        async |driver| {
            let connection = &driver.connection;
            for id in ["demo-0", "../outside", "", "/etc/passwd"] {
                let load = LoadSessionRequest::new(id, cwd.path());
                let error = connection
                    .send_request(load)
                    .block_task()
                    .await
                    .unwrap_err();
                assert_eq!(error.code.value(), -32002, "load `{id}`: {error:?}");
            }
            let error = driver
                .prompt(&SessionId::new("demo-0"), "say x")
                .await
                .unwrap_err();
            assert_eq!(error.code.value(), -32002);
            let relative = NewSessionRequest::new("some/where");
            let error = connection
                .send_request(relative)
                .block_task()
                .await
                .unwrap_err();
            assert_eq!(error.code.value(), -32602);

            let session = driver.new_session(cwd.path()).await;
            for (mode, code) in [("default", None), ("yolo", Some(-32602))] {
                let set = SetSessionModeRequest::new(session.clone(), mode);
                let answer = connection.send_request(set).block_task().await;
                assert_eq!(answer.err().map(|error| error.code.value()), code);
            }
            let error = driver.prompt(&session, "say a; jump").await.unwrap_err();
            assert_eq!(error.code.value(), -32602);
            assert!(error.message.contains("`jump`"), "{error:?}");
            let error = driver.prompt(&session, "fail no luck").await.unwrap_err();
            assert_eq!(
                (error.code.value(), error.message.as_str()),
                (-32603, "no luck")
            );
            // Nothing of a script with a slip has been done.
            assert_eq!(driver.taken(), []);
        },
    )
    .await;
}

#[tokio::test]
async fn a_second_prompt_is_refused_while_a_turn_is_in_progress() {
    let (state, cwd) = directories();
    with_agent(state.path(), Answer::Cancelled, async |driver| {
        let session = driver.new_session(cwd.path()).await;
        let other = driver.new_session(cwd.path()).await;
        let second = async {
            driver
                .seen(|update| text_of(std::slice::from_ref(update)) == "started")
                .await;
            let error = driver.prompt(&session, "say second").await.unwrap_err();
            assert_eq!(error.code.value(), -32600);
            assert_eq!(
                driver.prompt(&other, "say other").await.unwrap(),
                StopReason::EndTurn
            );
            driver.cancel(&session);
        };
        let (first, ()) = tokio::join!(driver.prompt(&session, "say started; hang"), second);
        assert_eq!(first.unwrap(), StopReason::Cancelled);
        assert_eq!(text_of(&driver.taken()), "startedother");
    })
    .await;
}

#[tokio::test]
async fn the_agent_ends_in_mid_turn_when_its_client_is_gone() {
    let (state, cwd) = directories();
    with_agent(state.path(), Answer::Cancelled, async |driver| {
        let session = driver.new_session(cwd.path()).await;
        let prompt = PromptRequest::new(session, vec![ContentBlock::from("say started; slow 600")]);
        let _turn = driver.connection.send_request(prompt);
        driver
            .seen(|update| text_of(std::slice::from_ref(update)) == "started")
            .await;
    })
    .await;
}
