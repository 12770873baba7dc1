//! Who is given which run: turns between namespaces, executors that runs wait for, labels and pools,
//! runs that nobody can serve, and runs that go on for too long.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use tapedeck_control_plane::commands::leave_executor::LeaveExecutor;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::{PageRequest, RunFilter};
use tapedeck_domain::executor::{Contact, ExecutorStatus, qualifies};
use tapedeck_domain::run::{Run, RunStatus};
use tapedeck_domain::session::{ExecutorTarget, SessionSettings, Workspace};
use tapedeck_domain::settle::Ending;
use tapedeck_domain::{Rejection, RunId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl, claim_request};
use crate::seed::Seed;

on_every_store! {
    a_namespace_that_floods_the_queue_keeps_no_other_waiting,
    a_session_with_a_long_queue_of_its_own_keeps_no_other_waiting,
    what_nobody_can_serve_costs_the_others_no_turn,
    a_run_waits_a_while_for_the_executor_of_the_last_one,
    a_session_says_how_long_its_runs_wait,
    nobody_waits_for_an_executor_that_cannot_come,
    a_run_that_comes_back_waits_for_nobody,
    a_pinned_run_waits_for_its_pin_alone,
    labels_and_pools_are_matched_like_the_naive_rule_says,
    a_run_that_nobody_can_serve_is_flagged_until_somebody_can,
    a_flag_says_what_is_missing,
    what_was_said_of_unacknowledged_claims_stays,
    half_of_the_queue_for_nobody_is_flagged_and_the_rest_is_served,
    a_run_beyond_its_bound_is_cancelled_whatever_its_executor_does,
    a_run_that_ends_within_its_bound_is_left_alone,
}

async fn prompt_in(t: &TestControl, namespace: &str, settings: SessionSettings) -> RunId {
    let session = t.control.create_session(namespace, settings, None).await;
    let session = session.unwrap().session.session_id;
    let mut command = t.prompt_command(
        session,
        "do it",
        tapedeck_domain::admit::OnActive::Reject,
        None,
    );
    namespace.clone_into(&mut command.namespace);
    t.control.prompt(command).await.unwrap().run_id
}

/// Claims, completes, and says whose it was.
async fn serve(t: &TestControl, executor_id: &str) -> (String, RunId) {
    let claim = t.claim(executor_id).await;
    t.complete(&claim).await;
    (claim.claimed.session.namespace.clone(), claim.run_id())
}

async fn a_namespace_that_floods_the_queue_keeps_no_other_waiting(t: TestControl) {
    for _ in 0..40 {
        prompt_in(&t, NAMESPACE, SessionSettings::default()).await;
    }
    // A long time alone earns no debt.
    for _ in 0..10 {
        assert_eq!(serve(&t, "e1").await.0, NAMESPACE);
    }
    let mut late = Vec::new();
    for _ in 0..6 {
        late.push(prompt_in(&t, "late", SessionSettings::default()).await);
    }
    let mut served = Vec::new();
    for _ in 0..13 {
        served.push(serve(&t, "e1").await);
    }
    let of_late: Vec<_> = served
        .iter()
        .filter(|(namespace, _)| namespace == "late")
        .map(|(_, run)| *run)
        .collect();
    // Turn by turn, and in their own order.
    assert_eq!(of_late, late);
    // While they wait, nobody is served twice more in between.
    let names: Vec<_> = served.iter().map(|(name, _)| name.as_str()).collect();
    let last = names.iter().rposition(|name| *name == "late").unwrap();
    let in_between = names[..last].split(|name| *name == "late");
    assert!(
        in_between.into_iter().all(|others| others.len() <= 2),
        "{names:?}"
    );
}

async fn a_session_with_a_long_queue_of_its_own_keeps_no_other_waiting(t: TestControl) {
    let busy = t.session().await;
    let first = t.prompt(busy).await.run_id;
    let mut queued = Vec::new();
    for _ in 0..3 {
        queued.push(t.enqueue(busy).await.run_id);
    }
    let other = t.prompt(t.session().await).await.run_id;
    let another = t.prompt(t.session().await).await.run_id;
    let mut order = Vec::new();
    for _ in 0..6 {
        order.push(serve(&t, "e1").await.1);
    }
    assert_eq!(
        order,
        [first, other, another, queued[0], queued[1], queued[2]]
    );
}

fn labelled(labels: &[(&str, &str)]) -> SessionSettings {
    let mut settings = SessionSettings::default();
    settings.run_target.executor.labels = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    settings
}

