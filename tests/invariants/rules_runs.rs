//! What the rules say of cancels, questions, the queue and requests that wait, sentence by sentence
//! (rules R14, R15, R16, R17, R18; faults 10, 11, 13).

use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::commands::heartbeat::Heartbeat;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::{Error, Outcome};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::executor::Report;
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::{SessionSettings, SessionStatus};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{InteractionId, Rejection, RunId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl, claim_request, key};
use crate::rules_owners::lease_ends;
use crate::write_paths::assert_unchanged;

on_every_store! {
    no_renewal_carries_a_cancelling_claim_beyond_its_deadline,
    a_cancelling_run_ends_cancelled_whoever_ends_it,
    a_lost_claim_and_its_questions_end_in_one_transaction,
    each_way_to_lose_a_claim_cancels_its_questions,
    neither_resume_nor_fork_nor_release_answers_a_question,
    an_answer_is_for_its_question_alone,
    the_answer_to_a_prompt_names_the_number_that_it_wrote,
    a_run_is_promoted_in_the_transaction_that_settled_the_one_before,
    a_prompt_goes_before_a_held_queue,
    what_waits_is_cancelled_with_its_session,
    a_failed_command_leaves_its_key_free,
    a_claim_that_is_rolled_back_loses_neither_run_nor_poll,
    a_held_heartbeat_ends_early_for_a_cancel_and_an_answer,
    a_held_heartbeat_is_over_well_before_the_lease_that_it_renewed,
    what_a_run_ended_with_is_never_swept_away,
    ends_that_race_the_sweep_stay_or_are_refused,
}

async fn cancel(t: &TestControl, session: SessionId) {
    let cancelled = t.control.cancel_session(NAMESPACE, session, "client");
    cancelled.await.unwrap();
}

async fn no_renewal_carries_a_cancelling_claim_beyond_its_deadline(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked_at = t.store.clock.lease();
    cancel(&t, session).await;
    let deadline = asked_at + 30_000;
    assert_eq!(lease_ends(&t, claim.run_id()).await, deadline);
    for n in 0..5 {
        t.pass(5_000).await;
        let beat = t.beat(&claim).await.unwrap();
        assert!(beat.cancel_requested);
        t.say(&claim, &format!("e{n}"), "x").await.unwrap();
        assert_eq!(lease_ends(&t, claim.run_id()).await, deadline);
        // Asked again, it is not given more time.
        cancel(&t, session).await;
    }
    t.pass(4_999).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Cancelling);
    t.pass(1).await;
    assert_rejected!(t.beat(&claim).await, Rejection::ClaimLost);
    t.sweep().await;
    let run = t.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Cancelled);
    assert_eq!(run.recovery.unwrap().reason, "cancel_deadline");
}

async fn a_cancelling_run_ends_cancelled_whoever_ends_it(t: TestControl) {
    for end in ["lease", "hands back", "releases", "takeover", "gap"] {
        let session = t.session().await;
        t.prompt(session).await;
        let mut request = claim_request("e1", &format!("request for {end}"));
        request.request.lease_ms = 10_000;
        let claim = t.claim_as(request).await.unwrap();
        t.beat(&claim).await.unwrap();
        cancel(&t, session).await;
        let run = claim.run_id();
        match end {
            "lease" => {
                t.pass(10_000).await;
                t.sweep().await;
                let recovery = t.run(run).await.recovery.unwrap();
                assert_eq!(recovery.reason, "executor_lost");
            }
            "hands back" => drop(t.settle(&claim, Ending::Interrupted).await.unwrap()),
            "releases" => {
                let proof = claim.proof.clone();
                let release = t.control.release_run(ReleaseRun { proof }).await;
                assert_rejected!(release, Rejection::RunCancelling);
                t.settle(&claim, Ending::Cancelled).await.unwrap();
            }
            "takeover" => {
                t.pass(300_000).await;
                let other = TestControl::owned_by(t.store.shared(), "server:other").await;
                let taken = other.control.acquire_owner(NAMESPACE, session).await;
                taken.unwrap();
            }
            // What an outage adds to the lease, it adds to the deadline.
            "gap" => {
                t.outage(600_000);
                t.sweep().await;
                assert_eq!(t.run(run).await.status, RunStatus::Cancelling);
                t.pass(30_000).await;
                t.sweep().await;
            }
            other => panic!("{other}"),
        }
        assert_eq!(t.run(run).await.status, RunStatus::Cancelled, "{end}");
        let other = TestControl::owned_by(t.store.shared(), "server:other").await;
        let owner = if end == "takeover" { &other } else { &t };
        let gone = owner.control.delete_session(NAMESPACE, session, true).await;
        gone.unwrap();
    }
}

