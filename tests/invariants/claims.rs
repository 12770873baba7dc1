//! Claims: at most one is live, they can be replayed, and an old one is refused everywhere (I4, I5;
//! faults 6, 8, 13, 15, 16; rules R9, R10).

use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::commands::heartbeat::ClaimProof;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::claim::ClaimToken;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::Ending;

use crate::control::{Claim, TestControl, claim_request};

on_every_store! {
    at_most_one_live_claim_per_run,
    at_most_one_active_run_per_session,
    a_claim_request_gets_the_same_claim_while_it_lives,
    a_claim_request_whose_claim_is_dead_never_gets_another_run,
    an_earlier_attempt_of_the_same_executor_is_refused_everywhere,
    a_steadily_renewed_run_is_never_recovered,
    a_run_that_completes_between_select_and_update_stays_completed,
    an_abandoned_claim_answer_is_claimable_again,
    an_unacknowledged_claim_comes_back_and_uses_no_attempt,
    a_released_run_is_requested_at_its_old_place,
    a_run_with_output_cannot_be_released,
    a_token_that_was_never_this_runs_is_invalid,
    labels_pools_and_pins_decide_who_may_claim,
    a_held_claim_wakes_when_work_comes,
}

async fn at_most_one_live_claim_per_run(t: TestControl) {
    let t = Arc::new(t);
    for _ in 0..10 {
        let session = t.session().await;
        t.prompt(session).await;
        let mut claims = tokio::task::JoinSet::new();
        for n in 0..20 {
            let t = Arc::clone(&t);
            claims.spawn(async move { t.try_claim(&format!("e{n}")).await });
        }
        let mut won = Vec::new();
        while let Some(outcome) = claims.join_next().await {
            match outcome.unwrap() {
                Ok(claim) => won.push(claim),
                outcome => assert_rejected!(outcome, Rejection::NoRunAvailable),
            }
        }
        assert_eq!(won.len(), 1);
        t.complete(&won[0]).await;
    }
}

async fn at_most_one_active_run_per_session(t: TestControl) {
    let session = t.session().await;
    let first = t.prompt(session).await;
    assert_rejected!(
        t.try_prompt(session, OnActive::Reject).await,
        Rejection::SessionBusy { active_run_id } if active_run_id == first.run_id
    );
    assert_rejected!(t.resume(session).await, Rejection::SessionBusy { .. });
    let queued = t.enqueue(session).await;
    assert_eq!(queued.status, RunStatus::Queued);
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), first.run_id);
    assert_rejected!(t.try_claim("e2").await, Rejection::NoRunAvailable);
    t.complete(&claim).await;
    assert_eq!(t.claim("e2").await.run_id(), queued.run_id);
}

async fn a_claim_request_gets_the_same_claim_while_it_lives(t: TestControl) {
    let session = t.session().await;
    t.prompt(session).await;
    t.prompt(t.session().await).await;
    let request = claim_request("e1", "a-request-id-of-more-than-128-bits");
    let first = t.claim_as(request.clone()).await.unwrap();
    t.pass(10_000).await;
    let again = t.claim_as(request.clone()).await.unwrap();
    assert_eq!(again.proof.token, first.proof.token);
    assert_eq!(again.run_id(), first.run_id());
    assert_eq!(again.claimed.attempt, 1);
    // The short lease was started once more, so the reply's loss costs nothing.
    t.pass(10_000).await;
    t.sweep().await;
    t.beat(&again).await.unwrap();
    let claimed = t
        .kinds(session)
        .await
        .into_iter()
        .filter(|kind| kind == "RunClaimed")
        .count();
    assert_eq!(claimed, 1);
}

async fn a_claim_request_whose_claim_is_dead_never_gets_another_run(t: TestControl) {
    t.prompt(t.session().await).await;
    let request = claim_request("e1", "a-request-id-of-more-than-128-bits");
    let first = t.claim_as(request.clone()).await.unwrap();
    t.prompt(t.session().await).await;
    t.complete(&first).await;
    assert_rejected!(t.claim_as(request).await.map(|_| ()), Rejection::ClaimLost);
}