async fn what_nobody_can_serve_costs_the_others_no_turn(t: TestControl) {
    for _ in 0..20 {
        prompt_in(&t, "one", labelled(&[("gpu", "none")])).await;
    }
    prompt_in(&t, "one", SessionSettings::default()).await;
    for _ in 0..10 {
        prompt_in(&t, "two", SessionSettings::default()).await;
    }
    let first_two = [serve(&t, "e1").await.0, serve(&t, "e1").await.0];
    assert!(first_two.contains(&"one".to_owned()), "{first_two:?}");
}

fn local() -> SessionSettings {
    let mut settings = SessionSettings::default();
    settings.run_target.workspace = Some(Workspace::local_path("/srv/code"));
    settings
}

/// A session whose last run was this executor's.
async fn served_by(t: &TestControl, settings: SessionSettings, executor_id: &str) -> SessionId {
    let session = t.session_with(settings).await;
    let run = t.prompt(session).await.run_id;
    let claim = t.claim(executor_id).await;
    assert_eq!(claim.run_id(), run);
    t.complete(&claim).await;
    session
}

async fn no_run_for(t: &TestControl, executor_id: &str) {
    assert_rejected!(
        t.try_claim(executor_id).await.map(drop),
        Rejection::NoRunAvailable
    );
}

async fn a_run_waits_a_while_for_the_executor_of_the_last_one(t: TestControl) {
    let session = served_by(&t, local(), "e1").await;
    let run = t.prompt(session).await.run_id;
    no_run_for(&t, "e2").await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), run);
    t.complete(&claim).await;

    let run = t.prompt(session).await.run_id;
    t.pass(14_999).await;
    no_run_for(&t, "e2").await;
    t.store.clock.advance(1);
    let claim = t.claim("e2").await;
    assert_eq!(claim.run_id(), run);
    t.complete(&claim).await;
    // From now on it is the other's; and the first may still take it in the end.
    let run = t.prompt(session).await.run_id;
    no_run_for(&t, "e1").await;
    t.pass(15_000).await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), run);
    t.complete(&claim).await;
    // Whoever asks for this very session knows what it does.
    let run = t.prompt(session).await.run_id;
    no_run_for(&t, "e2").await;
    let mut of_session = claim_request("e2", "of-the-session");
    of_session.session_id = Some(session);
    assert_eq!(t.claim_as(of_session).await.unwrap().run_id(), run);
}

async fn a_session_says_how_long_its_runs_wait(t: TestControl) {
    let cases = [
        (SessionSettings::default(), None, 0),
        (SessionSettings::default(), Some(5), 5_000),
        (local(), Some(40), 40_000),
        (local(), Some(0), 0),
    ];
    for (mut settings, affinity, ms) in cases {
        settings.run_target.constraints.affinity_seconds = affinity;
        let session = served_by(&t, settings, "e1").await;
        let run = t.prompt(session).await.run_id;
        if ms > 0 {
            // It is in touch all the while.
            t.pass(ms - 1).await;
            no_run_for(&t, "e2").await;
            t.store.clock.advance(1);
        }
        let claim = t.claim("e2").await;
        assert_eq!(claim.run_id(), run);
        t.complete(&claim).await;
        no_run_for(&t, "e1").await;
    }
}

async fn leave(t: &TestControl, executor_id: &str, instance_id: &str) {
    let leave = LeaveExecutor {
        executor_id: executor_id.to_owned(),
        instance_id: Some(instance_id.to_owned()),
    };
    t.control.leave_executor(leave).await.unwrap();
}

async fn nobody_waits_for_an_executor_that_cannot_come(t: TestControl) {
    // Drained.
    let session = served_by(&t, local(), "e1").await;
    t.control.drain_executor("e1", true).await.unwrap();
    let run = t.prompt(session).await.run_id;
    assert_eq!(serve(&t, "e2").await.1, run);
    t.control.drain_executor("e1", false).await.unwrap();
    // Out of touch.
    let session = served_by(&t, local(), "e1").await;
    t.pass(30_000).await;
    let run = t.prompt(session).await.run_id;
    assert_eq!(serve(&t, "e2").await.1, run);
    // Gone, as it said itself; the leave of an earlier process says nothing of a later one.
    let session = served_by(&t, local(), "e1").await;
    leave(&t, "e1", "earlier").await;
    let run = t.prompt(session).await.run_id;
    no_run_for(&t, "e2").await;
    assert_eq!(serve(&t, "e1").await.1, run);
    leave(&t, "e1", "e1-instance").await;
    let run = t.prompt(session).await.run_id;
    let gone = t.control.executor("e1").await.unwrap();
    let now = t.control.now().await.unwrap();
    let status = gone.status(now, t.control.timing());
    assert_eq!(status, ExecutorStatus::Offline);
    assert_eq!(serve(&t, "e2").await.1, run);
    // In another pool by now.
    let session = served_by(&t, local(), "e1").await;
    let mut moved = claim_request("e1", "moved");
    "elsewhere".clone_into(&mut moved.contact.pool);
    moved.contact.instance_id = Some("another process".to_owned());
    assert_rejected!(t.claim_as(moved).await.map(drop), Rejection::NoRunAvailable);
    let run = t.prompt(session).await.run_id;
    assert_eq!(serve(&t, "e2").await.1, run);
}

