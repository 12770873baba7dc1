//! Who sees which run: labels, pools, pins, owners and back-off; and what the sweep is shown.

use std::collections::BTreeMap;

use serde_json::json;
use tapedeck_domain::executor::{Contact, Report};
use tapedeck_domain::owner::{Epoch, Owner};
use tapedeck_domain::run::{LiveRun, RunState};
use tapedeck_domain::session::{ExecutorTarget, Session};
use tapedeck_domain::{LeaseInstant, Now, RunKey, Timestamp};
use tapedeck_store::Store as _;
use tapedeck_store::rows::{ClaimFilter, QueueEntry};

use crate::support::{
    Fixture, LEASE, LOCAL_OWNERS_ARE_DEAD, OWNER, WALL, claim, now, run, run_id, session_id,
};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn filter(carried: &[(&str, &str)]) -> ClaimFilter {
    ClaimFilter {
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        executor_id: "e".to_owned(),
        labels: labels(carried),
        session_id: None,
        owner_id: OWNER.to_owned(),
    }
}

async fn waiting(fixture: &Fixture, number: u128, target: ExecutorTarget) -> (Session, LiveRun) {
    let session = fixture.session(number).await;
    let requested = RunState::Requested {
        ready_at: LeaseInstant(LEASE),
    };
    let live = fixture.run(&session, number, requested).await;
    let entry = QueueEntry {
        run_key: live.key,
        session_key: session.key,
        target,
        preference: None,
        flow: "default/".to_owned(),
        turn: live.key.0,
        ready_at: LeaseInstant(LEASE),
    };
    run(&fixture.store, move |tx| {
        let entry = entry.clone();
        Box::pin(async move { Ok(tx.enqueue(&entry).await?) })
    })
    .await
    .unwrap();
    (session, live)
}

