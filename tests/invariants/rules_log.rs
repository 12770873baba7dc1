//! What the rules say of the order of writes, the log, the tape and its followers, sentence by
//! sentence (rules R1, R2, R19, R21, R23; faults 1, 3, 14).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tapedeck_control_plane::follow::EndReason;
use tapedeck_control_plane::{Error, FollowRequest, Followed, Follower, Start, TapeFilter};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::{Rejection, RunId, SessionId};
use tapedeck_store::Target;

use crate::control::{Claim, NAMESPACE, TestControl};
use crate::stores::Kind;

on_every_store! {
    overlapping_retries_at_once_leave_no_gap,
    an_upload_beside_the_end_of_its_run_is_there_whole_or_not_at_all,
    commands_of_all_kinds_at_once_never_fail_and_never_deadlock,
    rows_that_cannot_be_recovered_hide_no_other,
    a_tape_is_the_same_however_many_project_it,
    a_settle_reads_no_more_of_the_log_than_a_step,
    a_follower_through_a_tail_of_two_misses_nothing,
    a_number_that_was_seen_is_never_used_again,
    a_deleted_session_is_gone_for_everybody,
    a_run_scoped_stream_ends_at_its_runs_end_wherever_it_begins,
}

// SQLite has one writer at a time, and no two transactions that could wait for one another.
on_postgres! {
    what_waits_for_a_head_decides_on_what_it_finds_then,
    a_session_that_somebody_holds_keeps_no_other_from_being_recovered,
}

const LIMIT: Duration = Duration::from_secs(20);

/// This process and, where there may be one, another instance; else this one twice.
async fn instances(t: TestControl) -> [Arc<TestControl>; 2] {
    let t = Arc::new(t);
    let other = match t.store.kind {
        Kind::Sqlite => Arc::clone(&t),
        Kind::Postgres | Kind::PostgresWithoutHints => {
            let store = t.store.another_instance().await;
            Arc::new(TestControl::over(store).await)
        }
    };
    [t, other]
}

fn words(ids: &[String]) -> Vec<(&str, serde_json::Value)> {
    let word = |id: &String| json!({"content": id, "role": "assistant"});
    ids.iter().map(|id| (id.as_str(), word(id))).collect()
}

async fn overlapping_retries_at_once_leave_no_gap(t: TestControl) {
    let instances = instances(t).await;
    let (session, claim) = instances[0].running("e1").await;
    let mut uploads = tokio::task::JoinSet::new();
    for start in 0..20 {
        // Each event is in up to five batches, at another place in each.
        for n in 0..2 {
            let (t, claim) = (Arc::clone(&instances[(start + n) % 2]), claim.clone());
            uploads.spawn(async move {
                let ids: Vec<_> = (start * 2..start * 2 + 10)
                    .map(|n| format!("e{n}"))
                    .collect();
                t.upload(&claim, &words(&ids)).await.unwrap()
            });
        }
    }
    let recorded = uploads.join_all().await;
    let log = instances[1].log(session).await;
    let numbers: Vec<_> = log.iter().map(|event| event.session_seq).collect();
    assert_eq!(numbers, (1..=log.len() as u64).collect::<Vec<_>>());
    let deltas = log.iter().filter(|event| event.kind == "StreamDelta");
    assert_eq!(deltas.count(), 48);
    // Whoever sent it was told the one record there is.
    for record in recorded.into_iter().flatten() {
        let record = record.unwrap();
        assert_eq!(
            record,
            log[usize::try_from(record.session_seq).unwrap() - 1]
        );
    }
}

async fn an_upload_beside_the_end_of_its_run_is_there_whole_or_not_at_all(t: TestControl) {
    let instances = instances(t).await;
    let mut both = (0, 0);
    for round in 0..30 {
        let (session, claim) = instances[0].running("e1").await;
        instances[0].say(&claim, "stored", "x").await.unwrap();
        let mut uploads = tokio::task::JoinSet::new();
        for n in 0..4 {
            let (t, claim) = (Arc::clone(&instances[n % 2]), claim.clone());
            uploads.spawn(async move {
                // One that is stored and two that are new.
                let mut ids = vec!["stored".to_owned()];
                ids.extend((0..2).map(|part| format!("{n}-{part}")));
                let mut batch = words(&ids);
                batch[0].1 = json!({"content": "x", "role": "assistant"});
                (n, t.upload(&claim, &batch).await)
            });
        }
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let end = instances[1].settle(&claim, Ending::Completed);
        let (end, uploads) = tokio::join!(end, uploads.join_all());
        end.unwrap();
        let log = instances[0].log(session).await;
        let end = log.iter().position(|event| event.kind == "TurnEnd");
        assert_eq!(end.unwrap(), log.len() - 1, "nothing comes after the end");
        for (n, outcome) in uploads {
            let stored = log
                .iter()
                .filter(|event| event.event_id.starts_with(&format!("{n}-")));
            match outcome {
                Ok(_) => {
                    both.0 += 1;
                    assert_eq!(stored.count(), 2);
                }
                refused => {
                    both.1 += 1;
                    assert_rejected!(refused, Rejection::RunSettled { .. });
                    assert_eq!(stored.count(), 0);
                }
            }
        }
    }
    assert!(both.0 + both.1 == 120, "{both:?}");
}