async fn a_run_that_comes_back_waits_for_nobody(t: TestControl) {
    let session = served_by(&t, local(), "e1").await;
    let run = t.prompt(session).await.run_id;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), run);
    let release = ReleaseRun {
        proof: claim.proof.clone(),
    };
    t.control.release_run(release).await.unwrap();
    assert_eq!(t.claim("e2").await.run_id(), run);
}

async fn a_pinned_run_waits_for_its_pin_alone(t: TestControl) {
    let mut settings = local();
    settings.run_target.executor.executor_id = Some("e1".to_owned());
    let session = served_by(&t, settings, "e1").await;
    let run = t.prompt(session).await.run_id;
    t.pass(600_000).await;
    no_run_for(&t, "e2").await;
    assert_eq!(t.claim("e1").await.run_id(), run);
}

async fn labels_and_pools_are_matched_like_the_naive_rule_says(t: TestControl) {
    let mut rng = Seed::of_this_run().of(0);
    let some_labels = |rng: &mut rand::rngs::StdRng| -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for name in ["a", "b"] {
            match rng.random_range(0..3) {
                0 => {}
                value => {
                    labels.insert(name.to_owned(), value.to_string());
                }
            }
        }
        labels
    };
    let word = |rng: &mut rand::rngs::StdRng, words: &[&str]| {
        words[rng.random_range(0..words.len())].to_owned()
    };
    for round in 0..12 {
        let mut waiting: Vec<(RunId, SessionId, ExecutorTarget)> = Vec::new();
        for _ in 0..6 {
            let mut settings = SessionSettings::default();
            let target = &mut settings.run_target.executor;
            target.labels = some_labels(&mut rng);
            target.pool = word(&mut rng, &["p", "q"]);
            target.executor_kind = word(&mut rng, &["local_cli", "local_cli", "other"]);
            target.executor_id = match rng.random_range(0..3) {
                0 => Some(word(&mut rng, &["e0", "e1"])),
                _ => None,
            };
            let target = target.clone();
            let session = t.session_with(settings).await;
            waiting.push((t.prompt(session).await.run_id, session, target));
        }
        for number in 0..4 {
            let mut claim = claim_request(&format!("e{}", number % 2), "");
            claim.contact.labels = some_labels(&mut rng);
            claim.contact.pool = word(&mut rng, &["p", "q"]);
            claim.contact.executor_kind = word(&mut rng, &["local_cli", "other"]);
            let contact: Contact = claim.contact.clone();
            let expected: BTreeSet<_> = waiting
                .iter()
                .filter(|(_, _, target)| qualifies(&contact, target))
                .map(|(run, _, _)| *run)
                .collect();
            let mut taken: Vec<Claim> = Vec::new();
            loop {
                claim.request.claim_request_id =
                    format!("{round}-{number}-{}-{}", taken.len(), t.control.new_id());
                match t.claim_as(claim.clone()).await {
                    Ok(claimed) => taken.push(claimed),
                    refused => {
                        assert_rejected!(refused, Rejection::NoRunAvailable);
                        break;
                    }
                }
            }
            let found: BTreeSet<_> = taken.iter().map(Claim::run_id).collect();
            assert_eq!(found, expected, "{contact:?} {waiting:?}");
            for claim in taken {
                let release = ReleaseRun { proof: claim.proof };
                t.control.release_run(release).await.unwrap();
            }
        }
        for (_, session, _) in waiting {
            let gone = t.control.delete_session(NAMESPACE, session, true).await;
            gone.unwrap();
        }
    }
}

async fn unservable(t: &TestControl) -> Vec<Run> {
    let filter = RunFilter {
        unservable: true,
        ..RunFilter::default()
    };
    let page = PageRequest {
        before: None,
        limit: 200,
    };
    t.control.runs(NAMESPACE, filter, page).await.unwrap().items
}

/// A poll that finds nothing for this executor.
async fn poll(t: &TestControl, contact: &Contact) {
    let mut claim = claim_request(&contact.executor_id, &format!("{}", t.control.new_id()));
    claim.contact = contact.clone();
    assert_rejected!(
        t.claim_as(claim).await.map(drop),
        Rejection::NoRunAvailable | Rejection::ExecutorDraining { .. }
    );
}