async fn candidates(fixture: &Fixture, filter: ClaimFilter, at: i64, limit: u32) -> Vec<RunKey> {
    run(&fixture.store, move |tx| {
        let filter = filter.clone();
        Box::pin(async move {
            let found = tx.candidates(&filter, LeaseInstant(at), limit).await?;
            Ok(found
                .into_iter()
                .map(|candidate| candidate.run_key)
                .collect())
        })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_run_is_offered_to_executors_that_carry_all_its_labels() {
    let fixture = Fixture::open().await;
    let requiring = |pairs: &[(&str, &str)]| ExecutorTarget {
        labels: labels(pairs),
        ..ExecutorTarget::default()
    };
    let (_, gpu) = waiting(&fixture, 1, requiring(&[("gpu", "yes")])).await;
    let (_, plain) = waiting(&fixture, 2, requiring(&[])).await;
    let (_, both) = waiting(&fixture, 3, requiring(&[("gpu", "yes"), ("os", "linux")])).await;
    let (_, no_gpu) = waiting(&fixture, 4, requiring(&[("gpu", "no")])).await;
    let all = filter(&[("gpu", "yes"), ("os", "linux"), ("more", "1")]);
    assert_eq!(
        candidates(&fixture, all.clone(), LEASE, 9).await,
        [gpu.key, plain.key, both.key]
    );
    assert_eq!(
        candidates(&fixture, all, LEASE, 2).await,
        [gpu.key, plain.key]
    );
    assert_eq!(
        candidates(&fixture, filter(&[]), LEASE, 9).await,
        [plain.key]
    );
    assert_eq!(
        candidates(&fixture, filter(&[("gpu", "no")]), LEASE, 9).await,
        [plain.key, no_gpu.key]
    );
}

/// As many and as long as the API takes them, which is more than an index may hold.
#[tokio::test]
async fn a_run_may_require_the_longest_labels() {
    let fixture = Fixture::open().await;
    let long = |number: u32| -> String {
        let letter = |at: u32| char::from_u32(0x4e00 + (number * 211 + at * 97) % 0x5000);
        (0..200).filter_map(letter).collect()
    };
    let required: BTreeMap<_, _> = (0..64)
        .map(|label| (long(label), long(label + 64)))
        .collect();
    let target = ExecutorTarget {
        labels: required.clone(),
        ..ExecutorTarget::default()
    };
    let (_, live) = waiting(&fixture, 1, target).await;
    let carried = ClaimFilter {
        labels: required,
        ..filter(&[])
    };
    assert_eq!(candidates(&fixture, carried, LEASE, 9).await, [live.key]);
    assert!(candidates(&fixture, filter(&[]), LEASE, 9).await.is_empty());
}

#[tokio::test]
async fn pool_kind_pin_and_back_off_decide_too() {
    let fixture = Fixture::open().await;
    let target = ExecutorTarget::default;
    let elsewhere = ExecutorTarget {
        pool: "other".to_owned(),
        ..target()
    };
    let of_kind = ExecutorTarget {
        executor_kind: "other".to_owned(),
        ..target()
    };
    let pinned = |name: &str| ExecutorTarget {
        executor_id: Some(name.to_owned()),
        ..target()
    };
    waiting(&fixture, 1, elsewhere).await;
    waiting(&fixture, 2, of_kind).await;
    waiting(&fixture, 3, pinned("somebody")).await;
    let (session, mine) = waiting(&fixture, 4, pinned("e")).await;
    assert_eq!(
        candidates(&fixture, filter(&[]), LEASE, 9).await,
        [mine.key]
    );
    assert!(
        candidates(&fixture, filter(&[]), LEASE - 1, 9)
            .await
            .is_empty()
    );
    let only = |session: &Session| ClaimFilter {
        session_id: Some(session.session_id),
        ..filter(&[])
    };
    assert_eq!(
        candidates(&fixture, only(&session), LEASE, 9).await,
        [mine.key]
    );
    let other = fixture.session(9).await;
    assert!(
        candidates(&fixture, only(&other), LEASE, 9)
            .await
            .is_empty()
    );

    let key = mine.key;
    let left = run(&fixture.store, move |tx| {
        Box::pin(async move { Ok((tx.dequeue(key).await?, tx.dequeue(key).await?)) })
    });
    assert_eq!(left.await.unwrap(), (Some(key.0), None));
    assert!(candidates(&fixture, filter(&[]), LEASE, 9).await.is_empty());
}

#[tokio::test]
async fn a_session_of_another_live_owner_is_left_out() {
    let fixture = Fixture::open().await;
    let (session, waiting) = waiting(&fixture, 1, ExecutorTarget::default()).await;
    let cases = [
        (Some(("server:other", Some(LEASE + 1))), false),
        (Some(("server:other", Some(LEASE))), true),
        (Some(("server:other", None)), true),
        (Some((OWNER, Some(LEASE - 1))), true),
        (Some(("cli:1234", Some(LEASE + 1))), LOCAL_OWNERS_ARE_DEAD),
        (None, true),
    ];
    for (owner, seen) in cases {
        let key = session.key;
        run(&fixture.store, move |tx| {
            Box::pin(async move {
                let mut head = tx.lock_session_by_key(key).await?.head;
                head.owner = owner.map(|(name, expires_at)| Owner {
                    owner_id: name.to_owned(),
                    epoch: Epoch(1),
                    expires_at: expires_at.map(LeaseInstant),
                });
                Ok(tx.save_head(&head).await?)
            })
        })
        .await
        .unwrap();
        let expected: &[RunKey] = if seen { &[waiting.key] } else { &[] };
        let found = candidates(&fixture, filter(&[]), LEASE, 9).await;
        assert_eq!(found, expected, "{owner:?}");
        let of_session = ClaimFilter {
            session_id: Some(session.session_id),
            ..filter(&[])
        };
        let found = candidates(&fixture, of_session, LEASE, 9).await;
        assert_eq!(found, expected, "{owner:?}");
    }
}

#[tokio::test]
async fn expired_claims_come_by_key_and_only_once_they_are_over() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let mut keys = Vec::new();
    for (number, expires_at) in [(1, LEASE), (2, LEASE + 1), (3, LEASE - 9)] {
        let state = RunState::Running(claim("e", 1, expires_at));
        keys.push(fixture.run(&session, number, state).await.key);
    }
    fixture.run(&session, 4, RunState::Queued).await;
    let expired = run(&fixture.store, move |tx| {
        let first = keys[0];
        Box::pin(async move {
            let at = LeaseInstant(LEASE);
            let all = tx.expired_claims(at, RunKey(0), 9).await?;
            let later = tx.expired_claims(at, first, 9).await?;
            let one = tx.expired_claims(at, RunKey(0), 1).await?;
            Ok((all, later, one))
        })
    })
    .await
    .unwrap();
    let numbers = |found: &[_]| -> Vec<_> {
        let id = |(_, id): &(RunKey, tapedeck_domain::RunId)| *id;
        found.iter().map(id).collect()
    };
    assert_eq!(numbers(&expired.0), [run_id(1), run_id(3)]);
    assert_eq!(numbers(&expired.1), [run_id(3)]);
    assert_eq!(numbers(&expired.2), [run_id(1)]);
}

fn contact() -> Contact {
    Contact {
        executor_id: "e".to_owned(),
        instance_id: Some("i-1".to_owned()),
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        labels: labels(&[("gpu", "yes")]),
        process_id: Some(77),
        version: Some("1".to_owned()),
        capabilities: Some(json!({"load": true})),
        workspace: Some(json!("/w")),
        max_runs: Some(2),
    }
}

#[tokio::test]
async fn an_executor_keeps_what_a_contact_does_not_say() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let held = claim("e", 1, LEASE + 60_000);
    let running = fixture
        .run(&session, 1, RunState::Running(held.clone()))
        .await;
    run(&fixture.store, move |tx| {
        let (held, key) = (held.clone(), running.key);
        Box::pin(async move {
            let later = Now {
                wall: Timestamp(WALL + 5),
                lease: LeaseInstant(LEASE + 5),
                ..now()
            };
            assert!(!tx.is_draining("e").await?);
            tx.touch_executor("e", &Report::default(), now()).await?;
            tx.save_contact(&contact(), now()).await?;
            let silent = Contact {
                instance_id: None,
                process_id: None,
                version: None,
                capabilities: None,
                workspace: None,
                max_runs: None,
                ..contact()
            };
            tx.save_contact(&silent, later).await?;
            let report = Report {
                instance_id: Some("i-2".to_owned()),
                process_id: Some(77),
                ..Report::default()
            };
            tx.touch_executor("e", &report, later).await?;
            tx.insert_claim(key, &held, now().lease).await?;
            assert!(!tx.is_draining("e").await?);
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    let found = reader.executor("e").await.unwrap().unwrap();
    let expected = Contact {
        instance_id: Some("i-2".to_owned()),
        process_id: Some(77),
        ..contact()
    };
    assert_eq!(found.contact, expected);
    assert_eq!(found.last_seen_at, Timestamp(WALL + 5));
    assert_eq!(found.last_seen, LeaseInstant(LEASE + 5));
    assert_eq!(found.live_runs.len(), 1);
    assert_eq!(found.live_runs[0].run_id, run_id(1));
    let last = found.last_run.as_ref();
    let last = last.map(|run| (run.run_id, run.session_id));
    assert_eq!(last, Some((run_id(1), session_id(1))));
    assert_eq!(reader.executor("d").await.unwrap(), None);
    for after in [None, Some("d")] {
        let page = reader.executors(after, 9).await.unwrap();
        assert_eq!(page, std::slice::from_ref(&found));
    }
    assert_eq!(reader.executors(Some("e"), 9).await.unwrap(), []);
}

#[tokio::test]
async fn claims_are_found_by_request_and_attempt_and_their_makers_may_be_seen() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let queued = fixture.run(&session, 1, RunState::Queued).await;
    run(&fixture.store, move |tx| {
        let key = queued.key;
        Box::pin(async move {
            tx.save_contact(&contact(), now()).await?;
            for attempt in 1..=3 {
                let made = claim("e", attempt, LEASE);
                assert_eq!(tx.claim_of_request(&made.request_hash).await?, None);
                tx.insert_claim(key, &made, LeaseInstant(LEASE)).await?;
                let found = tx.claim_of_request(&made.request_hash).await?.unwrap();
                assert_eq!((found.run_id, found.attempt), (run_id(1), attempt));
                let hash = tx.claim_token_hash(key, attempt).await?;
                assert_eq!(hash, Some(made.token_hash));
            }
            assert_eq!(tx.claim_token_hash(key, 4).await?, None);
            assert!(!tx.claimants_seen(key, 3).await?);
            let later = Now {
                lease: LeaseInstant(LEASE + 1),
                ..now()
            };
            tx.touch_executor("e", &Report::default(), later).await?;
            assert!(tx.claimants_seen(key, 3).await?);
            assert!(!tx.claimants_seen(key, 4).await?);
            Ok(())
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn active_heads_are_renewed_and_idle_ones_released() {
    let fixture = Fixture::open().await;
    for number in 1..=4 {
        let key = fixture.session(number).await.key;
        run(&fixture.store, move |tx| {
            Box::pin(async move {
                let mut head = tx.lock_session_by_key(key).await?.head;
                head.active_run = (number <= 2).then_some(RunKey(1));
                if number == 2 {
                    head.owner.as_mut().unwrap().expires_at = Some(LeaseInstant(LEASE));
                }
                if number == 4 {
                    head.last_activity_at = Timestamp(WALL + 10);
                }
                Ok(tx.save_head(&head).await?)
            })
        })
        .await
        .unwrap();
    }
    run(&fixture.store, |tx| {
        Box::pin(async move {
            let until = LeaseInstant(LEASE + 90_000);
            let (at, since) = (LeaseInstant(LEASE), Timestamp(WALL + 10));
            assert_eq!(tx.renew_active_heads("other", at, until).await?, 0);
            assert_eq!(tx.renew_active_heads(OWNER, at, until).await?, 1);
            assert_eq!(tx.release_idle_heads("other", since, 9).await?, 0);
            assert_eq!(tx.release_idle_heads(OWNER, since, 9).await?, 1);
            assert_eq!(tx.release_idle_heads(OWNER, since, 9).await?, 0);
            let mut leases = Vec::new();
            for number in 1..=4 {
                let locked = tx.lock_session("default", session_id(number)).await?;
                leases.push(locked.unwrap().head.owner.unwrap().expires_at);
            }
            let lease = |at| Some(LeaseInstant(at));
            let start = lease(LEASE + 60_000);
            assert_eq!(leases, [Some(until), lease(LEASE), None, start]);
            Ok(())
        })
    })
    .await
    .unwrap();
}