async fn question(t: &TestControl, id: InteractionId) -> Interaction {
    t.control.interaction(NAMESPACE, id).await.unwrap()
}

async fn a_lost_claim_and_its_questions_end_in_one_transaction(t: TestControl) {
    for attempts in [1, 2] {
        let mut settings = SessionSettings::default();
        settings.run_target.constraints.max_attempts = Some(attempts);
        let session = t.session_with(settings).await;
        t.prompt(session).await;
        let claim = t.claim("e1").await;
        let asked = t.ask(&claim, "q").await.unwrap().interaction_id;
        t.pass(61_000).await;
        for (verb, table) in [
            ("UPDATE", "interactions"),
            ("INSERT", "events"),
            ("UPDATE", "runs"),
        ] {
            let before = t.store.dump().await;
            t.store.refuse(verb, table).await;
            let outcome = t.control.recover_run(claim.run_id()).await;
            t.store.allow_writes().await;
            assert!(matches!(outcome, Err(Error::Store(_))), "{outcome:?}");
            assert_unchanged(&before, &t.store.dump().await, table);
        }
        assert_eq!(question(&t, asked).await.status, InteractionStatus::Pending);
        t.sweep().await;
        let expected = [RunStatus::Interrupted, RunStatus::Requested];
        let run = t.run(claim.run_id()).await;
        assert_eq!(run.status, expected[attempts as usize - 1]);
        let ended = question(&t, asked).await;
        assert_eq!(ended.status, InteractionStatus::Cancelled);
        let gone = t.control.delete_session(NAMESPACE, session, true).await;
        gone.unwrap();
    }
}

/// A run that asks.
async fn asking(t: &TestControl) -> (SessionId, Claim, InteractionId) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q").await.unwrap();
    assert_eq!(asked.status, InteractionStatus::Pending);
    (session, claim, asked.interaction_id)
}

async fn each_way_to_lose_a_claim_cancels_its_questions(t: TestControl) {
    let ways = [
        "completed",
        "failed",
        "interrupted",
        "swept",
        "cancelled",
        "taken over",
    ];
    for way in ways {
        let (session, claim, asked) = asking(&t).await;
        let other = TestControl::owned_by(t.store.shared(), "server:other").await;
        match way {
            "completed" => drop(t.complete(&claim).await),
            "failed" => drop(t.settle(&claim, Ending::Failed).await.unwrap()),
            "interrupted" => drop(t.settle(&claim, Ending::Interrupted).await.unwrap()),
            "swept" => {
                t.pass(61_000).await;
                t.sweep().await;
            }
            "cancelled" => cancel(&t, session).await,
            "taken over" => {
                t.pass(61_000).await;
                let taken = other.control.acquire_owner(NAMESPACE, session).await;
                taken.unwrap();
            }
            other => panic!("{other}"),
        }
        assert_eq!(
            question(&t, asked).await.status,
            InteractionStatus::Cancelled,
            "{way}"
        );
        // A late yes is told how it ended, and lets nothing pass.
        let answer = if way == "taken over" { &other } else { &t }
            .answer(asked, true)
            .await;
        assert_rejected!(
            answer,
            Rejection::AlreadyResolved {
                status: InteractionStatus::Cancelled,
                ..
            }
        );
        let summary = t.view(session).await.session.summary;
        assert_eq!(summary.pending_interactions, 0, "{way}");
        let ended = t.log(session).await;
        let ended = ended
            .iter()
            .filter(|event| event.kind == "ApprovalResponse");
        assert_eq!(ended.count(), 1, "{way}");
        let owner = if way == "taken over" { &other } else { &t };
        let gone = owner.control.delete_session(NAMESPACE, session, true).await;
        gone.unwrap();
    }
}

