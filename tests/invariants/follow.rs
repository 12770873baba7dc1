//! Following: every event once and in order, whatever happens on the way (I13; faults 1, 3, 4; rules R21,
//! R23).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tapedeck_control_plane::follow::EndReason;
use tapedeck_control_plane::{CursorError, Error, FollowRequest, Followed, Follower, Start};
use tapedeck_domain::SessionId;
use tapedeck_store::Target;

use crate::control::{NAMESPACE, TestControl};

on_every_store! {
    follower_sees_every_event_once_in_order,
    a_cursor_beyond_the_head_is_an_error_before_the_first_frame,
    a_run_scoped_stream_ends_with_its_run,
    a_run_scoped_stream_opened_after_the_end_ends_at_once,
    a_deleted_session_ends_its_streams,
    a_follower_says_when_it_has_caught_up,
    filters_leave_out_what_was_not_asked_for,
    no_number_is_seen_before_its_commit,
    a_drain_ends_streams,
}

fn from(session_id: SessionId, after: u64) -> FollowRequest {
    FollowRequest {
        namespace: NAMESPACE.to_owned(),
        session_id,
        start: Start::After(after),
        run_id: None,
        kinds: Vec::new(),
    }
}

/// Reads until `last` has been seen; reconnects at every `cut`-th item.
async fn follow_with_cuts(t: &TestControl, session: SessionId, last: u64, cut: usize) -> Vec<u64> {
    let mut seen: Vec<u64> = Vec::new();
    while seen.last().copied().unwrap_or(0) < last {
        let mut follower = t
            .control
            .follow(from(session, seen.last().copied().unwrap_or(0)))
            .await
            .unwrap();
        for _ in 0..cut {
            let item = tokio::time::timeout(Duration::from_secs(30), follower.next())
                .await
                .unwrap();
            if let Some(Followed::Events(events)) = item.unwrap() {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
            if seen.last().copied().unwrap_or(0) >= last {
                break;
            }
        }
    }
    seen
}

async fn follower_sees_every_event_once_in_order(t: TestControl) {
    let t = Arc::new(t);
    let (session, claim) = t.running("e1").await;
    let last = t.view(session).await.head.head_seq + 1_500;
    let mut followers = tokio::task::JoinSet::new();
    for cut in [2, 3, 5, 50, 100_000] {
        let t = Arc::clone(&t);
        followers.spawn(async move { follow_with_cuts(&t, session, last, cut).await });
    }
    // Two writers at once: their commits are published in any order (rules R21).
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..2 {
        let (t, claim) = (Arc::clone(&t), claim.clone());
        writers.spawn(async move {
            for batch in 0..250 {
                let ids: Vec<_> = (0..3).map(|n| format!("{writer}-{batch}-{n}")).collect();
                let events: Vec<_> = ids
                    .iter()
                    .map(|id| (id.as_str(), json!({"content": id, "role": "assistant"})))
                    .collect();
                t.upload(&claim, &events).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let expected: Vec<_> = (1..=last).collect();
    for seen in followers.join_all().await {
        assert_eq!(seen, expected);
    }
}

async fn a_cursor_beyond_the_head_is_an_error_before_the_first_frame(t: TestControl) {
    let (session, _) = t.running("e1").await;
    let head = t.view(session).await.head.head_seq;
    t.control.follow(from(session, head)).await.unwrap();
    let future = t.control.follow(from(session, head + 1)).await.map(|_| ());
    assert!(
        matches!(future, Err(Error::Cursor(CursorError::Future { after, head_seq })) if (after, head_seq) == (head + 1, head)),
        "{future:?}"
    );
    let unknown = SessionId::new(t.control.new_id());
    let unknown = t.control.follow(from(unknown, 0)).await.map(|_| ());
    assert!(
        matches!(unknown, Err(Error::NotFound(Target::Session))),
        "{unknown:?}"
    );
}

async fn next(follower: &mut Follower) -> Option<Followed> {
    tokio::time::timeout(Duration::from_secs(10), follower.next())
        .await
        .unwrap()
        .unwrap()
}

async fn a_run_scoped_stream_ends_with_its_run(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let queued = t.enqueue(session).await;
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    let second = t.claim("e1").await;
    t.complete(&second).await;
    let log = t.log(session).await;
    for run in [claim.run_id(), queued.run_id] {
        let expected: Vec<_> = log
            .iter()
            .filter(|event| event.run_id == Some(run))
            .map(|event| event.session_seq)
            .collect();
        assert_eq!(t.follow_run(session, run).await, expected);
    }
}

async fn a_run_scoped_stream_opened_after_the_end_ends_at_once(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.complete(&claim).await;
    let head = t.view(session).await.head.head_seq;
    let request = FollowRequest {
        run_id: Some(claim.run_id()),
        ..from(session, head)
    };
    let mut follower = t.control.follow(request).await.unwrap();
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::Open { .. })
    ));
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::End(EndReason::Settled))
    ));
    assert!(next(&mut follower).await.is_none());
}

