//! Retention: deltas of runs that settled long ago become whole messages, and nobody who reads the
//! log reads anything else (rules R20).

use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::retention::{Folded, Retention};
use tapedeck_control_plane::{
    CursorError, Error, EventFilter, FollowRequest, Followed, Start, TapeFilter,
};
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::{Rejection, RunId, SessionId};

use crate::control::{Claim, KEEP_DELTAS_MS, NAMESPACE, TestControl};

on_every_store! {
    a_folded_log_keeps_its_numbers_its_tape_and_its_conversation,
    a_cursor_inside_a_fold_is_an_error_before_the_first_frame_and_all_others_are_served,
    a_cursor_that_no_fold_can_lie_over_costs_no_read,
    a_follower_that_a_fold_overtakes_is_told,
    folding_again_changes_nothing,
    a_crash_after_any_step_does_no_harm,
    two_instances_at_one_run_do_no_harm,
    a_run_is_left_alone_until_its_time_has_come,
    a_fold_takes_no_session_over_and_leaves_live_owners_alone,
    no_fold_spans_the_number_that_a_fork_begins_after,
    an_upload_to_a_folded_run_is_told_that_the_run_is_settled,
    a_tape_that_was_left_behind_catches_up_before_the_fold,
}

/// An event of each shape that a message's pieces have.
fn said(text: &str) -> (&'static str, Value) {
    let payload = json!({"content": text, "role": "assistant", "message_id": "m1"});
    ("StreamDelta", payload)
}

fn returned(text: &str) -> (&'static str, Value) {
    let payload = json!({"call_id": "c1", "display_result": text, "is_error": false});
    ("ToolResultDelta", payload)
}

/// A conversation with rows of deltas and rows of one.
fn conversation() -> Vec<(&'static str, Value)> {
    let mut events = vec![
        ("ThinkingDelta", json!({"text": "h"})),
        ("ThinkingDelta", json!({"text": "m"})),
    ];
    events.extend(["Hel", "lo, ", "wor", "ld"].map(said));
    events.push((
        "ToolCallBegin",
        json!({"call_id": "c1", "tool_name": "bash"}),
    ));
    events.extend(["a", "b", "c"].map(returned));
    events.push((
        "ToolCallEnd",
        json!({"call_id": "c1", "status": "completed"}),
    ));
    events.push(said("alone"));
    events.push(("Usage", json!({"tokens": 3})));
    events.extend(["one ", "more"].map(said));
    events
}

async fn upload(t: &TestControl, claim: &Claim, events: &[(&str, Value)], prefix: &str) {
    for (part, events) in events.chunks(500).enumerate() {
        let check = |(index, (kind, data)): (usize, &(&str, Value))| {
            let id = format!("{prefix}-{part}-{index}");
            Uploaded::check(index, id, (*kind).to_owned(), data, None).unwrap()
        };
        let append = AppendEvents {
            proof: claim.proof.clone(),
            batch: events.iter().enumerate().map(check).collect(),
        };
        t.control.append_events(append).await.unwrap();
    }
}

/// A session with one settled run, whose claim is given, too.
async fn settled(t: &TestControl, events: &[(&str, Value)]) -> (SessionId, Claim) {
    let (session, claim) = t.running("e1").await;
    upload(t, &claim, events, "e").await;
    t.complete(&claim).await;
    t.control.catch_up_tape(NAMESPACE, session).await.unwrap();
    (session, claim)
}

/// Lets the time of deltas pass.
async fn age(t: &TestControl) {
    t.outage(KEEP_DELTAS_MS + 1);
    t.sweep().await;
}

async fn fold_with(t: &TestControl, mut retention: Retention) -> Folded {
    let mut folded = Folded::default();
    loop {
        let pass = retention.pass(&t.control).await.unwrap();
        folded.runs += pass.runs;
        folded.failed += pass.failed;
        // What a settle leaves behind may hold a session for a moment.
        if pass.is_complete && pass.left == 0 {
            return folded;
        }
    }
}

