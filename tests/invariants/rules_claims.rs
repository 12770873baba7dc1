//! What the rules say of claims and of what executors send under them, sentence by sentence (rules
//! R9, R10, R11, R12; faults 6, 15, 16).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::claim_run::ClaimRun;
use tapedeck_control_plane::commands::heartbeat::ClaimProof;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::{Error, ResumeRequest};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::claim::ClaimToken;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::{Rejection, Timestamp};
use tapedeck_store::Target;

use crate::control::{Claim, NAMESPACE, TestControl, claim_request, key};
use crate::rules_owners::{lease_ends, of_live_run};
use crate::write_paths::assert_unchanged;

on_every_store! {
    a_replay_starts_the_short_lease_once_and_no_more,
    polls_of_one_request_get_one_claim,
    a_poll_looks_its_own_claim_up_first_and_on_every_wake,
    an_id_whose_claim_is_dead_gets_no_other_run_however_it_died,
    the_three_counters_count_what_they_are_named_after,
    an_acknowledgement_ends_the_count_of_silent_claims,
    a_newer_process_of_the_same_name_proves_the_old_one_dead,
    a_run_that_nobody_acknowledged_waits_for_its_back_off_at_its_old_place,
    only_the_same_three_prove_a_completion_again,
    ids_of_the_servers_form_are_the_servers,
    an_event_is_its_kind_and_payload_and_not_its_time,
    a_claim_that_is_dropped_at_any_await_point_is_claimable_again,
    each_retry_after_a_lost_reply_gets_the_same_answer,
}

fn with_attempts(most: u32) -> SessionSettings {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(most);
    settings
}

async fn a_replay_starts_the_short_lease_once_and_no_more(t: TestControl) {
    let run = t.prompt(t.session().await).await.run_id;
    let request = claim_request("e1", "the-request");
    t.claim_as(request.clone()).await.unwrap();
    let began = t.store.clock.lease();
    assert_eq!(lease_ends(&t, run).await, began + 15_000);
    t.pass(10_000).await;
    t.claim_as(request.clone()).await.unwrap();
    assert_eq!(lease_ends(&t, run).await, began + 25_000);
    t.pass(10_000).await;
    // Whoever only ever replays its claim holds nothing.
    t.claim_as(request.clone()).await.unwrap();
    assert_eq!(lease_ends(&t, run).await, began + 25_000);
    t.pass(5_000).await;
    t.sweep().await;
    assert_eq!(t.run(run).await.status, RunStatus::Requested);
    assert_rejected!(t.claim_as(request).await.map(|_| ()), Rejection::ClaimLost);
}

fn held(
    t: &Arc<TestControl>,
    request: ClaimRun,
) -> tokio::task::JoinHandle<tapedeck_control_plane::Outcome<(ClaimToken, tapedeck_domain::RunId)>>
{
    let t = Arc::clone(t);
    t.control.lifecycle().clone().spawn(async move {
        let claimed = t.control.claim(request, Duration::from_secs(30)).await?;
        Ok((claimed.token, claimed.run.run_id))
    })
}

async fn polls_of_one_request_get_one_claim(t: TestControl) {
    // A client that repeats a held poll has two on their way; both are woken by the same run, and
    // there is another one that neither may take.
    let t = Arc::new(t);
    let request = claim_request("e1", "the-request");
    let polls = [held(&t, request.clone()), held(&t, request.clone())];
    tokio::task::yield_now().await;
    let first = t.session().await;
    t.prompt(first).await;
    let second = t.prompt(t.session().await).await;
    let mut answers = Vec::new();
    for poll in polls {
        let answer = tokio::time::timeout(Duration::from_secs(10), poll).await;
        answers.push(answer.unwrap().unwrap().unwrap());
    }
    assert!(answers[0] == answers[1], "one request, two claims");
    let claimed = answers[0].1;
    let other = t.claim("e2").await.run_id();
    assert_ne!(other, claimed);
    assert!([claimed, other].contains(&second.run_id));
}

