//! The deployment's clock and the credit for time in which nobody could renew (rules R6, R7).

use tapedeck_domain::owner::Owner;
use tapedeck_domain::queue::Preference;
use tapedeck_domain::run::RunState;
use tapedeck_domain::session::ExecutorTarget;
use tapedeck_domain::{InteractionId, LeaseInstant};
use tapedeck_store::Store as _;
use tapedeck_store::rows::{Deployment, QueueEntry};

use crate::support::{Fixture, LEASE, claim, question, run, run_id};

async fn set_alive(fixture: &Fixture) {
    run(&fixture.store, |tx| {
        let at = tx.now().lease;
        Box::pin(async move { Ok(tx.set_alive(at).await?) })
    })
    .await
    .unwrap();
}

async fn deployment(fixture: &Fixture) -> Deployment {
    run(&fixture.store, |tx| {
        Box::pin(async move { Ok(tx.deployment().await?) })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn another_boot_is_noticed_until_somebody_is_alive_on_it() {
    let fixture = Fixture::open().await;
    let first = deployment(&fixture).await;
    assert_eq!((first.alive_at, first.boot_changed), (None, false));
    set_alive(&fixture).await;
    let fixture = fixture.reopen("boot-a").await;
    let same = deployment(&fixture).await;
    assert_eq!(
        (same.alive_at, same.boot_changed),
        (Some(LeaseInstant(LEASE)), false)
    );
    let fixture = fixture.reopen("boot-b").await;
    let changed = deployment(&fixture).await;
    assert_eq!(
        (changed.alive_at, changed.boot_changed),
        (Some(LeaseInstant(LEASE)), true)
    );
    set_alive(&fixture).await;
    assert!(!deployment(&fixture).await.boot_changed);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_gap_moves_what_was_live_and_nothing_else() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let dead = claim("e", 1, LEASE);
    fixture.run(&session, 1, RunState::Running(dead)).await;
    let held = claim("e", 2, LEASE + 5);
    let cancelling = RunState::Cancelling {
        claim: held.clone(),
        deadline: LeaseInstant(LEASE + 9),
    };
    let live = fixture.run(&session, 2, cancelling).await;
    let waiting = RunState::Requested {
        ready_at: LeaseInstant(LEASE + 3),
    };
    let waiting = fixture.run(&session, 3, waiting).await;
    // The clock of the other boot is far behind.
    let gap = 7 - LEASE;
    let question_id = question(&session, &live, 1).interaction_id;
    run(&fixture.store, move |tx| {
        let (session, live, waiting) = (session.clone(), live.clone(), waiting.clone());
        let held = held.clone();
        Box::pin(async move {
            tx.insert_claim(live.key, &held, LeaseInstant(LEASE))
                .await?;
            tx.insert_interaction(session.key, &question(&session, &live, 1))
                .await?;
            let entry = QueueEntry {
                run_key: waiting.key,
                session_key: session.key,
                target: ExecutorTarget::default(),
                preference: Some(Preference {
                    executor_id: "e".to_owned(),
                    opens_at: LeaseInstant(LEASE + 5),
                }),
                flow: "default/".to_owned(),
                turn: 1,
                ready_at: LeaseInstant(LEASE + 3),
            };
            tx.enqueue(&entry).await?;
            assert_eq!(tx.shift_leases(LeaseInstant(LEASE), gap).await?, 1);
            let owner: Owner = tx
                .lock_session_by_key(session.key)
                .await?
                .head
                .owner
                .unwrap();
            assert_eq!(owner.expires_at, Some(LeaseInstant(60_007)));
            let moved = tx.live_run(live.key).await?.unwrap().state;
            let RunState::Cancelling { claim, deadline } = moved else {
                panic!("the state must stay");
            };
            assert_eq!(claim.expires_at, LeaseInstant(12));
            assert_eq!(deadline, LeaseInstant(16));
            let dead = tx.lock_run(run_id(1)).await?.unwrap().live.unwrap();
            // On the new clock the old end would be yet to come.
            assert_eq!(dead.state.claim().unwrap().expires_at, LeaseInstant(7));
            let state = tx.live_run(waiting.key).await?.unwrap().state;
            let ready_at = LeaseInstant(7);
            assert_eq!(state, RunState::Requested { ready_at });
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    let id: InteractionId = question_id;
    let moved = reader.interaction("default", id).await.unwrap().unwrap();
    assert_eq!(moved.deadline, LeaseInstant(1_007));
    fixture.store.close().await;
}
