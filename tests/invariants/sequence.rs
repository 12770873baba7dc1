//! The log: numbers without gaps, uploads that may come again, one terminal event (I2, I3, I11,
//! I12, I21; faults 2, 3, 6; rules R1, R11, R12).

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;
use tapedeck_domain::Rejection;
use tapedeck_domain::settle::{Ending, RunEnd};

use crate::control::TestControl;

on_every_store! {
    session_seq_has_no_gaps_and_no_reuse,
    one_terminal_event_per_run,
    reupload_is_idempotent,
    conflicting_event_id_writes_nothing,
    settled_run_accepts_no_event,
    numbers_rise_densely_for_many_writers_in_one_tick,
    a_batch_with_one_new_event_after_the_settle_writes_nothing,
    an_event_id_twice_in_one_batch_counts_once,
    completion_waits_for_missing_events,
    the_same_completion_again_gets_the_stored_answer,
}

fn dense(log: &[tapedeck_domain::event::EventRecord]) {
    let numbers: Vec<_> = log.iter().map(|event| event.session_seq).collect();
    let expected: Vec<_> = (1..=log.len() as u64).collect();
    assert_eq!(numbers, expected);
}

async fn session_seq_has_no_gaps_and_no_reuse(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    for n in 0..20 {
        t.say(&claim, &format!("a{n}"), "x").await.unwrap();
        // Retries and refusals between must not use up numbers.
        t.say(&claim, &format!("a{n}"), "x").await.unwrap();
        assert_rejected!(
            t.say(&claim, &format!("a{n}"), "y").await,
            Rejection::EventIdConflict { .. }
        );
    }
    t.complete(&claim).await;
    dense(&t.log(session).await);
    let before = t.view(session).await.head.head_seq;
    let t = t.restarted().await;
    t.prompt(session).await;
    let log = t.log(session).await;
    dense(&log);
    assert_eq!(log.len() as u64, before + 1);
}