async fn a_run_that_nobody_can_serve_is_flagged_until_somebody_can(t: TestControl) {
    let run = t
        .prompt(t.session_with(labelled(&[("gpu", "yes")])).await)
        .await;
    // Whoever starts together with its run has a moment to be heard of.
    t.sweep().await;
    assert!(unservable(&t).await.is_empty());
    t.pass(5_000).await;
    assert_eq!(t.sweep().await.flagged, 1);
    assert_eq!(t.sweep().await.flagged, 0);
    let flagged = unservable(&t).await;
    assert_eq!(flagged.len(), 1);
    assert_eq!(flagged[0].run_id, run.run_id);
    assert_eq!(flagged[0].unservable.as_deref(), Some("no_executor"));
    assert_eq!(flagged[0].status, RunStatus::Requested);
    // An executor without the label is seen.
    let mut contact = crate::control::contact("e1");
    poll(&t, &contact).await;
    t.sweep().await;
    let found = t.run(run.run_id).await;
    assert_eq!(found.unservable.as_deref(), Some("labels"));
    // One with it, which has no place now.
    "e2".clone_into(&mut contact.executor_id);
    contact.labels.insert("gpu".to_owned(), "yes".to_owned());
    contact.max_runs = Some(0);
    let mut full = claim_request("e2", "full");
    full.contact = contact.clone();
    assert_rejected!(
        t.claim_as(full).await.map(drop),
        Rejection::ExecutorFull { .. }
    );
    assert_eq!(t.sweep().await.flagged, 1);
    assert_eq!(t.run(run.run_id).await.unservable, None);
    assert!(unservable(&t).await.is_empty());
    // It is gone for a minute.
    t.pass(60_000).await;
    t.sweep().await;
    let found = t.run(run.run_id).await;
    assert_eq!(found.unservable.as_deref(), Some("no_executor"));
    // And comes back, with a place.
    contact.max_runs = Some(1);
    let mut claim = claim_request("e2", "with a place");
    claim.contact = contact;
    let claim = t.claim_as(claim).await.unwrap();
    assert_eq!(t.run(run.run_id).await.unservable, None);
    t.complete(&claim).await;
    assert_eq!(t.sweep().await.flagged, 0);
}

async fn a_flag_says_what_is_missing(t: TestControl) {
    let mut pinned = SessionSettings::default();
    pinned.run_target.executor.executor_id = Some("e9".to_owned());
    let mut elsewhere = SessionSettings::default();
    "elsewhere".clone_into(&mut elsewhere.run_target.executor.pool);
    let mut draining = SessionSettings::default();
    "drained".clone_into(&mut draining.run_target.executor.pool);
    let cases = [
        (labelled(&[("os", "plan9")]), Some("labels")),
        (pinned, Some("pin_offline")),
        (elsewhere, Some("no_executor")),
        (draining, Some("draining")),
    ];
    poll(&t, &crate::control::contact("e1")).await;
    let mut drained = crate::control::contact("e2");
    "drained".clone_into(&mut drained.pool);
    poll(&t, &drained).await;
    t.control.drain_executor("e2", true).await.unwrap();
    let mut runs = Vec::new();
    for (settings, reason) in cases {
        runs.push((
            t.prompt(t.session_with(settings).await).await.run_id,
            reason,
        ));
    }
    t.pass(5_000).await;
    t.sweep().await;
    for (run, reason) in &runs {
        assert_eq!(t.run(*run).await.unservable.as_deref(), *reason);
    }
    let listed: Vec<_> = unservable(&t).await.iter().map(|run| run.run_id).collect();
    let newest_first: Vec<_> = runs.iter().rev().map(|(run, _)| *run).collect();
    assert_eq!(listed, newest_first);
    // A cancel ends the wait, and with it the flag.
    t.control
        .cancel_run(NAMESPACE, runs[0].0, "client:test")
        .await
        .unwrap();
    assert_eq!(t.run(runs[0].0).await.unservable, None);
    assert_eq!(unservable(&t).await.len(), runs.len() - 1);
}

async fn what_was_said_of_unacknowledged_claims_stays(t: TestControl) {
    let run = t.prompt(t.session().await).await.run_id;
    // Three executors take it; none is heard of again.
    for number in 1..=3 {
        assert_eq!(t.claim(&format!("gone-{number}")).await.run_id(), run);
        t.pass(15_000).await;
        t.sweep().await;
        t.pass(5_000).await;
    }
    t.sweep().await;
    let found = t.run(run).await;
    assert_eq!(found.unservable.as_deref(), Some("unacknowledged"));
    assert_eq!(unservable(&t).await.len(), 1);
    let claim = t.claim("e1").await;
    t.beat(&claim).await.unwrap();
    assert_eq!(t.run(run).await.unservable, None);
}

