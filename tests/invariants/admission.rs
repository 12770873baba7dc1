//! Prompts, the queue, cancels (rules R14, R16; I17).

use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{SessionStatus, TurnStatus};
use tapedeck_domain::settle::Ending;

use crate::control::{NAMESPACE, TestControl};

on_every_store! {
    queued_runs_follow_one_another,
    an_interrupting_prompt_goes_first,
    an_interrupting_prompt_replaces_a_run_that_nobody_holds,
    the_queue_is_held_after_an_interrupted_run,
    resume_goes_before_a_held_queue,
    cancel_settles_within_bound,
    a_cancel_of_a_waiting_run_settles_it_at_once,
    a_queued_run_can_be_cancelled,
    a_never_acknowledged_cancel_settles_when_the_short_lease_ends,
    a_blank_prompt_is_refused,
    a_closed_session_takes_no_run,
}

async fn status(
    t: &TestControl,
    session: tapedeck_domain::SessionId,
) -> (SessionStatus, TurnStatus) {
    let summary = t.view(session).await.session.summary;
    (summary.status, summary.turn_status)
}

async fn queued_runs_follow_one_another(t: TestControl) {
    let session = t.session().await;
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Created, TurnStatus::Idle)
    );
    let runs = [
        t.prompt(session).await,
        t.enqueue(session).await,
        t.enqueue(session).await,
    ];
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Running, TurnStatus::Queued)
    );
    assert_eq!(t.view(session).await.session.summary.queued_runs, 2);
    for run in runs {
        let claim = t.claim("e1").await;
        assert_eq!(claim.run_id(), run.run_id);
        t.beat(&claim).await.unwrap();
        assert_eq!(
            status(&t, session).await,
            (SessionStatus::Running, TurnStatus::Running)
        );
        t.complete(&claim).await;
    }
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Completed, TurnStatus::Idle)
    );
    let kinds = t.kinds(session).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "RunQueued").count(), 2);
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "RunRequested").count(),
        3
    );
}

async fn an_interrupting_prompt_goes_first(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    let first = t.try_prompt(session, OnActive::Interrupt).await.unwrap();
    assert_eq!(first.status, RunStatus::Queued);
    assert!(t.beat(&claim).await.unwrap().cancel_requested);
    t.settle(&claim, Ending::Cancelled).await.unwrap();
    let next = t.claim("e1").await;
    assert_eq!(next.run_id(), first.run_id);
    t.complete(&next).await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn an_interrupting_prompt_replaces_a_run_that_nobody_holds(t: TestControl) {
    let session = t.session().await;
    let unheld = t.prompt(session).await;
    let waiting = t.enqueue(session).await;
    let first = t.try_prompt(session, OnActive::Interrupt).await.unwrap();
    assert_eq!(first.status, RunStatus::Requested);
    assert_eq!(t.run(unheld.run_id).await.status, RunStatus::Cancelled);
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), first.run_id);
    t.complete(&claim).await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn the_queue_is_held_after_an_interrupted_run(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let summary = t.view(session).await.session.summary;
    assert!(summary.queue_held);
    assert_eq!(
        (summary.status, summary.turn_status),
        (SessionStatus::Interrupted, TurnStatus::Queued)
    );
    assert_rejected!(
        t.try_claim("e1").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    t.control.continue_queue(NAMESPACE, session).await.unwrap();
    assert!(!t.view(session).await.session.summary.queue_held);
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn resume_goes_before_a_held_queue(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    let resumed = t.resume(session).await.unwrap();
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), resumed.run_id);
    t.complete(&claim).await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn cancel_settles_within_bound(t: TestControl) {
    // A willing executor: at once.
    let (session, claim) = t.running("e1").await;
    let cancelled = t
        .control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    assert_eq!(cancelled.status, Some(RunStatus::Cancelling));
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Running, TurnStatus::Cancelling)
    );
    assert!(t.beat(&claim).await.unwrap().cancel_requested);
    t.settle(&claim, Ending::Cancelled).await.unwrap();
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Cancelled, TurnStatus::Idle)
    );

    // One that goes on renewing without stopping: at the deadline, whatever it does.
    let (session, claim) = t.running("e1").await;
    t.control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    for _ in 0..7 {
        t.pass(5_000).await;
        let _ = t.beat(&claim).await;
        let _ = t.say(&claim, "still here", "x").await;
        t.sweep().await;
    }
    let run = t.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Cancelled);
    assert_eq!(run.recovery.unwrap().reason, "cancel_deadline");
    assert_rejected!(t.beat(&claim).await, Rejection::RunSettled { .. });

    // A lost one: never interrupted, always cancelled.
    let (session, claim) = t.running("e1").await;
    t.control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    t.pass(65_000).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Cancelled);
    // Asking again is harmless, and nothing active answers so.
    let again = t
        .control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    assert_eq!((again.run_id, again.status), (None, None));
}

async fn a_cancel_of_a_waiting_run_settles_it_at_once(t: TestControl) {
    let session = t.session().await;
    let run = t.prompt(session).await;
    let waiting = t.enqueue(session).await;
    let cancelled = t
        .control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    assert_eq!(
        (cancelled.run_id, cancelled.status),
        (Some(run.run_id), Some(RunStatus::Cancelled))
    );
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn a_queued_run_can_be_cancelled(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    t.control
        .cancel_run(NAMESPACE, waiting.run_id, "client")
        .await
        .unwrap();
    assert_eq!(t.run(waiting.run_id).await.status, RunStatus::Cancelled);
    assert_eq!(t.view(session).await.session.summary.queued_runs, 0);
    assert_eq!(
        t.view(session).await.session.summary.last_run_id,
        Some(claim.run_id())
    );
    t.complete(&claim).await;
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Completed, TurnStatus::Idle)
    );
}

async fn a_never_acknowledged_cancel_settles_when_the_short_lease_ends(t: TestControl) {
    let session = t.session().await;
    t.prompt(session).await;
    let claim = t.claim("e1").await;
    t.control
        .cancel_session(NAMESPACE, session, "client")
        .await
        .unwrap();
    t.pass(16_000).await;
    t.sweep().await;
    let run = t.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Cancelled);
    assert_eq!(run.recovery.unwrap().reason, "executor_lost");
}

async fn a_blank_prompt_is_refused(t: TestControl) {
    let session = t.session().await;
    for text in ["", "  \n\t", "nul \0"] {
        let command = t.prompt_command(session, text, OnActive::Reject, None);
        assert_rejected!(t.control.prompt(command).await, Rejection::Invalid(_));
    }
    let long = "x".repeat(256 * 1024 + 1);
    let command = t.prompt_command(session, &long, OnActive::Reject, None);
    assert_rejected!(t.control.prompt(command).await, Rejection::Invalid(_));
    assert!(t.log(session).await.is_empty());
}

async fn a_closed_session_takes_no_run(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    assert_rejected!(
        t.control
            .close_session(NAMESPACE, session)
            .await
            .map(|_| ()),
        Rejection::SessionBusy { .. }
    );
    t.enqueue(session).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    t.control.close_session(NAMESPACE, session).await.unwrap();
    assert_eq!(
        status(&t, session).await,
        (SessionStatus::Closed, TurnStatus::Idle)
    );
    assert_eq!(t.view(session).await.session.summary.queued_runs, 0);
    assert_rejected!(
        t.try_prompt(session, OnActive::Enqueue).await,
        Rejection::SessionClosed
    );
    assert_rejected!(t.resume(session).await, Rejection::SessionClosed);
    assert_eq!(t.kinds(session).await.last().unwrap(), "SessionClosed");
}