async fn fold(t: &TestControl) -> u32 {
    let folded = fold_with(t, Retention::default()).await;
    assert_eq!(folded.failed, 0);
    folded.runs
}

/// Each number from 1 to the head is covered by exactly one event.
fn assert_covered(log: &[EventRecord], head_seq: u64) {
    let mut covered = 0;
    for event in log {
        assert_eq!(event.first_seq(), covered + 1, "{event:?}");
        covered = event.session_seq;
    }
    assert_eq!(covered, head_seq);
}

/// What a reader puts together of the log after a cursor.
fn read(log: &[EventRecord], after: u64) -> Vec<(String, String)> {
    let mut read: Vec<(String, String)> = Vec::new();
    for event in log.iter().filter(|event| event.session_seq > after) {
        let payload = event.payload.value();
        let text = ["content", "text", "display_result"]
            .iter()
            .find_map(|field| payload[*field].as_str());
        match (text, read.last_mut()) {
            (Some(text), Some((kind, whole))) if *kind == event.kind => whole.push_str(text),
            (text, _) => read.push((event.kind.clone(), text.unwrap_or_default().to_owned())),
        }
    }
    read
}

async fn tape(t: &TestControl, session_id: SessionId) -> Vec<TapeEntry> {
    let filter = TapeFilter {
        session_id,
        after: 0,
        limit: 1_000,
        max_bytes: usize::MAX,
        include_superseded: true,
    };
    t.control.tape(NAMESPACE, filter).await.unwrap()
}

async fn a_folded_log_keeps_its_numbers_its_tape_and_its_conversation(t: TestControl) {
    let (session, claim) = settled(&t, &conversation()).await;
    let (before, tape_before) = (t.log(session).await, tape(&t, session).await);
    let (view_before, run_before) = (t.view(session).await, t.run(claim.run_id()).await);
    age(&t).await;
    assert_eq!(fold(&t).await, 1);
    let (after, view) = (t.log(session).await, t.view(session).await);
    assert_covered(&after, view.head.head_seq);
    assert_eq!(view.head.head_seq, view_before.head.head_seq);
    assert_eq!(view.session.summary, view_before.session.summary);
    assert_eq!(t.run(claim.run_id()).await, run_before);
    assert_eq!(read(&after, 0), read(&before, 0));
    assert_eq!(tape(&t, session).await, tape_before);
    let folds: Vec<_> = after.iter().filter(|it| it.folded_from.is_some()).collect();
    assert_eq!(folds.len(), 4, "{folds:?}");
    assert_eq!(
        view.session.folded_seq,
        folds.last().map(|it| it.session_seq)
    );
    for fold in &after {
        let last = before.iter().find(|it| it.session_seq == fold.session_seq);
        let last = last.unwrap();
        let kept = EventRecord {
            payload: last.payload.clone(),
            folded_from: None,
            ..fold.clone()
        };
        assert_eq!(kept, *last, "all but the text is the last delta's");
        if fold.folded_from.is_none() {
            assert_eq!(fold, last, "the rest is untouched");
        }
    }
    let again = t.prompt(session).await;
    assert_eq!(again.session_seq, view.head.head_seq + 1, "the log goes on");
}

fn from(session_id: SessionId, after: u64, run_id: Option<RunId>) -> FollowRequest {
    FollowRequest {
        namespace: NAMESPACE.to_owned(),
        session_id,
        start: Start::After(after),
        run_id,
        kinds: Vec::new(),
    }
}

async fn page(
    t: &TestControl,
    session_id: SessionId,
    after: u64,
    run_id: Option<RunId>,
) -> Result<Vec<EventRecord>, Error> {
    let filter = EventFilter {
        session_id,
        after,
        limit: 500,
        max_bytes: 1 << 20,
        run_id,
        kinds: Vec::new(),
    };
    let page = t.control.events(NAMESPACE, filter).await;
    page.map(|page| page.events)
}