async fn a_poll_looks_its_own_claim_up_first_and_on_every_wake(t: TestControl) {
    let t = Arc::new(t);
    let request = claim_request("e1", "the-request");
    let waits = held(&t, request.clone());
    tokio::task::yield_now().await;
    let session = t.session().await;
    t.prompt(session).await;
    let again = held(&t, request.clone());
    let mut answers = Vec::new();
    for poll in [waits, again] {
        let answer = tokio::time::timeout(Duration::from_secs(10), poll).await;
        answers.push(answer.unwrap().unwrap().unwrap());
    }
    assert!(answers[0] == answers[1], "one request, two claims");
    // The next run is for other requests, however long this one would wait.
    let claim = t.claim_as(request.clone()).await.unwrap();
    assert_eq!(claim.run_id(), answers[0].1);
    t.complete(&claim).await;
    let next = t.prompt(session).await;
    let late = tokio::time::timeout(Duration::from_secs(10), held(&t, request)).await;
    assert_rejected!(late.unwrap().unwrap().map(|_| ()), Rejection::ClaimLost);
    assert_eq!(t.claim("e1").await.run_id(), next.run_id);
}

async fn an_id_whose_claim_is_dead_gets_no_other_run_however_it_died(t: TestControl) {
    for (n, death) in [
        "completed",
        "released",
        "requeued",
        "interrupted",
        "cancelled",
        "taken over",
        "claimed anew",
    ]
    .into_iter()
    .enumerate()
    {
        let session = t.session_with(with_attempts(2)).await;
        t.prompt(session).await;
        let request = claim_request("e1", &format!("request-{n}"));
        let claim = t.claim_as(request.clone()).await.unwrap();
        match death {
            "completed" => drop(t.complete(&claim).await),
            "released" => {
                let proof = claim.proof.clone();
                t.control.release_run(ReleaseRun { proof }).await.unwrap();
            }
            "requeued" | "claimed anew" => {
                t.beat(&claim).await.unwrap();
                t.pass(61_000).await;
                t.sweep().await;
                assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Requested);
                if death == "claimed anew" {
                    let again = t.claim("e1").await;
                    assert_eq!(again.run_id(), claim.run_id());
                }
            }
            "interrupted" => drop(t.settle(&claim, Ending::Interrupted).await.unwrap()),
            "cancelled" => {
                let cancelled = t.control.cancel_session(NAMESPACE, session, "client");
                cancelled.await.unwrap();
                t.settle(&claim, Ending::Cancelled).await.unwrap();
            }
            "taken over" => {
                t.beat(&claim).await.unwrap();
                t.pass(61_000).await;
                let other = TestControl::owned_by(t.store.shared(), "server:other").await;
                other
                    .control
                    .acquire_owner(NAMESPACE, session)
                    .await
                    .unwrap();
                other
                    .control
                    .release_owner(NAMESPACE, session)
                    .await
                    .unwrap();
            }
            other => panic!("{other}"),
        }
        // Another run waits that it could have got.
        let waiting = t.session().await;
        t.prompt(waiting).await;
        let before = without_contacts(t.store.dump().await);
        let outcome = t.claim_as(request).await.map(|_| ());
        match outcome {
            Err(Error::Rejected(Rejection::ClaimLost)) => {}
            other => panic!("{death}: {other:?}"),
        }
        assert_unchanged(&before, &without_contacts(t.store.dump().await), death);
        for session in [session, waiting] {
            let gone = t.control.delete_session(NAMESPACE, session, true).await;
            gone.unwrap();
        }
    }
}

/// `attempt`, `attempts_used` and `unacknowledged` of a live run.
async fn counters(t: &TestControl, claim: &Claim) -> (i64, i64, i64) {
    let run = claim.run_id();
    (
        of_live_run(t, run, "attempt").await,
        of_live_run(t, run, "attempts_used").await,
        of_live_run(t, run, "unacknowledged").await,
    )
}

/// Lets a claim's lease end and the back-off that follows.
async fn lose(t: &TestControl, ms: i64) {
    t.pass(ms).await;
    t.sweep().await;
    t.pass(5_000).await;
}