async fn half_of_the_queue_for_nobody_is_flagged_and_the_rest_is_served(t: TestControl) {
    const HALF: usize = 60;
    let mut dead = BTreeSet::new();
    let mut alive = BTreeSet::new();
    for _ in 0..HALF {
        let nobody = t.session_with(labelled(&[("accelerator", "none")])).await;
        dead.insert(t.prompt(nobody).await.run_id);
        alive.insert(t.prompt(t.session().await).await.run_id);
    }
    let mut served = BTreeSet::new();
    for number in 0..HALF {
        served.insert(serve(&t, &format!("e{}", number % 7)).await.1);
    }
    assert_eq!(served, alive);
    no_run_for(&t, "e1").await;
    t.pass(5_000).await;
    assert_eq!(t.sweep().await.flagged, HALF as u64);
    let listed: BTreeSet<_> = unservable(&t).await.iter().map(|run| run.run_id).collect();
    assert_eq!(listed, dead);
}

fn bounded(seconds: u32) -> SessionSettings {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_run_seconds = Some(seconds);
    settings.run_target.constraints.max_attempts = Some(2);
    settings
}

async fn beat_for(t: &TestControl, claim: &Claim, ms: i64) {
    for _ in 0..ms / 10_000 {
        t.pass(10_000).await;
        t.sweep().await;
        t.beat(claim).await.unwrap();
    }
}

async fn a_run_beyond_its_bound_is_cancelled_whatever_its_executor_does(t: TestControl) {
    let session = t.session_with(bounded(120)).await;
    let run = t.prompt(session).await.run_id;
    let claim = t.claim("e1").await;
    t.beat(&claim).await.unwrap();
    // Two minutes, and the while that its executor has to end it by itself.
    beat_for(&t, &claim, 140_000).await;
    assert_eq!(t.run(run).await.status, RunStatus::Running);
    t.pass(10_000).await;
    t.sweep().await;
    assert_eq!(t.run(run).await.status, RunStatus::Cancelling);
    let told = t.beat(&claim).await.unwrap();
    assert!(told.cancel_requested);
    let log = t.log(session).await;
    let cancelling = log.iter().find(|event| event.kind == "TurnCancelling");
    let payload = cancelling.unwrap().payload.value();
    assert_eq!(payload["requested_by"], "system:max_run_seconds");
    // It goes on all the same, with a lease that it keeps.
    beat_for(&t, &claim, 20_000).await;
    assert_eq!(t.run(run).await.status, RunStatus::Cancelling);
    t.pass(10_000).await;
    t.sweep().await;
    let ended = t.run(run).await;
    assert_eq!(ended.status, RunStatus::Cancelled);
    assert_eq!(ended.recovery.unwrap().reason, "cancel_deadline");
    assert_rejected!(t.beat(&claim).await, Rejection::RunSettled { .. });
    // The session goes on.
    t.prompt(session).await;
    let next = t.claim("e1").await;
    t.settle(&next, Ending::Completed).await.unwrap();
}

async fn a_run_that_ends_within_its_bound_is_left_alone(t: TestControl) {
    let session = t.session_with(bounded(60)).await;
    let run = t.prompt(session).await.run_id;
    let claim = t.claim("e1").await;
    t.beat(&claim).await.unwrap();
    beat_for(&t, &claim, 60_000).await;
    // It is lost, and has another attempt: the bound is of each attempt.
    t.pass(61_000).await;
    t.sweep().await;
    let again = t.claim("e2").await;
    assert_eq!((again.run_id(), again.claimed.attempt), (run, 2));
    t.beat(&again).await.unwrap();
    beat_for(&t, &again, 80_000).await;
    assert_eq!(t.run(run).await.status, RunStatus::Running);
    // Time in which nobody was alive doesn't count.
    t.outage(600_000);
    t.sweep().await;
    assert_eq!(t.run(run).await.status, RunStatus::Running);
    t.complete(&again).await;
    t.pass(600_000).await;
    t.sweep().await;
    assert_eq!(t.run(run).await.status, RunStatus::Completed);
    // Nor is one without a bound ever too long.
    let (_, free) = t.running("e1").await;
    beat_for(&t, &free, 300_000).await;
    assert_eq!(t.run(free.run_id()).await.status, RunStatus::Running);
}
