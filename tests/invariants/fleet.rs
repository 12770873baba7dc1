//! What operators do with executors: drain, undrain, forget; and how much an executor may hold.

use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::commands::claim_run::{ClaimRun, ClaimedRun};
use tapedeck_control_plane::{Error, Outcome, Target};
use tapedeck_domain::Rejection;
use tapedeck_domain::executor::{ExecutorFilter, ExecutorStatus};
use tokio::task::JoinHandle;

use crate::control::{TestControl, claim_request};
use crate::wait::eventually;

on_every_store! {
    a_draining_executor_cannot_claim,
    no_claim_commits_after_a_drain_was_answered,
    a_held_poll_is_answered_at_once_by_a_drain,
    a_poll_during_a_drain_takes_the_first_run_after_it,
    a_heartbeat_says_that_the_executor_is_to_drain,
    an_executor_is_given_no_more_runs_than_it_takes,
    claims_at_the_same_time_stay_within_what_an_executor_takes,
    a_held_poll_of_a_full_executor_takes_a_run_when_one_ends,
    only_an_executor_that_is_offline_can_be_forgotten,
    executors_are_listed_by_pool_and_status,
}

const LIMIT: Duration = Duration::from_secs(20);

async fn drain(t: &TestControl, executor_id: &str, draining: bool) {
    let executor = t.control.drain_executor(executor_id, draining).await;
    assert_eq!(executor.unwrap().draining, draining);
}

/// A claim by an executor that takes this many runs.
fn claim_of(t: &TestControl, executor_id: &str, max_runs: u32) -> ClaimRun {
    let mut claim = claim_request(executor_id, &format!("request-{}", t.control.new_id()));
    claim.contact.max_runs = Some(max_runs);
    claim
}

/// A claim that is held.
fn held(t: &Arc<TestControl>, claim: ClaimRun) -> JoinHandle<Outcome<ClaimedRun>> {
    let control = t.control.clone();
    let lifecycle = t.control.lifecycle().clone();
    lifecycle.spawn(async move { control.claim(claim, Duration::from_mins(1)).await })
}

