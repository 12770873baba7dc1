//! What the sweep does with lost executors (I18; faults 5, 7, 14; rules R10).

use tapedeck_domain::Rejection;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{SessionSettings, SessionStatus};
use tapedeck_domain::settle::Ending;

use crate::control::{TestControl, contact};

on_every_store! {
    expired_claim_is_recovered_without_restart,
    a_run_with_attempts_left_is_requested_again,
    a_run_given_back_in_the_middle_is_requested_again_while_attempts_remain,
    many_lost_runs_are_recovered_in_one_pass,
    a_poisonous_run_fails_visibly,
    lost_executors_alone_do_not_poison_a_run,
}

async fn expired_claim_is_recovered_without_restart(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "half a sent").await.unwrap();
    t.pass(55_000).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
    t.pass(10_000).await;
    t.sweep().await;
    let run = t.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    let recovery = run.recovery.unwrap();
    assert!(recovery.reclaimable);
    assert_eq!(recovery.reason, "lease_expired");
    assert!(!run.error.unwrap().is_empty());
    let view = t.view(session).await.session;
    assert_eq!(view.summary.status, SessionStatus::Interrupted);
    assert_eq!(view.summary.last_interrupted_run_id, Some(claim.run_id()));
    assert!(view.summary.resumable());
    // The session takes a prompt at once.
    t.prompt(session).await;
    let again = t.claim("e2").await;
    t.complete(&again).await;
}

async fn a_run_with_attempts_left_is_requested_again(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(2);
    let session = t.session_with(settings).await;
    let run = t.prompt(session).await;
    for attempt in 1..=2 {
        let claim = t.claim("e1").await;
        assert_eq!(
            (claim.run_id(), claim.claimed.attempt),
            (run.run_id, attempt)
        );
        t.beat(&claim).await.unwrap();
        t.pass(61_000).await;
        t.sweep().await;
    }
    assert_eq!(t.run(run.run_id).await.status, RunStatus::Interrupted);
    let expired = t
        .log(session)
        .await
        .into_iter()
        .filter(|event| event.kind == "RunLeaseExpired");
    let requeued: Vec<_> = expired
        .map(|event| event.payload.value()["requeued"].clone())
        .collect();
    assert_eq!(requeued, [true, false]);
}

async fn a_run_given_back_in_the_middle_is_requested_again_while_attempts_remain(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(2);
    let session = t.session_with(settings).await;
    let run = t.prompt(session).await;
    let first = t.claim("e1").await;
    t.say(&first, "a", "half a sent").await.unwrap();
    t.ask(&first, "q1").await.unwrap();
    let given_back = t.settle(&first, Ending::Interrupted).await.unwrap();
    assert_eq!(given_back.status, RunStatus::Requested);
    // Its claim is over, for the same report again as well.
    for ending in [Ending::Interrupted, Ending::Completed] {
        assert_rejected!(
            t.settle(&first, ending).await.map(|_| ()),
            Rejection::ClaimLost
        );
    }
    let log = t.log(session).await;
    let last: Vec<_> = log.iter().rev().take(2).collect();
    assert_eq!(last[0].kind, "RunReleased");
    assert_eq!(last[0].payload.value()["reason"], "handed_back");
    assert_eq!(last[1].kind, "ApprovalResponse");

    let second = t.claim("e2").await;
    assert_eq!((second.run_id(), second.claimed.attempt), (run.run_id, 2));
    t.say(&second, "b", "all of it").await.unwrap();
    t.settle(&second, Ending::Interrupted).await.unwrap();
    let run = t.run(run.run_id).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "handed_back");
}

async fn many_lost_runs_are_recovered_in_one_pass(t: TestControl) {
    let mut runs = Vec::new();
    for n in 0..250 {
        runs.push(t.running(&format!("e{n}")).await.1.run_id());
    }
    t.pass(65_000).await;
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (250, 0));
    for run in runs {
        assert_eq!(t.run(run).await.status, RunStatus::Interrupted);
    }
}

async fn a_poisonous_run_fails_visibly(t: TestControl) {
    let session = t.session().await;
    let run = t.prompt(session).await;
    for n in 0..3 {
        t.claim(&format!("e{n}")).await;
        t.pass(16_000).await;
        // The executor is well: it polls again, only the run killed its work.
        let mut poll = crate::control::claim_request(&format!("e{n}"), &format!("poll-{n}"));
        poll.contact = contact(&format!("e{n}"));
        "elsewhere".clone_into(&mut poll.contact.pool);
        let _ = t.control.claim(poll, std::time::Duration::ZERO).await;
        t.sweep().await;
        t.pass(10_000).await;
    }
    let run = t.run(run.run_id).await;
    assert_eq!(run.status, RunStatus::Failed);
    assert!(run.error.unwrap().contains("claim_poison"));
    assert_rejected!(
        t.try_claim("e9").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
}

async fn lost_executors_alone_do_not_poison_a_run(t: TestControl) {
    let session = t.session().await;
    let run = t.prompt(session).await;
    for n in 0..4 {
        t.claim(&format!("e{n}")).await;
        t.pass(16_000).await;
        t.sweep().await;
        t.pass(10_000).await;
    }
    let run = t.run(run.run_id).await;
    assert_eq!(run.status, RunStatus::Requested);
    assert_eq!(run.unservable.as_deref(), Some("unacknowledged"));
    let claim = t.claim("e9").await;
    t.complete(&claim).await;
    assert_eq!(t.run(run.run_id).await.unservable, None);
}