/// One of many who work on the same few sessions.
async fn meddle(t: Arc<TestControl>, sessions: Vec<SessionId>, number: usize) {
    let fine = |outcome: Result<(), Error>| match outcome {
        Ok(()) | Err(Error::Rejected(_)) => {}
        other => panic!("{other:?}"),
    };
    for round in 0..12 {
        let session = sessions[(number + round) % sessions.len()];
        match (number + round * 3) % 8 {
            0 => fine(t.try_prompt(session, OnActive::Enqueue).await.map(drop)),
            1 => fine(t.try_prompt(session, OnActive::Interrupt).await.map(drop)),
            2 => drop(t.sweep().await),
            3 => {
                let cancelled = t.control.cancel_session(NAMESPACE, session, "client");
                fine(cancelled.await.map(drop));
            }
            4 => fine(t.resume(session).await.map(drop)),
            5 => {
                let continued = t.control.continue_queue(NAMESPACE, session).await;
                fine(continued.map(drop));
            }
            _ => match t.try_claim(&format!("e{number}-{round}")).await {
                Ok(claim) => {
                    fine(t.beat(&claim).await.map(drop));
                    fine(t.say(&claim, "a", "x").await.map(drop));
                    match t.ask(&claim, "q").await {
                        Ok(asked) => fine(t.answer(asked.interaction_id, true).await.map(drop)),
                        refused => fine(refused.map(drop)),
                    }
                    let ending = [Ending::Completed, Ending::Interrupted][round % 2];
                    fine(t.settle(&claim, ending).await.map(drop));
                }
                refused => fine(refused.map(drop)),
            },
        }
    }
}

async fn commands_of_all_kinds_at_once_never_fail_and_never_deadlock(t: TestControl) {
    let instances = instances(t).await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(instances[0].session().await);
    }
    let mut crowd = tokio::task::JoinSet::new();
    for number in 0..10 {
        let t = Arc::clone(&instances[number % 2]);
        crowd.spawn(meddle(t, sessions.clone(), number));
    }
    let done = tokio::time::timeout(6 * LIMIT, crowd.join_all()).await;
    done.unwrap();
    let request = tapedeck_store::AuditRequest::of(tapedeck_store::Check::ALL);
    let audit = instances[0].store.audit();
    for checked in audit.audit(&request).await.unwrap() {
        assert!(checked.findings.is_empty(), "{checked:?}");
    }
    if instances[0].store.kind != Kind::Sqlite {
        // The server counts them when a connection ends; the store would have tried again.
        for t in &instances {
            t.store.store.close().await;
        }
        let deadlocks = "SELECT deadlocks FROM pg_stat_database \
                         WHERE datname = current_database()";
        assert_eq!(instances[0].store.values::<i64>(deadlocks).await, [0]);
    }
}

/// (fault 14): a thousand rows that fail before the one that works.
async fn rows_that_cannot_be_recovered_hide_no_other(t: TestControl) {
    let t = Arc::new(t);
    let mut broken = tokio::task::JoinSet::new();
    for part in 0..20 {
        let t = Arc::clone(&t);
        broken.spawn(async move {
            for n in 0..50 {
                let session = t.session().await;
                t.prompt(session).await;
                t.claim(&format!("e{part}-{n}")).await;
            }
        });
    }
    broken.join_all().await;
    let (_, works) = t.running("e1").await;
    let all_but_the_last = "UPDATE sessions SET approval_policy = 'damaged' \
                            WHERE session_key < (SELECT max(session_key) FROM sessions)";
    t.store.run(all_but_the_last).await;
    t.pass(61_000).await;
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (1, 1_000));
    assert_eq!(t.run(works.run_id()).await.status, RunStatus::Interrupted);
    // They are not forgotten: mended, each is recovered as any other.
    t.store
        .run("UPDATE sessions SET approval_policy = 'interactive'")
        .await;
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (1_000, 0));
}