async fn the_three_counters_count_what_they_are_named_after(t: TestControl) {
    let session = t.session_with(with_attempts(2)).await;
    t.prompt(session).await;
    let first = t.claim("e1").await;
    assert_eq!(counters(&t, &first).await, (1, 0, 0));
    lose(&t, 16_000).await;
    assert_eq!(counters(&t, &first).await, (1, 0, 1));
    let second = t.claim("e1").await;
    assert_eq!(counters(&t, &second).await, (2, 0, 1));
    // An event acknowledges as a heartbeat does, and only the first time.
    t.say(&second, "a", "x").await.unwrap();
    t.beat(&second).await.unwrap();
    assert_eq!(counters(&t, &second).await, (2, 1, 0));
    lose(&t, 61_000).await;
    assert_eq!(counters(&t, &second).await, (2, 1, 0), "it never falls");
    let third = t.claim("e1").await;
    t.beat(&third).await.unwrap();
    assert_eq!(counters(&t, &third).await, (3, 2, 0));
    // Two attempts were used of three claims: that was the last one.
    t.pass(61_000).await;
    t.sweep().await;
    let run = t.run(third.run_id()).await;
    assert_eq!((run.status, run.attempt), (RunStatus::Interrupted, 3));
}

async fn an_acknowledgement_ends_the_count_of_silent_claims(t: TestControl) {
    let session = t.session_with(with_attempts(3)).await;
    let run = t.prompt(session).await.run_id;
    for _ in 0..2 {
        // Two that are silent though their executor is well, then one that is heard of: never three
        // in a row.
        for n in 0..2 {
            t.claim(&format!("e{n}")).await;
            lose(&t, 16_000).await;
        }
        let heard = t.claim("e9").await;
        t.beat(&heard).await.unwrap();
        lose(&t, 61_000).await;
    }
    let run = t.run(run).await;
    assert_eq!(run.status, RunStatus::Requested);
    assert_eq!(run.unservable, None);
}