/// Every call of an executor with an earlier attempt's token, which must change nothing.
async fn all_calls_refused(t: &TestControl, old: &Claim) {
    assert_rejected!(t.beat(old).await, Rejection::ClaimLost);
    assert_rejected!(t.say(old, "old", "x").await, Rejection::ClaimLost);
    assert_rejected!(t.ask(old, "old").await, Rejection::ClaimLost);
    for ending in [
        Ending::Completed,
        Ending::Failed,
        Ending::Cancelled,
        Ending::Interrupted,
    ] {
        assert_rejected!(t.settle(old, ending).await, Rejection::ClaimLost);
    }
    let release = ReleaseRun {
        proof: old.proof.clone(),
    };
    assert_rejected!(t.control.release_run(release).await, Rejection::ClaimLost);
}

async fn an_earlier_attempt_of_the_same_executor_is_refused_everywhere(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(2);
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let old = t.claim("e1").await;
    t.say(&old, "first", "x").await.unwrap();
    t.pass(61_000).await;
    all_calls_refused(&t, &old).await;
    t.sweep().await;
    all_calls_refused(&t, &old).await;
    let new = t.claim("e1").await;
    assert_eq!((new.run_id(), new.claimed.attempt), (old.run_id(), 2));
    t.beat(&new).await.unwrap();
    let before = (t.log(session).await, t.run(old.run_id()).await);
    all_calls_refused(&t, &old).await;
    assert_eq!((t.log(session).await, t.run(old.run_id()).await), before);
    t.complete(&new).await;
    all_calls_refused(&t, &old).await;
}

async fn a_steadily_renewed_run_is_never_recovered(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    for _ in 0..30 {
        t.pass(20_000).await;
        t.sweep().await;
        t.beat(&claim).await.unwrap();
    }
    // An upload renews as well.
    for n in 0..10 {
        t.pass(50_000).await;
        t.sweep().await;
        t.say(&claim, &format!("e{n}"), "x").await.unwrap();
    }
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
    assert!(
        !t.kinds(session)
            .await
            .iter()
            .any(|kind| kind == "RunLeaseExpired")
    );
}

async fn a_run_that_completes_between_select_and_update_stays_completed(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    // The sweep's candidates are read, then the run is renewed or completed before the re-check.
    t.store.clock.advance(0);
    t.complete(&claim).await;
    t.control.recover_run(claim.run_id()).await.unwrap();
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Completed);
    let (_, second) = t.running("e2").await;
    t.control.recover_run(second.run_id()).await.unwrap();
    assert_eq!(t.run(second.run_id()).await.status, RunStatus::Running);
    assert_eq!(t.view(session).await.session.summary.active_run_id, None);
}

async fn an_abandoned_claim_answer_is_claimable_again(t: TestControl) {
    // A client that goes away at any moment of its claim: whether the future is dropped before the
    // commit, after it, or never polled, the run is claimable within the short lease (fault 15).
    let t = Arc::new(t);
    for round in 0..50_u64 {
        let session = t.session().await;
        t.prompt(session).await;
        let request = claim_request("gone", &format!("gone-{round}-{}", t.control.new_id()));
        let claim = t.control.claim(request, Duration::ZERO);
        let _ = tokio::time::timeout(Duration::from_micros(round * 40), claim).await;
        let mut waited = 0;
        let next = loop {
            match t.try_claim("e1").await {
                Ok(claim) => break claim,
                outcome => assert_rejected!(outcome.map(|_| ()), Rejection::NoRunAvailable),
            }
            assert!(
                waited <= 25_000,
                "round {round}: not claimable within the short lease"
            );
            waited += 5_000;
            t.pass(5_000).await;
            t.sweep().await;
        };
        t.complete(&next).await;
    }
}