/// What a follower gets until it has caught up or its run's stream ends.
async fn followed(t: &TestControl, request: FollowRequest) -> Result<Vec<EventRecord>, Error> {
    let mut follower = t.control.follow(request).await?;
    let mut events = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(10), follower.next()).await;
        match next.unwrap()? {
            Some(Followed::Events(more)) => {
                events.extend(more.iter().map(|event| event.record.clone()));
            }
            Some(Followed::Open { .. }) => {}
            Some(Followed::Live { .. } | Followed::End(_)) | None => return Ok(events),
        }
    }
}

fn restart_of<T: std::fmt::Debug>(outcome: Result<T, Error>, cursor: u64) -> u64 {
    match outcome {
        Err(Error::Cursor(CursorError::Folded {
            after,
            restart_after,
        })) if after == cursor => restart_after,
        other => panic!("{cursor} lies inside a fold: {other:?}"),
    }
}

async fn a_cursor_inside_a_fold_is_an_error_before_the_first_frame_and_all_others_are_served(
    t: TestControl,
) {
    let (session, claim) = t.running("e1").await;
    // A queued run is admitted in the middle of a message and begins after the end of the first.
    upload(&t, &claim, &conversation(), "a").await;
    let queued = t.enqueue(session).await;
    upload(&t, &claim, &conversation(), "b").await;
    t.complete(&claim).await;
    let second = t.claim("e1").await;
    upload(&t, &second, &conversation(), "c").await;
    t.complete(&second).await;
    let before = t.log(session).await;
    // Somebody who follows keeps the session's hot tail, which a fold must drop.
    let head = before.len() as u64;
    let _live = t.control.follow(from(session, head, None)).await.unwrap();
    age(&t).await;
    assert_eq!(fold(&t).await, 2);
    let after = t.log(session).await;
    assert_covered(&after, head);
    for run in [None, Some(claim.run_id()), Some(queued.run_id)] {
        let of_run = |log: &[EventRecord]| -> Vec<EventRecord> {
            let of_run = log.iter().filter(|it| run.is_none() || it.run_id == run);
            of_run.cloned().collect()
        };
        let whole = of_run(&before);
        let first = whole.first().map_or(1, |event| event.session_seq);
        let end = whole.last().map_or(head, |event| event.session_seq);
        for cursor in 0..=head {
            // A reader of one run begins at its admission, and is at its end after its last event.
            let place = cursor.max(first - 1);
            let fold = after
                .iter()
                .find(|it| it.first_seq() <= place && place < it.session_seq && place < end);
            let stream = followed(&t, from(session, cursor, run)).await;
            let page = page(&t, session, cursor, run).await;
            if let Some(fold) = fold {
                let restart = restart_of(stream, cursor);
                assert_eq!(restart, fold.first_seq() - 1);
                assert_eq!(restart_of(page, cursor), restart);
                let again = followed(&t, from(session, restart, run)).await.unwrap();
                assert_eq!(read(&again, 0), read(&whole, restart));
            } else {
                let stream = stream.unwrap();
                assert_eq!(stream, page.unwrap());
                assert_eq!(read(&stream, 0), read(&whole, cursor), "after {cursor}");
            }
        }
    }
}

async fn a_cursor_that_no_fold_can_lie_over_costs_no_read(t: TestControl) {
    let (session, _) = settled(&t, &conversation()).await;
    age(&t).await;
    let (unfolded, reads) = t.store.count_reads(page(&t, session, 3, None)).await;
    unfolded.unwrap();
    fold(&t).await;
    let folded_seq = t.view(session).await.session.folded_seq.unwrap();
    for (cursor, more) in [(folded_seq, 0), (0, 1)] {
        let (page, after) = t.store.count_reads(page(&t, session, cursor, None)).await;
        page.unwrap();
        assert_eq!(after, reads + more, "after {cursor}");
    }
}