async fn numbers_rise_densely_for_many_writers_in_one_tick(t: TestControl) {
    // The clock stands still, so nothing can come from it (fault 2).
    let t = Arc::new(t);
    let mut claims = Vec::new();
    for n in 0..4 {
        claims.push(t.running(&format!("e{n}")).await);
    }
    let mut writers = tokio::task::JoinSet::new();
    for (_, claim) in &claims {
        for writer in 0..5 {
            let (t, claim) = (Arc::clone(&t), claim.clone());
            writers.spawn(async move {
                for batch in 0..10 {
                    let ids: Vec<_> = (0..50).map(|n| format!("{writer}-{batch}-{n}")).collect();
                    let events: Vec<_> = ids
                        .iter()
                        .map(|id| (id.as_str(), json!({"content": id, "role": "assistant"})))
                        .collect();
                    t.upload(&claim, &events).await.unwrap();
                }
            });
        }
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    for (session, _) in &claims {
        let log = t.log(*session).await;
        dense(&log);
        assert_eq!(
            log.iter()
                .filter(|event| event.kind == "StreamDelta")
                .count(),
            2_500
        );
        let ids: HashSet<_> = log.iter().map(|event| &event.event_id).collect();
        assert_eq!(ids.len(), log.len());
    }
}

async fn one_terminal_event_per_run(t: TestControl) {
    for ending in [
        Ending::Completed,
        Ending::Failed,
        Ending::Cancelled,
        Ending::Interrupted,
    ] {
        let (session, claim) = t.running("e1").await;
        t.settle(&claim, ending).await.unwrap();
        // Whatever comes afterwards adds no second one.
        t.settle(&claim, ending).await.unwrap();
        let other = if ending == Ending::Failed {
            Ending::Completed
        } else {
            Ending::Failed
        };
        assert_rejected!(t.settle(&claim, other).await, Rejection::RunSettled { .. });
        t.control
            .cancel_session("default", session, "client")
            .await
            .unwrap();
        t.pass(200_000).await;
        t.sweep().await;
        let ends = t
            .kinds(session)
            .await
            .into_iter()
            .filter(|kind| kind == "TurnEnd")
            .count();
        assert_eq!(ends, 1, "{ending}");
        assert_eq!(t.run(claim.run_id()).await.status, ending.status());
    }
}

async fn reupload_is_idempotent(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let batch = [
        ("a", json!({"content": "1", "role": "assistant"})),
        ("b", json!({"content": "2", "role": "assistant"})),
    ];
    let first = t.upload(&claim, &batch).await.unwrap();
    let head = t.view(session).await.head.head_seq;
    assert_eq!(t.upload(&claim, &batch).await.unwrap(), first);
    assert_eq!(t.view(session).await.head.head_seq, head);
    // Also when a retried batch carries new events behind the stored ones.
    let longer = [
        batch[0].clone(),
        batch[1].clone(),
        ("c", json!({"content": "3", "role": "assistant"})),
    ];
    let third = t.upload(&claim, &longer).await.unwrap();
    assert_eq!(third[..2], first[..]);
    assert_eq!(third[2].as_ref().unwrap().session_seq, head + 1);
    // And after the settle.
    t.complete(&claim).await;
    assert_eq!(t.upload(&claim, &longer).await.unwrap(), third);
}

async fn conflicting_event_id_writes_nothing(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "one").await.unwrap();
    let before = t.log(session).await;
    let batch = [
        ("new-1", json!({"content": "n", "role": "assistant"})),
        ("a", json!({"content": "another", "role": "assistant"})),
        ("new-2", json!({"content": "n", "role": "assistant"})),
    ];
    assert_rejected!(t.upload(&claim, &batch).await, Rejection::EventIdConflict { ref event_id } if event_id == "a");
    assert_eq!(t.log(session).await, before);
    // The same bytes with keys in another order are the same event.
    let reordered = serde_json::from_str(r#"{"role":"assistant","content":"one"}"#).unwrap();
    t.upload(&claim, &[("a", reordered)]).await.unwrap();
    assert_eq!(t.log(session).await, before);
}

async fn settled_run_accepts_no_event(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.complete(&claim).await;
    let before = t.log(session).await;
    assert_rejected!(
        t.say(&claim, "late", "x").await,
        Rejection::RunSettled { .. }
    );
    assert_rejected!(t.beat(&claim).await, Rejection::RunSettled { .. });
    assert_rejected!(t.ask(&claim, "q").await, Rejection::RunSettled { .. });
    assert_eq!(t.log(session).await, before);
}

async fn a_batch_with_one_new_event_after_the_settle_writes_nothing(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    let before = t.log(session).await;
    let batch = [
        ("a", json!({"content": "x", "role": "assistant"})),
        ("b", json!({"content": "y", "role": "assistant"})),
    ];
    assert_rejected!(t.upload(&claim, &batch).await, Rejection::RunSettled { .. });
    assert_eq!(t.log(session).await, before);
}

async fn an_event_id_twice_in_one_batch_counts_once(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let same = json!({"content": "x", "role": "assistant"});
    let records = t
        .upload(&claim, &[("a", same.clone()), ("a", same)])
        .await
        .unwrap();
    assert_eq!(records[0], records[1]);
    dense(&t.log(session).await);
}

async fn completion_waits_for_missing_events(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    let end = RunEnd {
        ending: Ending::Completed,
        result: None,
        error: None,
        recovery_reason: None,
        body_digest: Some(tapedeck_domain::digest::Digest::of_bytes(b"body")),
    };
    assert_rejected!(
        t.settle_with(&claim, end.clone(), Some(2)).await,
        Rejection::EventsMissing {
            expected: 2,
            stored: 1
        }
    );
    t.say(&claim, "b", "y").await.unwrap();
    t.settle_with(&claim, end, Some(2)).await.unwrap();
}

async fn the_same_completion_again_gets_the_stored_answer(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let first = t.complete(&claim).await;
    t.pass(120_000).await;
    assert_eq!(t.complete(&claim).await, first);
    // Also when the session has moved on.
    t.prompt(session).await;
    let second = t.claim("e2").await;
    t.beat(&second).await.unwrap();
    assert_eq!(t.complete(&claim).await, first);
}