async fn a_draining_executor_cannot_claim(t: TestControl) {
    assert!(matches!(
        t.control.drain_executor("e1", true).await,
        Err(Error::NotFound(Target::Executor))
    ));
    let (_, claim) = t.running("e1").await;
    drain(&t, "e1", true).await;
    drain(&t, "e1", true).await;
    let executor = t.control.executor("e1").await.unwrap();
    let now = t.control.now().await.unwrap();
    assert_eq!(
        executor.status(now, t.control.timing()),
        ExecutorStatus::Draining
    );
    // What it has goes on, and what it says of itself ends no drain.
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    let waiting = t.prompt(t.session().await).await;
    for _ in 0..3 {
        assert_rejected!(
            t.try_claim("e1").await.map(drop),
            Rejection::ExecutorDraining { .. }
        );
        t.pass(20_000).await;
    }
    let t = t.restarted().await;
    assert_rejected!(
        t.try_claim("e1").await.map(drop),
        Rejection::ExecutorDraining { .. }
    );
    drain(&t, "e1", false).await;
    drain(&t, "e1", false).await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn no_claim_commits_after_a_drain_was_answered(t: TestControl) {
    const CLAIMERS: usize = 8;
    let t = Arc::new(t);
    let (_, first) = t.running("e1").await;
    t.complete(&first).await;
    for _ in 0..6 {
        for _ in 0..2 * CLAIMERS {
            t.prompt(t.session().await).await;
        }
        let mut claimers = tokio::task::JoinSet::new();
        for _ in 0..CLAIMERS {
            let t = Arc::clone(&t);
            claimers.spawn(async move {
                loop {
                    match t.try_claim("e1").await {
                        Ok(_) => {}
                        Err(Error::Rejected(Rejection::ExecutorDraining { .. })) => return,
                        other => panic!("{other:?}"),
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        // Somewhere in the middle of the claims.
        let begun = async || {
            let executor = t.control.executor("e1").await.unwrap();
            (!executor.live_runs.is_empty()).then_some(())
        };
        eventually("a run is claimed", LIMIT, begun).await;
        let at_the_answer = t.control.drain_executor("e1", true).await.unwrap();
        while let Some(ended) = claimers.join_next().await {
            ended.unwrap();
        }
        let after = t.control.executor("e1").await.unwrap();
        assert_eq!(after.live_runs, at_the_answer.live_runs);
        drain(&t, "e1", false).await;
        // The next round starts with nothing in hand and nothing that waits.
        for run in after.live_runs {
            let control = &t.control;
            let gone = control.delete_session(crate::control::NAMESPACE, run.session_id, true);
            gone.await.unwrap();
        }
        while let Ok(claim) = t.try_claim("e1").await {
            t.complete(&claim).await;
        }
    }
}

async fn a_held_poll_is_answered_at_once_by_a_drain(t: TestControl) {
    let t = Arc::new(t);
    let poll = held(&t, claim_request("e1", "held"));
    let known = async || t.control.executor("e1").await.ok();
    eventually("the executor is known", LIMIT, known).await;
    // Whether the poll has looked for work once can't be seen from outside; if a drain came before
    // that, the next one finds it waiting.
    let answered = async || {
        drain(&t, "e1", false).await;
        drain(&t, "e1", true).await;
        poll.is_finished().then_some(())
    };
    eventually("the poll is answered", LIMIT, answered).await;
    assert_rejected!(
        poll.await.unwrap().map(drop),
        Rejection::ExecutorDraining { .. }
    );
}

async fn a_poll_during_a_drain_takes_the_first_run_after_it(t: TestControl) {
    let t = Arc::new(t);
    let (_, claim) = t.running("e1").await;
    t.complete(&claim).await;
    drain(&t, "e1", true).await;
    let poll = held(&t, claim_request("e1", "held"));
    let waiting = t.prompt(t.session().await).await;
    assert_rejected!(
        t.try_claim("e1").await.map(drop),
        Rejection::ExecutorDraining { .. }
    );
    drain(&t, "e1", false).await;
    let claimed = tokio::time::timeout(LIMIT, poll).await.unwrap().unwrap();
    assert_eq!(claimed.unwrap().run.run_id, waiting.run_id);
}

async fn a_heartbeat_says_that_the_executor_is_to_drain(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    assert!(!t.beat(&claim).await.unwrap().drain);
    drain(&t, "e1", true).await;
    assert!(t.beat(&claim).await.unwrap().drain);
    drain(&t, "e1", false).await;
    assert!(!t.beat(&claim).await.unwrap().drain);
}

async fn an_executor_is_given_no_more_runs_than_it_takes(t: TestControl) {
    for _ in 0..6 {
        t.prompt(t.session().await).await;
    }
    let first = t.claim_as(claim_of(&t, "e1", 2)).await.unwrap();
    let again = claim_of(&t, "e1", 2);
    let second = t.claim_as(again.clone()).await.unwrap();
    assert_rejected!(
        t.claim_as(claim_of(&t, "e1", 2)).await.map(drop),
        Rejection::ExecutorFull {
            live_runs: 2,
            max_runs: 2,
            ..
        }
    );
    // Asking for the same claim again asks for no more.
    let replayed = t.claim_as(again).await.unwrap();
    assert_eq!(replayed.run_id(), second.run_id());
    // What it doesn't say again it has said before.
    let mut silent = claim_of(&t, "e1", 2);
    silent.contact.max_runs = None;
    assert_rejected!(
        t.claim_as(silent).await.map(drop),
        Rejection::ExecutorFull { .. }
    );
    // A new process of that name is not held back by what the old one left.
    let mut restarted = claim_of(&t, "e1", 1);
    restarted.contact.instance_id = Some("another".to_owned());
    restarted.request.instance_id = Some("another".to_owned());
    t.claim_as(restarted).await.unwrap();
    // Others are not concerned.
    t.claim_as(claim_of(&t, "e2", 1)).await.unwrap();
    t.complete(&first).await;
    t.claim_as(claim_of(&t, "e1", 2)).await.unwrap();
    // A claim whose lease has ended is none.
    t.pass(16_000).await;
    t.claim_as(claim_of(&t, "e1", 2)).await.unwrap();
}

async fn claims_at_the_same_time_stay_within_what_an_executor_takes(t: TestControl) {
    let t = Arc::new(t);
    for round in 0..5 {
        let name = format!("e{round}");
        for _ in 0..12 {
            t.prompt(t.session().await).await;
        }
        let mut claims = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let (t, name) = (Arc::clone(&t), name.clone());
            claims.spawn(async move { t.claim_as(claim_of(&t, &name, 3)).await });
        }
        let mut won = Vec::new();
        while let Some(claim) = claims.join_next().await {
            match claim.unwrap() {
                Ok(claim) => won.push(claim),
                refused => assert_rejected!(
                    refused,
                    Rejection::ExecutorFull { .. } | Rejection::NoRunAvailable
                ),
            }
        }
        assert_eq!(won.len(), 3);
    }
}

async fn a_held_poll_of_a_full_executor_takes_a_run_when_one_ends(t: TestControl) {
    let t = Arc::new(t);
    t.prompt(t.session().await).await;
    let first = t.claim_as(claim_of(&t, "e1", 1)).await.unwrap();
    let poll = held(&t, claim_of(&t, "e1", 1));
    let waiting = t.prompt(t.session().await).await;
    t.complete(&first).await;
    let claimed = tokio::time::timeout(LIMIT, poll).await.unwrap().unwrap();
    assert_eq!(claimed.unwrap().run.run_id, waiting.run_id);
}

async fn only_an_executor_that_is_offline_can_be_forgotten(t: TestControl) {
    assert!(matches!(
        t.control.forget_executor("e1").await,
        Err(Error::NotFound(Target::Executor))
    ));
    let (session, claim) = t.running("e1").await;
    let refused = |status| {
        move |outcome: Outcome<()>| {
            assert_rejected!(outcome, Rejection::ExecutorNotOffline { status: is, .. } if is == status);
        }
    };
    refused(ExecutorStatus::Running)(t.control.forget_executor("e1").await);
    t.complete(&claim).await;
    refused(ExecutorStatus::Idle)(t.control.forget_executor("e1").await);
    drain(&t, "e1", true).await;
    refused(ExecutorStatus::Draining)(t.control.forget_executor("e1").await);
    t.pass(60_000).await;
    refused(ExecutorStatus::Stale)(t.control.forget_executor("e1").await);
    t.pass(60_000).await;
    t.control.forget_executor("e1").await.unwrap();
    assert!(matches!(
        t.control.executor("e1").await,
        Err(Error::NotFound(Target::Executor))
    ));
    // What it did stays, and should it come back it is new.
    assert_eq!(
        t.run(claim.run_id()).await.executor_id.as_deref(),
        Some("e1")
    );
    let next = t.prompt(session).await;
    assert_eq!(t.claim("e1").await.run_id(), next.run_id);
    assert!(!t.control.executor("e1").await.unwrap().draining);
}

async fn executors_are_listed_by_pool_and_status(t: TestControl) {
    for (name, pool) in [("a", "one"), ("b", "two"), ("c", "one"), ("d", "one")] {
        let mut poll = claim_request(name, &format!("poll-{name}"));
        pool.clone_into(&mut poll.contact.pool);
        assert_rejected!(t.claim_as(poll).await.map(drop), Rejection::NoRunAvailable);
    }
    drain(&t, "c", true).await;
    let named = async |pool: Option<&str>, status, limit| {
        let filter = ExecutorFilter {
            pool: pool.map(str::to_owned),
            status,
        };
        let listed = t.control.executors(&filter, None, limit).await.unwrap();
        let names = listed.into_iter().map(|it| it.contact.executor_id);
        names.collect::<Vec<_>>()
    };
    assert_eq!(named(None, None, 10).await, ["a", "b", "c", "d"]);
    assert_eq!(named(Some("one"), None, 10).await, ["a", "c", "d"]);
    assert_eq!(named(Some("one"), None, 2).await, ["a", "c"]);
    let idle = Some(ExecutorStatus::Idle);
    assert_eq!(named(Some("one"), idle, 10).await, ["a", "d"]);
    let draining = Some(ExecutorStatus::Draining);
    assert_eq!(named(None, draining, 10).await, ["c"]);
    assert!(named(Some("two"), draining, 10).await.is_empty());
}