/// A session whose settled run left three steps of events and no tape.
async fn far_behind(t: &TestControl) -> (SessionId, RunId) {
    let (session, claim) = t.running("e1").await;
    for part in 0..3 {
        let ids: Vec<_> = (0..450).map(|n| format!("{part}-{n}")).collect();
        t.upload(&claim, &words(&ids)).await.unwrap();
    }
    t.complete(&claim).await;
    t.control.catch_up_tape(NAMESPACE, session).await.unwrap();
    t.store.run("DELETE FROM tape_entries").await;
    let nothing = r#"{"tape_seq":0,"position":0,"open_text":null,"open_calls":{}}"#;
    let back = format!("UPDATE tape_states SET state = '{nothing}'");
    t.store.run(&back).await;
    (session, claim.run_id())
}

async fn a_tape_is_the_same_however_many_project_it(t: TestControl) {
    let instances = instances(t).await;
    let (session, _) = far_behind(&instances[0]).await;
    let mut readers = tokio::task::JoinSet::new();
    for n in 0..6 {
        let t = Arc::clone(&instances[n % 2]);
        readers.spawn(async move { t.control.catch_up_tape(NAMESPACE, session).await.unwrap() });
    }
    readers.join_all().await;
    let filter = TapeFilter {
        session_id: session,
        after: 0,
        limit: 100,
        max_bytes: 1 << 20,
        include_superseded: true,
    };
    let tape = instances[1].control.tape(NAMESPACE, filter).await.unwrap();
    let entries: Vec<_> = tape
        .iter()
        .map(|entry| (entry.position, entry.kind.as_str()))
        .collect();
    let expected = [
        (1, "user_message"),
        (2, "assistant_message"),
        (3, "run_end"),
    ];
    assert_eq!(entries, expected);
    // Each again changes nothing.
    let before = instances[0].store.dump().await;
    instances[0]
        .control
        .catch_up_tape(NAMESPACE, session)
        .await
        .unwrap();
    assert_eq!(instances[0].store.dump().await, before);
}

async fn a_settle_reads_no_more_of_the_log_than_a_step(t: TestControl) {
    // Within a step of the end, the settle closes the tape; further behind it leaves it to others,
    // and the run ends no later for it.
    for (events, is_closed) in [(100, true), (1_400, false)] {
        let (session, claim) = t.running("e1").await;
        for part in 0..events / 100 {
            let ids: Vec<_> = (0..100).map(|n| format!("{part}-{n}")).collect();
            t.upload(&claim, &words(&ids)).await.unwrap();
        }
        // What catches up afterwards must not be what is looked at.
        let settle = async || {
            let end = RunEnd {
                ending: Ending::Completed,
                result: None,
                error: None,
                recovery_reason: None,
                body_digest: None,
            };
            t.settle_with(&claim, end, None).await
        };
        t.store.refuse_inserts_into("tape_entries").await;
        let outcome = settle().await;
        t.store.allow_writes().await;
        if is_closed {
            assert!(matches!(outcome, Err(Error::Store(_))), "{outcome:?}");
            settle().await.unwrap();
        } else {
            assert_eq!(outcome.unwrap().status, RunStatus::Completed);
        }
        t.control.catch_up_tape(NAMESPACE, session).await.unwrap();
    }
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

async fn next(follower: &mut Follower) -> Option<Followed> {
    let item = tokio::time::timeout(LIMIT, follower.next()).await;
    item.unwrap().unwrap()
}

/// Reads until it has caught up; gives the numbers.
async fn to_live(follower: &mut Follower) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        match next(follower).await.unwrap() {
            Followed::Open { .. } => {}
            Followed::Events(events) => {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
            Followed::Live { .. } => return seen,
            Followed::End(end) => panic!("{end:?} after {seen:?}"),
        }
    }
}