async fn neither_resume_nor_fork_nor_release_answers_a_question(t: TestControl) {
    let (session, claim, asked) = asking(&t).await;
    let pending = question(&t, asked).await;
    assert_rejected!(t.resume(session).await, Rejection::SessionBusy { .. });
    let fork = t
        .control
        .fork_session(NAMESPACE, session, ForkPoint::Head, None, None)
        .await
        .unwrap();
    let fork = fork.session;
    assert_eq!(fork.summary.pending_interactions, 0);
    assert_eq!(fork.summary.status, SessionStatus::Created);
    assert_rejected!(
        t.try_prompt(session, OnActive::Reject).await,
        Rejection::SessionBusy { .. }
    );
    t.enqueue(session).await;
    t.try_prompt(fork.session_id, OnActive::Reject)
        .await
        .unwrap();
    // What has asked has put something out, and can't be given back as if nothing had been.
    let proof = claim.proof.clone();
    let release = t.control.release_run(ReleaseRun { proof }).await;
    assert_rejected!(release, Rejection::RunHasOutput);
    assert_eq!(question(&t, asked).await, pending);
}

async fn an_answer_is_for_its_question_alone(t: TestControl) {
    let (_, claim, first) = asking(&t).await;
    let second = t.ask(&claim, "q2").await.unwrap().interaction_id;
    let (_, other, of_other) = asking(&t).await;
    t.answer(first, true).await.unwrap();
    for untouched in [second, of_other] {
        let status = question(&t, untouched).await.status;
        assert_eq!(status, InteractionStatus::Pending);
    }
    // Another call under the id that was allowed is not what was allowed.
    assert_rejected!(
        t.ask_for(&claim, "q", "another tool").await,
        Rejection::RequestIdConflict { .. }
    );
    // The same id in another run and in a later attempt is another question.
    let theirs = t.ask(&other, "q").await.unwrap();
    assert_eq!(theirs.status, InteractionStatus::Pending);
    // The second answer is told the first.
    assert_rejected!(
        t.answer(first, false).await,
        Rejection::AlreadyResolved {
            status: InteractionStatus::Approved,
            ..
        }
    );
}

async fn the_answer_to_a_prompt_names_the_number_that_it_wrote(t: TestControl) {
    let session = t.session().await;
    let at = async |seq: u64, run: RunId| {
        let log = t.log(session).await;
        let event = log.iter().find(|event| event.session_seq == seq);
        let event = event.unwrap().clone();
        assert_eq!(event.run_id, Some(run));
        event.kind
    };
    let first = t.prompt(session).await;
    assert_eq!(at(first.session_seq, first.run_id).await, "RunRequested");
    let queued = t.enqueue(session).await;
    assert_eq!(at(queued.session_seq, queued.run_id).await, "RunQueued");
    let claim = t.claim("e1").await;
    let ahead = t.try_prompt(session, OnActive::Interrupt).await.unwrap();
    assert_eq!(at(ahead.session_seq, ahead.run_id).await, "RunQueued");
    t.settle(&claim, Ending::Cancelled).await.unwrap();
    // Promoted, it is requested; what it was told before stays true.
    let log = t.log(session).await;
    let end = log.iter().find(|event| event.kind == "TurnEnd").unwrap();
    let promoted = log
        .iter()
        .find(|event| event.kind == "RunRequested" && event.run_id == Some(ahead.run_id));
    assert_eq!(promoted.unwrap().session_seq, end.session_seq + 1);
    assert_eq!(at(ahead.session_seq, ahead.run_id).await, "RunQueued");
    let requested = |run: RunId| {
        let of_run = |kind: &str| {
            let of_run = log
                .iter()
                .filter(|event| event.run_id == Some(run) && event.kind == kind);
            of_run.count()
        };
        (of_run("RunQueued"), of_run("RunRequested"))
    };
    assert_eq!(requested(first.run_id), (0, 1));
    assert_eq!(requested(ahead.run_id), (1, 1));
    assert_eq!(requested(queued.run_id), (1, 0));
}