async fn a_follower_that_a_fold_overtakes_is_told(t: TestControl) {
    let events: Vec<_> = (0..1_200).map(|_| said("x")).collect();
    let (session, _) = settled(&t, &events).await;
    let mut follower = t.control.follow(from(session, 0, None)).await.unwrap();
    let mut seen = 0;
    while seen == 0 {
        if let Some(Followed::Events(events)) = follower.next().await.unwrap() {
            seen = events.last().map_or(0, |event| event.record.session_seq);
        }
    }
    age(&t).await;
    fold(&t).await;
    let restart = restart_of(follower.next().await, seen);
    let again = followed(&t, from(session, restart, None)).await.unwrap();
    assert_eq!(again.first().map(EventRecord::first_seq), Some(restart + 1));
}

async fn folding_again_changes_nothing(t: TestControl) {
    let (session, _) = settled(&t, &conversation()).await;
    age(&t).await;
    assert_eq!(fold(&t).await, 1);
    let log = t.log(session).await;
    assert_eq!(fold(&t).await, 0, "a folded run is no candidate");
    t.store.run("UPDATE runs SET folded_at = NULL").await;
    assert_eq!(fold(&t).await, 1);
    assert_eq!(t.log(session).await, log);
}

/// A conversation of several steps, with messages that the steps cut.
fn long() -> Vec<(&'static str, Value)> {
    let mut events = Vec::new();
    for size in [700, 3, 1_100] {
        events.extend((0..size).map(|number| said(&format!("{number} "))));
        events.push(("Usage", json!({"tokens": size})));
    }
    events
}

async fn a_crash_after_any_step_does_no_harm(t: TestControl) {
    let (session, _) = settled(&t, &long()).await;
    let (before, head) = (t.log(session).await, t.view(session).await.head.head_seq);
    age(&t).await;
    let mut crashes = 0;
    let mut length = before.len() + 1;
    loop {
        // Nothing is remembered of the steps before.
        let step = Retention::default().steps(&t.control, 1).await.unwrap();
        let log = t.log(session).await;
        assert_covered(&log, head);
        assert_eq!(read(&log, 0), read(&before, 0));
        if step.is_complete && step.left == 0 {
            assert_eq!(log.iter().filter(|it| it.folded_from.is_some()).count(), 3);
            break;
        }
        assert!(step.left > 0 || log.len() < length, "each step gets on");
        crashes += usize::from(log.len() < length);
        length = log.len();
    }
    assert!(crashes > 1, "it took several steps");
}

async fn two_instances_at_one_run_do_no_harm(t: TestControl) {
    let (session, _) = settled(&t, &long()).await;
    let before = t.log(session).await;
    age(&t).await;
    let (one, other) = tokio::join!(
        fold_with(&t, Retention::default()),
        fold_with(&t, Retention::default())
    );
    assert_eq!((one.failed, other.failed), (0, 0));
    assert_eq!(one.runs + other.runs, 1, "one of them was at the end");
    let log = t.log(session).await;
    assert_covered(&log, before.len() as u64);
    assert_eq!(read(&log, 0), read(&before, 0));
    assert_eq!(log.iter().filter(|it| it.folded_from.is_some()).count(), 3);
}

async fn a_run_is_left_alone_until_its_time_has_come(t: TestControl) {
    let (session, _) = settled(&t, &conversation()).await;
    let log = t.log(session).await;
    t.outage(KEEP_DELTAS_MS - 1);
    t.sweep().await;
    assert_eq!(fold(&t).await, 0);
    assert_eq!(t.log(session).await, log);
    // A run that is still under way has no end to count from.
    let (other, claim) = t.running("e2").await;
    upload(&t, &claim, &conversation(), "live").await;
    t.outage(2);
    t.sweep().await;
    assert_eq!(fold(&t).await, 1);
    assert_ne!(t.log(session).await, log);
    assert!(t.log(other).await.iter().all(|it| it.folded_from.is_none()));
}