async fn read_to(follower: &mut Follower, last: u64) -> Vec<u64> {
    let mut seen: Vec<u64> = Vec::new();
    while seen.last().is_none_or(|seen| *seen < last) {
        match next(follower).await.unwrap() {
            Followed::Events(events) => {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
            Followed::Open { .. } | Followed::Live { .. } => {}
            Followed::End(end) => panic!("{end:?} after {seen:?}"),
        }
    }
    seen
}

async fn a_follower_through_a_tail_of_two_misses_nothing(t: TestControl) {
    // The tail in memory holds two events: commits that are larger, smaller and as large, readers
    // that keep up and one that is always behind it.
    let (session, claim) = t.running("e1").await;
    let mut follower = t.control.follow(from(session, 0, None)).await.unwrap();
    let mut lazy = t.control.follow(from(session, 0, None)).await.unwrap();
    let mut seen = to_live(&mut follower).await;
    let mut late = to_live(&mut lazy).await;
    for round in 0..24_usize {
        let ids: Vec<_> = (0..=round % 4).map(|n| format!("{round}-{n}")).collect();
        t.upload(&claim, &words(&ids)).await.unwrap();
        if round % 5 == 0 {
            // A commit that fails is published to nobody.
            t.store.refuse_inserts_into("events").await;
            let lost = t.say(&claim, &format!("lost-{round}"), "x").await;
            assert!(matches!(lost, Err(Error::Store(_))), "{lost:?}");
            t.store.allow_writes().await;
        }
        let head = t.view(session).await.head.head_seq;
        seen.extend(read_to(&mut follower, head).await);
        if round % 6 == 5 {
            late.extend(read_to(&mut lazy, head).await);
        }
    }
    let numbers: Vec<_> = t
        .log(session)
        .await
        .iter()
        .map(|event| event.session_seq)
        .collect();
    assert_eq!(seen, numbers);
    assert_eq!(late, numbers);
}

/// (fault 3): also where the process ends between a commit that fails and the next one.
async fn a_number_that_was_seen_is_never_used_again(mut t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let mut seen: Vec<(u64, String)> = Vec::new();
    for round in 0..6 {
        let mut follower = t
            .control
            .follow(from(session, seen.last().map_or(0, |seen| seen.0), None))
            .await
            .unwrap();
        t.say(&claim, &format!("e{round}"), "x").await.unwrap();
        let head = t.view(session).await.head.head_seq;
        while seen.last().is_none_or(|seen| seen.0 < head) {
            if let Followed::Events(events) = next(&mut follower).await.unwrap() {
                let shown = |event: &Arc<tapedeck_control_plane::feed::SharedEvent>| {
                    (event.record.session_seq, event.record.event_id.clone())
                };
                seen.extend(events.iter().map(shown));
            }
        }
        t.store.refuse("UPDATE", "session_heads").await;
        let lost = t.say(&claim, &format!("lost{round}"), "x").await;
        assert!(matches!(lost, Err(Error::Store(_))), "{lost:?}");
        t.store.allow_writes().await;
        drop(follower);
        t = t.restarted().await;
    }
    let log = t.log(session).await;
    let stored: Vec<_> = log
        .into_iter()
        .map(|event| (event.session_seq, event.event_id))
        .collect();
    assert_eq!(seen, stored);
}

async fn a_deleted_session_is_gone_for_everybody(t: TestControl) {
    let instances = instances(t).await;
    let (session, claim) = instances[0].running("e1").await;
    let asked = instances[0].ask(&claim, "q").await.unwrap().interaction_id;
    let mut followers = Vec::new();
    for t in &instances {
        let mut whole = t.control.follow(from(session, 0, None)).await.unwrap();
        to_live(&mut whole).await;
        let of_run = from(session, 0, Some(claim.run_id()));
        let mut of_run = t.control.follow(of_run).await.unwrap();
        to_live(&mut of_run).await;
        followers.extend([whole, of_run]);
    }
    let gone = instances[0]
        .control
        .delete_session(NAMESPACE, session, true);
    gone.await.unwrap();
    for mut follower in followers {
        // What the delete itself wrote may be seen or not.
        let end = loop {
            if let Followed::End(end) = next(&mut follower).await.unwrap() {
                break end;
            }
        };
        assert!(
            matches!(end, EndReason::Deleted | EndReason::Settled),
            "{end:?}"
        );
        assert!(next(&mut follower).await.is_none());
    }
    for t in &instances {
        let again = t.control.follow(from(session, 0, None)).await;
        assert!(
            matches!(again, Err(Error::NotFound(Target::Session))),
            "a later open"
        );
        let late = t.beat(&claim).await.map(drop);
        assert!(
            matches!(late, Err(Error::NotFound(Target::Run))),
            "{late:?}"
        );
        let late = t.say(&claim, "late", "x").await.map(drop);
        assert!(
            matches!(late, Err(Error::NotFound(Target::Run))),
            "{late:?}"
        );
        let late = t.answer(asked, true).await.map(drop);
        assert!(
            matches!(late, Err(Error::NotFound(Target::Interaction))),
            "{late:?}"
        );
    }
}

async fn a_run_scoped_stream_ends_at_its_runs_end_wherever_it_begins(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    t.prompt(session).await;
    let log = t.log(session).await;
    let end = log.iter().find(|event| event.kind == "TurnEnd").unwrap();
    let head = log.last().unwrap().session_seq;
    assert!(head > end.session_seq, "the session goes on");
    for after in 0..=head {
        let request = from(session, after, Some(claim.run_id()));
        let mut follower = t.control.follow(request).await.unwrap();
        assert!(matches!(
            next(&mut follower).await,
            Some(Followed::Open { .. })
        ));
        let mut seen = Vec::new();
        loop {
            match next(&mut follower).await.unwrap() {
                Followed::Events(events) => {
                    seen.extend(events.iter().map(|event| event.record.session_seq));
                }
                Followed::End(reason) => {
                    assert!(matches!(reason, EndReason::Settled), "{reason:?}");
                    break;
                }
                Followed::Live { .. } | Followed::Open { .. } => {}
            }
        }
        assert!(next(&mut follower).await.is_none());
        let expected: Vec<_> = (after + 1..=end.session_seq).collect();
        assert_eq!(seen, expected, "after {after}");
    }
}

/// Waits until two transactions wait for a lock.
async fn until_two_wait(t: &TestControl) {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waited = tokio::time::timeout(LIMIT, async {
        while t.store.values::<i64>(waiting).await[0] < 2 {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

fn send(t: &Arc<TestControl>, claim: &Claim, ids: &[&str]) -> tokio::task::JoinHandle<bool> {
    let (t, claim) = (Arc::clone(t), claim.clone());
    let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
    t.control.lifecycle().clone().spawn(async move {
        match t.upload(&claim, &words(&ids)).await {
            Ok(_) => true,
            refused => {
                assert_rejected!(refused, Rejection::RunSettled { .. });
                false
            }
        }
    })
}

async fn what_waits_for_a_head_decides_on_what_it_finds_then(a: TestControl) {
    let instances = instances(a).await;
    for with_end in [false, true] {
        let (session, claim) = instances[0].running("e1").await;
        let lock = format!("SELECT FROM session_heads WHERE session_id = '{session}' FOR UPDATE");
        let held = instances[0].store.begin(&lock).await;
        // An upload, its retry through the other instance with one event more, and the end of the
        // run: all of them began before any of them has written.
        let mut sent = vec![
            send(&instances[0], &claim, &["a", "b"]),
            send(&instances[1], &claim, &["a", "b", "c"]),
        ];
        until_two_wait(&instances[0]).await;
        let end = with_end.then(|| {
            let (t, claim) = (Arc::clone(&instances[1]), claim.clone());
            t.control
                .lifecycle()
                .clone()
                .spawn(async move { t.settle(&claim, Ending::Completed).await.unwrap() })
        });
        if with_end {
            // Of one session's commands an instance lets the first one wait for the lock only.
            tokio::task::yield_now().await;
            sent.push(send(&instances[0], &claim, &["late"]));
        }
        held.commit().await;
        let mut done = Vec::new();
        for sent in sent {
            done.push(tokio::time::timeout(LIMIT, sent).await.unwrap().unwrap());
        }
        if let Some(end) = end {
            end.await.unwrap();
        }
        let log = instances[0].log(session).await;
        let numbers: Vec<_> = log.iter().map(|event| event.session_seq).collect();
        assert_eq!(numbers, (1..=log.len() as u64).collect::<Vec<_>>());
        let ids = |id: &str| log.iter().filter(|event| event.event_id == id).count();
        assert_eq!(ids("c"), usize::from(done[1]));
        assert_eq!(ids("a"), usize::from(done[0] || done[1]));
        assert_eq!(ids("b"), ids("a"));
        if with_end {
            assert_eq!(ids("late"), usize::from(done[2]));
            assert_eq!(log.last().unwrap().kind, "TurnEnd");
        } else {
            assert_eq!(done, [true, true]);
        }
    }
}

async fn a_session_that_somebody_holds_keeps_no_other_from_being_recovered(t: TestControl) {
    let (first, held_claim) = t.running("e1").await;
    let mut others = Vec::new();
    for n in 0..5 {
        others.push(t.running(&format!("o{n}")).await.1.run_id());
    }
    t.pass(61_000).await;
    let lock = format!("SELECT FROM session_heads WHERE session_id = '{first}' FOR UPDATE");
    let held = t.store.begin(&lock).await;
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (5, 1));
    for run in others {
        assert_eq!(t.run(run).await.status, RunStatus::Interrupted);
    }
    held.commit().await;
    assert_eq!(t.sweep().await.claims, 1);
    let run = t.run(held_claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
}