async fn an_unacknowledged_claim_comes_back_and_uses_no_attempt(t: TestControl) {
    let session = t.session().await;
    let admitted = t.prompt(session).await;
    for attempt in 1..=2 {
        let claim = t.claim("e1").await;
        assert_eq!(claim.claimed.attempt, attempt);
        t.pass(16_000).await;
        t.sweep().await;
        t.pass(5_000).await;
    }
    assert_eq!(t.run(admitted.run_id).await.status, RunStatus::Requested);
    let claim = t.claim("e1").await;
    t.beat(&claim).await.unwrap();
    assert_eq!(t.run(admitted.run_id).await.status, RunStatus::Running);
}

async fn a_released_run_is_requested_at_its_old_place(t: TestControl) {
    let first = t.prompt(t.session().await).await;
    t.prompt(t.session().await).await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), first.run_id);
    t.beat(&claim).await.unwrap();
    let run = t
        .control
        .release_run(ReleaseRun {
            proof: claim.proof.clone(),
        })
        .await
        .unwrap();
    assert_eq!(run.status, RunStatus::Requested);
    assert_rejected!(t.beat(&claim).await, Rejection::ClaimLost);
    let again = t.claim("e2").await;
    assert_eq!((again.run_id(), again.claimed.attempt), (first.run_id, 2));
    // The attempt was not used up: the run may still be lost once.
    t.beat(&again).await.unwrap();
    t.complete(&again).await;
}

async fn a_run_with_output_cannot_be_released(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    let release = ReleaseRun {
        proof: claim.proof.clone(),
    };
    assert_rejected!(
        t.control.release_run(release).await,
        Rejection::RunHasOutput
    );
    t.complete(&claim).await;
}

async fn a_token_that_was_never_this_runs_is_invalid(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    let (_, other) = t.running("e2").await;
    for token in ["", "garbage", "1.00", "7.00", other.proof.token.secret()] {
        let forged = Claim {
            proof: ClaimProof {
                token: ClaimToken::presented(token.to_owned()),
                ..claim.proof.clone()
            },
            claimed: claim.claimed.clone(),
        };
        assert_rejected!(t.beat(&forged).await, Rejection::ClaimTokenInvalid);
        assert_rejected!(t.say(&forged, "x", "x").await, Rejection::ClaimTokenInvalid);
    }
    let stolen = Claim {
        proof: ClaimProof {
            executor_id: "e2".to_owned(),
            ..claim.proof.clone()
        },
        claimed: claim.claimed.clone(),
    };
    assert_rejected!(t.beat(&stolen).await, Rejection::ClaimTokenInvalid);
}

async fn labels_pools_and_pins_decide_who_may_claim(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings
        .run_target
        .executor
        .labels
        .insert("gpu".to_owned(), "yes".to_owned());
    "big".clone_into(&mut settings.run_target.executor.pool);
    settings.run_target.executor.executor_id = Some("e9".to_owned());
    t.prompt(t.session_with(settings).await).await;
    let mut request = claim_request("e9", "r-1");
    assert_rejected!(
        t.claim_as(request.clone()).await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    "big".clone_into(&mut request.contact.pool);
    assert_rejected!(
        t.claim_as(request.clone()).await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    request
        .contact
        .labels
        .insert("gpu".to_owned(), "no".to_owned());
    assert_rejected!(
        t.claim_as(request.clone()).await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    request
        .contact
        .labels
        .insert("gpu".to_owned(), "yes".to_owned());
    request
        .contact
        .labels
        .insert("disk".to_owned(), "ssd".to_owned());
    let mut other = request.clone();
    "e8".clone_into(&mut other.contact.executor_id);
    "e8".clone_into(&mut other.request.executor_id);
    assert_rejected!(
        t.claim_as(other).await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    t.claim_as(request).await.unwrap();
}

async fn a_held_claim_wakes_when_work_comes(t: TestControl) {
    let t = Arc::new(t);
    let waiting = {
        let t = Arc::clone(&t);
        t.control.lifecycle().clone().spawn(async move {
            let request = claim_request("e1", "held-request");
            t.control.claim(request, Duration::from_secs(30)).await
        })
    };
    let session = t.session().await;
    let admitted = t.prompt(session).await;
    let claimed = tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(claimed.run.run_id, admitted.run_id);
}