async fn a_run_is_promoted_in_the_transaction_that_settled_the_one_before(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let next = t.enqueue(session).await;
    for (verb, table) in [
        ("INSERT", "run_queue"),
        ("INSERT", "events"),
        ("UPDATE", "session_heads"),
        ("UPDATE", "sessions"),
    ] {
        let before = t.store.dump().await;
        t.store.refuse(verb, table).await;
        let outcome = t.settle(&claim, Ending::Completed).await;
        t.store.allow_writes().await;
        assert!(matches!(outcome, Err(Error::Store(_))), "{outcome:?}");
        assert_unchanged(&before, &t.store.dump().await, table);
    }
    t.complete(&claim).await;
    let summary = t.view(session).await.session.summary;
    assert_eq!(summary.active_run_id, Some(next.run_id));
    assert_eq!(t.run(next.run_id).await.status, RunStatus::Requested);
    assert_eq!(t.claim("e2").await.run_id(), next.run_id);
}

async fn a_prompt_goes_before_a_held_queue(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let waiting = t.enqueue(session).await;
    t.settle(&claim, Ending::Interrupted).await.unwrap();
    assert!(t.view(session).await.session.summary.queue_held);
    // However long it waits, nobody gets it.
    t.pass(120_000).await;
    t.sweep().await;
    assert_rejected!(
        t.try_claim("e1").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    let prompt = t.prompt(session).await;
    assert!(!t.view(session).await.session.summary.queue_held);
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), prompt.run_id);
    t.complete(&claim).await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}

async fn what_waits_is_cancelled_with_its_session(t: TestControl) {
    for (verb, table) in [("UPDATE", "runs"), ("DELETE", "run_heads")] {
        let (session, claim) = t.running("e1").await;
        let waiting = [
            t.enqueue(session).await.run_id,
            t.enqueue(session).await.run_id,
        ];
        t.settle(&claim, Ending::Interrupted).await.unwrap();
        let before = t.store.dump().await;
        t.store.refuse(verb, table).await;
        let refused = t.control.close_session(NAMESPACE, session).await;
        t.store.allow_writes().await;
        assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
        assert_unchanged(&before, &t.store.dump().await, table);
        t.control.close_session(NAMESPACE, session).await.unwrap();
        for run in waiting {
            assert_eq!(t.run(run).await.status, RunStatus::Cancelled);
        }
        let kinds = t.kinds(session).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "TurnEnd").count(), 3);
        assert_eq!(kinds.last().unwrap(), "SessionClosed");
    }
}

async fn a_failed_command_leaves_its_key_free(t: TestControl) {
    // Only what has succeeded is stored, and only with it: a refusal and a fault leave the key for
    // the next one, which may even mean something else.
    let (session, claim) = t.running("e1").await;
    let prompt = |body: &str| {
        t.prompt_command(
            session,
            body,
            OnActive::Reject,
            Some(key("prompt", "k", body)),
        )
    };
    assert_rejected!(
        t.control.prompt(prompt("one")).await,
        Rejection::SessionBusy { .. }
    );
    t.complete(&claim).await;
    for table in ["runs", "idempotency_keys"] {
        let before = t.store.dump().await;
        t.store.refuse_inserts_into(table).await;
        let outcome = t.control.prompt(prompt("two")).await;
        t.store.allow_writes().await;
        assert!(matches!(outcome, Err(Error::Store(_))), "{outcome:?}");
        assert_unchanged(&before, &t.store.dump().await, table);
    }
    let admitted = t.control.prompt(prompt("three")).await.unwrap();
    let again = t.control.prompt(prompt("three")).await.unwrap();
    assert_eq!(again, admitted);
    assert_rejected!(
        t.control.prompt(prompt("one")).await,
        Rejection::IdempotencyConflict
    );
}