async fn a_fold_takes_no_session_over_and_leaves_live_owners_alone(t: TestControl) {
    let (session, _) = settled(&t, &conversation()).await;
    age(&t).await;
    t.control.acquire_owner(NAMESPACE, session).await.unwrap();
    let other = TestControl::owned_by(t.store.shared(), "server:other").await;
    let pass = Retention::default().pass(&other.control).await.unwrap();
    assert_eq!((pass.runs, pass.left), (0, 1), "the owner is alive");
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    let (owner, kinds) = (
        t.view(session).await.head.owner,
        t.kinds(session).await.len(),
    );
    assert_eq!(fold(&other).await, 1);
    assert_eq!(t.view(session).await.head.owner, owner);
    assert!(t.kinds(session).await.len() < kinds);
    assert!(!t.kinds(session).await.contains(&"OwnerChanged".to_owned()));
}

async fn no_fold_spans_the_number_that_a_fork_begins_after(t: TestControl) {
    let events: Vec<_> = (0..10).map(|_| said("x")).collect();
    let (session, _) = settled(&t, &events).await;
    let deltas = t.log(session).await;
    let first = deltas.iter().find(|it| it.kind == "StreamDelta").unwrap();
    let cut = first.session_seq + 4;
    let fork = t
        .control
        .fork_session(NAMESPACE, session, ForkPoint::Seq(cut), None, None)
        .await
        .unwrap();
    assert_eq!(fork.session.forked_from.map(|it| it.session_seq), Some(cut));
    t.control
        .capture_checkpoint(NAMESPACE, session, None, None)
        .await
        .unwrap();
    age(&t).await;
    fold(&t).await;
    let log = t.log(session).await;
    let folds: Vec<_> = log.iter().filter(|it| it.folded_from.is_some()).collect();
    let places: Vec<_> = folds
        .iter()
        .map(|it| (it.first_seq(), it.session_seq))
        .collect();
    assert_eq!(places, [(cut - 4, cut), (cut + 1, cut + 5)]);
    page(&t, session, cut, None).await.unwrap();
}

async fn an_upload_to_a_folded_run_is_told_that_the_run_is_settled(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    for id in ["a", "b", "c"] {
        t.say(&claim, id, "x").await.unwrap();
    }
    let alone = [("d", json!({"content": "y", "role": "user"}))];
    t.upload(&claim, &alone).await.unwrap();
    t.complete(&claim).await;
    t.say(&claim, "a", "x").await.unwrap();
    age(&t).await;
    fold(&t).await;
    let log = t.log(session).await;
    // What a fold has swallowed is not known any more, and what it stands for can't be compared.
    for id in ["a", "b", "c"] {
        assert_rejected!(t.say(&claim, id, "x").await, Rejection::RunSettled { .. });
    }
    t.upload(&claim, &alone).await.unwrap();
    assert_eq!(t.log(session).await, log);
}

async fn a_tape_that_was_left_behind_catches_up_before_the_fold(t: TestControl) {
    let (session, _) = settled(&t, &conversation()).await;
    let whole = tape(&t, session).await;
    // As if the process had died between a settle and the steps that follow it.
    t.store.run("DELETE FROM tape_entries").await;
    t.store
        .run("UPDATE tape_states SET state = '{\"tape_seq\":0,\"position\":0,\"open_text\":null,\"open_calls\":{}}'")
        .await;
    age(&t).await;
    assert_eq!(fold(&t).await, 1);
    let payloads = |tape: &[TapeEntry]| -> Vec<Value> {
        tape.iter().map(|entry| entry.payload.clone()).collect()
    };
    assert_eq!(payloads(&tape(&t, session).await), payloads(&whole));
}