async fn a_deleted_session_ends_its_streams(t: TestControl) {
    let session = t.session().await;
    let mut follower = t.control.follow(from(session, 0)).await.unwrap();
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::Open { .. })
    ));
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::Live { .. })
    ));
    t.control
        .delete_session(NAMESPACE, session, false)
        .await
        .unwrap();
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::End(EndReason::Deleted))
    ));
}

async fn a_follower_says_when_it_has_caught_up(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let head = t.view(session).await.head.head_seq;
    let mut follower = t.control.follow(from(session, 0)).await.unwrap();
    assert!(
        matches!(next(&mut follower).await, Some(Followed::Open { head_seq, .. }) if head_seq == head)
    );
    let mut seen = 0;
    loop {
        match next(&mut follower).await.unwrap() {
            Followed::Events(events) => seen += events.len() as u64,
            Followed::Live { head_seq } => break assert_eq!((seen, head_seq), (head, head)),
            other => panic!("{other:?}"),
        }
    }
    t.say(&claim, "a", "x").await.unwrap();
    assert!(
        matches!(next(&mut follower).await, Some(Followed::Events(events)) if events.len() == 1)
    );
}

async fn filters_leave_out_what_was_not_asked_for(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    let request = FollowRequest {
        kinds: vec!["StreamDelta".to_owned()],
        ..from(session, 0)
    };
    let mut follower = t.control.follow(request).await.unwrap();
    let mut kinds = Vec::new();
    loop {
        match next(&mut follower).await.unwrap() {
            Followed::Events(events) => {
                kinds.extend(events.iter().map(|event| event.record.kind.clone()));
            }
            Followed::Live { .. } => break,
            Followed::Open { .. } => {}
            other @ Followed::End(_) => panic!("{other:?}"),
        }
    }
    assert_eq!(kinds, ["StreamDelta"]);
}

async fn no_number_is_seen_before_its_commit(t: TestControl) {
    // A refused batch is rolled back after it was numbered in memory; a follower never sees it, and
    // the next number is the one after the last committed (fault 3).
    let (session, claim) = t.running("e1").await;
    let head = t.view(session).await.head.head_seq;
    let mut follower = t.control.follow(from(session, head)).await.unwrap();
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::Open { .. })
    ));
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::Live { .. })
    ));
    t.store.refuse_inserts_into("events").await;
    assert!(t.say(&claim, "lost", "x").await.is_err());
    t.store.allow_writes().await;
    t.say(&claim, "kept", "x").await.unwrap();
    let Some(Followed::Events(events)) = next(&mut follower).await else {
        panic!("events expected")
    };
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.record.session_seq, event.record.event_id.clone()))
        .collect();
    assert_eq!(seen, [(head + 1, "kept".to_owned())]);
}

async fn a_drain_ends_streams(t: TestControl) {
    let session = t.session().await;
    let mut follower = t.control.follow(from(session, 0)).await.unwrap();
    next(&mut follower).await;
    next(&mut follower).await;
    t.control.lifecycle().drain();
    assert!(matches!(
        next(&mut follower).await,
        Some(Followed::End(EndReason::Shutdown))
    ));
}