type Claimed = Outcome<(RunId, String)>;

fn poll(t: &Arc<TestControl>, executor_id: &str) -> tokio::task::JoinHandle<Claimed> {
    let (t, name) = (Arc::clone(t), executor_id.to_owned());
    t.control.lifecycle().clone().spawn(async move {
        let request = claim_request(&name, &format!("request of {name}"));
        let claimed = t.control.claim(request, Duration::from_secs(30)).await?;
        Ok((claimed.run.run_id, name))
    })
}

async fn a_claim_that_is_rolled_back_loses_neither_run_nor_poll(t: TestControl) {
    let t = Arc::new(t);
    t.store.refuse_inserts_into("claims").await;
    let polls = ["e1", "e2", "e3"].map(|name| poll(&t, name));
    tokio::task::yield_now().await;
    let run = t.prompt(t.session().await).await.run_id;
    // All are woken, and each one's transaction fails: the run is where it was.
    for poll in polls {
        let answer = tokio::time::timeout(Duration::from_secs(20), poll).await;
        let answer = answer.unwrap().unwrap();
        assert!(matches!(answer, Err(Error::Store(_))), "{answer:?}");
    }
    assert_eq!(t.run(run).await.status, RunStatus::Requested);
    t.store.allow_writes().await;
    // The same polls again, under the same ids: one gets it, the others wait on.
    let polls = ["e1", "e2", "e3"].map(|name| poll(&t, name));
    let first = async {
        loop {
            for poll in &polls {
                if poll.is_finished() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), first)
        .await
        .unwrap();
    let second = t.prompt(t.session().await).await.run_id;
    let third = t.prompt(t.session().await).await.run_id;
    let mut got = Vec::new();
    for poll in polls {
        let answer = tokio::time::timeout(Duration::from_secs(20), poll).await;
        got.push(answer.unwrap().unwrap().unwrap().0);
    }
    got.sort_unstable();
    let mut expected = vec![run, second, third];
    expected.sort_unstable();
    assert_eq!(got, expected);
}

async fn a_held_heartbeat_ends_early_for_a_cancel_and_an_answer(t: TestControl) {
    let t = Arc::new(t);
    for news in ["cancel", "answer"] {
        let (session, claim, asked) = asking(&t).await;
        let held = {
            let (t, proof) = (Arc::clone(&t), claim.proof.clone());
            t.control.lifecycle().clone().spawn(async move {
                let beat = Heartbeat {
                    proof,
                    lease_ms: None,
                    report: Report::default(),
                    agent_state: None,
                };
                t.control.heartbeat(beat, Duration::from_mins(1)).await
            })
        };
        tokio::task::yield_now().await;
        match news {
            "cancel" => cancel(&t, session).await,
            _ => drop(t.answer(asked, true).await.unwrap()),
        }
        // Well before a third of its lease, which is the longest that it is held.
        let beat = tokio::time::timeout(Duration::from_secs(15), held).await;
        let beat = beat.unwrap().unwrap().unwrap();
        assert_eq!(beat.cancel_requested, news == "cancel");
        t.settle(&claim, Ending::Cancelled).await.unwrap();
    }
}

/// It would else be the reason why the next one comes too late (rules R13).
async fn a_held_heartbeat_is_over_well_before_the_lease_that_it_renewed(t: TestControl) {
    let session = t.session().await;
    t.prompt(session).await;
    let mut request = claim_request("e1", "a short lease");
    request.request.lease_ms = 1_500;
    let claim = t.claim_as(request).await.unwrap();
    let beat = Heartbeat {
        proof: claim.proof.clone(),
        lease_ms: None,
        report: Report::default(),
        agent_state: None,
    };
    // The waiting is in real time, which the lease's clock doesn't follow here.
    let held = t.control.heartbeat(beat, Duration::from_mins(10));
    let held = tokio::time::timeout(Duration::from_secs(15), held).await;
    assert!(!held.unwrap().unwrap().cancel_requested);
}

async fn what_a_run_ended_with_is_never_swept_away(t: TestControl) {
    // The sweep has listed the run; before it comes to it, the run ends, is renewed, is released, or
    // begins its next attempt. Its decision is made again under the lock.
    for meanwhile in ["completed", "renewed", "released", "claimed again"] {
        let (session, claim) = t.running("e1").await;
        t.pass(50_000).await;
        match meanwhile {
            "completed" => drop(t.complete(&claim).await),
            "renewed" => drop(t.beat(&claim).await.unwrap()),
            "released" | "claimed again" => {
                let proof = claim.proof.clone();
                t.control.release_run(ReleaseRun { proof }).await.unwrap();
                if meanwhile == "claimed again" {
                    let again = t.claim("e2").await;
                    t.beat(&again).await.unwrap();
                }
            }
            other => panic!("{other}"),
        }
        // The lease that it was listed with would be over now.
        t.pass(11_000).await;
        t.control.renew_owner(NAMESPACE, session).await.unwrap();
        let before = t.store.dump().await;
        assert!(!t.control.recover_run(claim.run_id()).await.unwrap());
        assert_unchanged(&before, &t.store.dump().await, meanwhile);
        t.sweep().await;
        let status = t.run(claim.run_id()).await.status;
        let expected = match meanwhile {
            "completed" => RunStatus::Completed,
            "released" => RunStatus::Requested,
            _ => RunStatus::Running,
        };
        assert_eq!(status, expected, "{meanwhile}");
        let gone = t.control.delete_session(NAMESPACE, session, true).await;
        gone.unwrap();
    }
}

async fn ends_that_race_the_sweep_stay_or_are_refused(t: TestControl) {
    let t = Arc::new(t);
    let mut claims = Vec::new();
    for n in 0..30 {
        claims.push(t.running(&format!("e{n}")).await);
    }
    t.pass(59_999).await;
    // All report their end in the very millisecond in which the leases end and the sweep comes.
    let mut ends = tokio::task::JoinSet::new();
    for (n, (_, claim)) in claims.iter().enumerate() {
        let (t, claim) = (Arc::clone(&t), claim.clone());
        ends.spawn(async move { (n, t.settle(&claim, Ending::Completed).await) });
    }
    let sweeps = {
        let t = Arc::clone(&t);
        t.control.lifecycle().clone().spawn(async move {
            t.store.clock.advance(1);
            for _ in 0..3 {
                t.sweep().await;
            }
        })
    };
    let mut completed = vec![false; claims.len()];
    while let Some(end) = ends.join_next().await {
        let (n, outcome) = end.unwrap();
        completed[n] = match outcome {
            Ok(run) => run.status == RunStatus::Completed,
            Err(Error::Rejected(Rejection::ClaimLost | Rejection::RunSettled { .. })) => false,
            other => panic!("{other:?}"),
        };
    }
    sweeps.await.unwrap();
    t.pass(5_000).await;
    t.sweep().await;
    for ((session, claim), completed) in claims.into_iter().zip(completed) {
        let expected = [RunStatus::Interrupted, RunStatus::Completed][usize::from(completed)];
        assert_eq!(t.run(claim.run_id()).await.status, expected);
        let kinds = t.kinds(session).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "TurnEnd").count(), 1);
    }
}