async fn a_newer_process_of_the_same_name_proves_the_old_one_dead(t: TestControl) {
    let run = t.prompt(t.session().await).await.run_id;
    for n in 0..3 {
        t.claim("e1").await;
        lose(&t, 16_000).await;
        if n < 2 {
            continue;
        }
        // Nobody has been in touch since the third one, so nobody is to blame yet.
        let run = t.run(run).await;
        assert_eq!(run.status, RunStatus::Requested);
        assert_eq!(run.unservable.as_deref(), Some("unacknowledged"));
    }
    // The machine is started anew and takes the run once more: of the last three claims two were by
    // processes that are gone for good, and the newest is silent again until it polls.
    t.claim("e1").await;
    t.pass(16_000).await;
    let mut poll = claim_request("e1", "another process");
    poll.contact.instance_id = Some("another".to_owned());
    poll.request.instance_id = Some("another".to_owned());
    "elsewhere".clone_into(&mut poll.contact.pool);
    assert_rejected!(
        t.claim_as(poll).await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    t.sweep().await;
    let run = t.run(run).await;
    assert_eq!(run.status, RunStatus::Failed);
    assert!(run.error.unwrap().contains("claim_poison"));
}

async fn a_run_that_nobody_acknowledged_waits_for_its_back_off_at_its_old_place(t: TestControl) {
    let first = t.prompt(t.session().await).await.run_id;
    for time in 1..=2 {
        assert_eq!(t.claim("e1").await.run_id(), first);
        let behind = t.prompt(t.session().await).await.run_id;
        t.pass(15_000).await;
        t.sweep().await;
        // Longer each time; what came later is served meanwhile.
        t.store.clock.advance(time * 1_000 - 1);
        let other = t.claim("e2").await;
        assert_eq!(other.run_id(), behind);
        t.complete(&other).await;
        let later = t.session().await;
        t.prompt(later).await;
        t.store.clock.advance(1);
        // It is there again, and before whatever came after it.
        let ready_at = of_live_run(&t, first, "ready_at").await;
        assert_eq!(ready_at, t.store.clock.lease());
        if time == 2 {
            let claim = t.claim("e3").await;
            assert_eq!(claim.run_id(), first);
            t.complete(&claim).await;
        }
        let gone = t.control.delete_session(NAMESPACE, later, true).await;
        gone.unwrap();
    }
}

/// Every row but the registry's: a poll is a sign of life, whatever it is answered.
fn without_contacts(dump: Vec<String>) -> Vec<String> {
    let kept = |row: &String| !row.starts_with("executors ");
    dump.into_iter().filter(kept).collect()
}

async fn only_the_same_three_prove_a_completion_again(t: TestControl) {
    let session = t.session_with(with_attempts(2)).await;
    t.prompt(session).await;
    let old = t.claim("e1").await;
    t.beat(&old).await.unwrap();
    lose(&t, 61_000).await;
    let claim = t.claim("e1").await;
    let end = |body: &[u8]| RunEnd {
        ending: Ending::Completed,
        result: Some(json!({"answer": 42})),
        error: None,
        recovery_reason: None,
        body_digest: Some(Digest::of_bytes(body)),
    };
    let settled = t.settle_with(&claim, end(b"body"), Some(0)).await.unwrap();
    let before = t.store.dump().await;
    let again = t.settle_with(&claim, end(b"body"), Some(0)).await.unwrap();
    assert_eq!(again, settled);
    // Another body, another attempt, another token: each by itself is no proof.
    assert_rejected!(
        t.settle_with(&claim, end(b"another"), Some(0)).await,
        Rejection::RunSettled { .. }
    );
    assert_rejected!(
        t.settle_with(&old, end(b"body"), Some(0)).await,
        Rejection::ClaimLost
    );
    let mut forged = claim.clone();
    forged.proof.token = ClaimToken::derive("guessed", claim.run_id(), 2);
    assert_rejected!(
        t.settle_with(&forged, end(b"body"), Some(0)).await,
        Rejection::ClaimTokenInvalid
    );
    assert_unchanged(&before, &t.store.dump().await, "a completion again");
}

async fn ids_of_the_servers_form_are_the_servers(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let data = json!({"content": "x", "role": "assistant"});
    for id in ["srv:1", "srv:", "srv:x"] {
        let kind = "StreamDelta".to_owned();
        let refused = Uploaded::check(0, id.to_owned(), kind, &data, None).unwrap_err();
        assert_eq!(refused.path, "events[0].event_id");
    }
    t.say(&claim, "mine", "x").await.unwrap();
    t.complete(&claim).await;
    for event in t.log(session).await {
        let is_servers = event.kind != "StreamDelta";
        assert_eq!(event.event_id.starts_with("srv:"), is_servers, "{event:?}");
    }
}

async fn upload_one(
    t: &TestControl,
    claim: &Claim,
    kind: &str,
    data: &Value,
    created_at: Option<Timestamp>,
) -> tapedeck_control_plane::Outcome<tapedeck_control_plane::commands::append_events::Recorded> {
    let event = Uploaded::check(0, "e".to_owned(), kind.to_owned(), data, created_at).unwrap();
    let command = AppendEvents {
        proof: claim.proof.clone(),
        batch: vec![event],
    };
    t.control.append_events(command).await
}

async fn an_event_is_its_kind_and_payload_and_not_its_time(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let data = json!({"content": "x", "role": "assistant", "n": 1.0});
    let made = Some(Timestamp(1_700_000_000_000));
    let first = upload_one(&t, &claim, "StreamDelta", &data, made).await;
    let first = first.unwrap();
    let log = t.log(session).await;
    let text = r#"{ "n": 1.0, "role": "assistant", "content": "\u0078" }"#;
    let reordered: Value = serde_json::from_str(text).unwrap();
    for (data, made) in [
        (&data, None),
        (&data, Some(Timestamp(1_700_000_000_001))),
        (&reordered, made),
    ] {
        let again = upload_one(&t, &claim, "StreamDelta", data, made).await;
        assert_eq!(again.unwrap(), first);
    }
    let another = json!({"content": "y", "role": "assistant", "n": 1.0});
    for (kind, data) in [("ThinkingDelta", &data), ("StreamDelta", &another)] {
        assert_rejected!(
            upload_one(&t, &claim, kind, data, made).await,
            Rejection::EventIdConflict { .. }
        );
    }
    assert_eq!(t.log(session).await, log);
}

async fn a_claim_that_is_dropped_at_any_await_point_is_claimable_again(t: TestControl) {
    // A claim is looked at so many times and then dropped, once more each round, until one round
    // sees its end.
    let t = Arc::new(t);
    let mut looks = 0;
    loop {
        let session = t.session().await;
        let admitted = t.prompt(session).await;
        let request = claim_request("gone", &format!("gone-{looks}"));
        let ended = {
            let mut claim = Box::pin(t.control.claim(request, Duration::from_secs(30)));
            let mut ended = false;
            for _ in 0..looks {
                ended = futures::poll!(&mut claim).is_ready();
                if ended {
                    break;
                }
                // What it waits for may have come by the next look.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            ended
        };
        // Nobody tells the server: either it notices, or the short lease ends.
        let mut waited = 0;
        let claim = loop {
            match t.try_claim("e1").await {
                Ok(claim) => break claim,
                outcome => assert_rejected!(outcome.map(|_| ()), Rejection::NoRunAvailable),
            }
            assert!(
                waited <= 20_000,
                "{looks} looks: not within the short lease"
            );
            waited += 1_000;
            t.pass(1_000).await;
            t.sweep().await;
        };
        assert_eq!(claim.run_id(), admitted.run_id);
        t.complete(&claim).await;
        if ended && looks > 3 {
            return;
        }
        looks += 1;
        assert!(looks < 10_000, "a claim never ends");
    }
}

async fn each_retry_after_a_lost_reply_gets_the_same_answer(t: TestControl) {
    // Each write is committed and its answer thrown away; the same bytes are sent again, also to a
    // process that was started since.
    let session = t.session().await;
    // A retry doesn't know the id that the server gave the run: each has one of its own.
    let prompt = |t: &TestControl| {
        let key = Some(key("prompt", "k", "b"));
        t.prompt_command(session, "do it", OnActive::Reject, key)
    };
    let admitted = t.control.prompt(prompt(&t)).await.unwrap();
    let request = claim_request("e1", "the-request");
    let claim = t.claim_as(request.clone()).await.unwrap();
    let said = t.say(&claim, "a", "x").await.unwrap();
    let asked = t.ask(&claim, "q").await.unwrap();
    let answered = t.answer(asked.interaction_id, true).await.unwrap();
    assert_eq!(t.control.prompt(prompt(&t)).await.unwrap(), admitted);
    let again = t.claim_as(request).await.unwrap();
    assert!(again.proof.token == claim.proof.token);
    assert_eq!(again.run_id(), claim.run_id());
    let settled = t.settle(&claim, Ending::Interrupted).await.unwrap();
    let resume = || ResumeRequest {
        reason: "user_resume".to_owned(),
        key: Some(key("resume", "k", "b")),
        ..ResumeRequest::default()
    };
    let resumed = t.control.resume(NAMESPACE, session, resume()).await;
    let resumed = resumed.unwrap();
    let t = t.restarted().await;
    // Before it resumes anything the tape catches up, whether it was resumed before or not.
    t.control.catch_up_tape(NAMESPACE, session).await.unwrap();
    let before = t.store.dump().await;
    assert_eq!(t.control.prompt(prompt(&t)).await.unwrap(), admitted);
    assert_eq!(t.say(&claim, "a", "x").await.unwrap(), said);
    let again = t.answer(asked.interaction_id, true).await.unwrap();
    assert_eq!(again, answered);
    let again = t.settle(&claim, Ending::Interrupted).await.unwrap();
    assert_eq!(again, settled);
    let again = t.control.resume(NAMESPACE, session, resume()).await;
    assert_eq!(again.unwrap(), resumed);
    assert_unchanged(&before, &t.store.dump().await, "retries");
    // What is asked of a run that is gone has an answer, too.
    t.control
        .delete_session(NAMESPACE, session, true)
        .await
        .unwrap();
    let gone = ClaimProof {
        session_id: None,
        ..claim.proof.clone()
    };
    let release = t.control.release_run(ReleaseRun { proof: gone }).await;
    assert!(
        matches!(release, Err(Error::NotFound(Target::Run))),
        "{release:?}"
    );
}
