//! Two instances of a server on one database, each with a store, a feed and a sweep of its own: what
//! one commits, the other finds, with hints and without any (stores §5, faults 19).

use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::{FollowRequest, Followed, Follower, Start};
use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{Rejection, SessionId};

use crate::control::{NAMESPACE, TestControl, claim_request};

// A data directory has one server.
on_postgres! {
    any_instance_serves_any_session,
    a_follower_sees_what_another_instance_commits,
    a_held_claim_wakes_with_work_from_another_instance,
    a_held_question_wakes_with_an_answer_from_another_instance,
    one_run_is_claimed_by_one_of_many_instances,
    a_run_that_somebody_holds_for_a_moment_is_still_found,
    a_claim_passes_by_what_somebody_holds,
    writers_on_several_instances_make_one_dense_log,
    sweeps_of_several_instances_recover_a_run_once,
    an_instance_that_starts_later_interrupts_nothing,
}

const LIMIT: Duration = Duration::from_secs(10);

async fn another(t: &TestControl) -> Arc<TestControl> {
    Arc::new(TestControl::over(t.store.another_instance().await).await)
}

async fn any_instance_serves_any_session(a: TestControl) {
    let b = another(&a).await;
    let session = a.session().await;
    let admitted = b.prompt(session).await;
    let claim = a.claim("e1").await;
    assert_eq!(claim.run_id(), admitted.run_id);
    b.beat(&claim).await.unwrap();
    a.say(&claim, "a", "by a").await.unwrap();
    b.say(&claim, "b", "by b").await.unwrap();
    let asked = a.ask(&claim, "q1").await.unwrap();
    b.answer(asked.interaction_id, true).await.unwrap();
    b.complete(&claim).await;
    assert_rejected!(
        a.say(&claim, "late", "late").await,
        Rejection::RunSettled { .. }
    );
    assert_eq!(a.log(session).await, b.log(session).await);
    let kinds = a.kinds(session).await;
    assert!(
        !kinds.iter().any(|kind| kind == "OwnerChanged"),
        "{kinds:?}"
    );
    // Both write as the deployment: one owner, one epoch.
    let owner = b.view(session).await.head.owner.unwrap();
    assert_eq!(owner.epoch.0, 1);
}

async fn follower(t: &TestControl, session_id: SessionId) -> Follower {
    let request = FollowRequest {
        namespace: NAMESPACE.to_owned(),
        session_id,
        start: Start::After(0),
        run_id: None,
        kinds: Vec::new(),
    };
    t.control.follow(request).await.unwrap()
}

/// The numbers of events, until `last` was among them.
async fn read_to(follower: &mut Follower, last: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.last().copied().unwrap_or(0) < last {
        let item = tokio::time::timeout(LIMIT, follower.next()).await.unwrap();
        match item.unwrap() {
            Some(Followed::Events(events)) => {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
            Some(_) => {}
            None => panic!("the stream ended at {seen:?}"),
        }
    }
    seen
}

async fn a_follower_sees_what_another_instance_commits(a: TestControl) {
    let b = another(&a).await;
    let (session, claim) = a.running("e1").await;
    let mut at_b = follower(&b, session).await;
    let head = a.log(session).await.len() as u64;
    let mut seen = read_to(&mut at_b, head).await;
    for n in 1..=20 {
        a.say(&claim, &format!("a{n}"), "x").await.unwrap();
        seen.extend(read_to(&mut at_b, head + n).await);
    }
    a.control
        .delete_session(NAMESPACE, session, true)
        .await
        .unwrap();
    // What the delete itself wrote may be seen or not; then the stream ends.
    let ending = async {
        while let Some(item) = at_b.next().await.unwrap() {
            if let Followed::Events(events) = item {
                seen.extend(events.iter().map(|event| event.record.session_seq));
            }
        }
    };
    tokio::time::timeout(LIMIT, ending).await.unwrap();
    let expected: Vec<_> = (1..=seen.len() as u64).collect();
    assert_eq!(seen, expected);
}

async fn a_held_claim_wakes_with_work_from_another_instance(a: TestControl) {
    let b = another(&a).await;
    let waiting = {
        let b = Arc::clone(&b);
        b.control.lifecycle().clone().spawn(async move {
            let request = claim_request("e1", "held-request");
            b.control.claim(request, 3 * LIMIT).await
        })
    };
    let session = a.session().await;
    let admitted = a.prompt(session).await;
    let claimed = tokio::time::timeout(LIMIT, waiting).await.unwrap();
    let claimed = claimed.unwrap().unwrap();
    assert_eq!(claimed.run.run_id, admitted.run_id);
}

async fn a_held_question_wakes_with_an_answer_from_another_instance(a: TestControl) {
    let b = another(&a).await;
    let (_, claim) = a.running("e1").await;
    let asked = a.ask(&claim, "q1").await.unwrap();
    let held = {
        let (b, claim) = (Arc::clone(&b), claim.clone());
        b.control.lifecycle().clone().spawn(async move {
            let ask = b.ask_command(&claim, "q1", "shell");
            b.control.ask(ask, 3 * LIMIT).await
        })
    };
    a.answer(asked.interaction_id, true).await.unwrap();
    let answered = tokio::time::timeout(LIMIT, held).await.unwrap();
    let answered = answered.unwrap().unwrap();
    assert_eq!(answered.status, InteractionStatus::Approved);
    assert_rejected!(
        b.answer(asked.interaction_id, false).await,
        Rejection::AlreadyResolved { .. }
    );
}

/// Waits until a backend of the store waits for a lock.
async fn until_one_waits(t: &TestControl) {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waited = tokio::time::timeout(LIMIT, async {
        while t.store.values::<i64>(waiting).await[0] == 0 {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

async fn a_run_that_somebody_holds_for_a_moment_is_still_found(t: TestControl) {
    let session = t.session().await;
    let admitted = t.prompt(session).await;
    let held = t.store.begin("SELECT FROM session_heads FOR UPDATE").await;
    let control = t.control.clone();
    let poll = t.control.lifecycle().spawn(async move {
        let request = claim_request("e1", "the-only-poll");
        control.claim(request, Duration::ZERO).await
    });
    until_one_waits(&t).await;
    held.commit().await;
    let claimed = tokio::time::timeout(LIMIT, poll).await.unwrap();
    let claimed = claimed.unwrap().unwrap();
    assert_eq!(claimed.run.run_id, admitted.run_id);
}

async fn a_claim_passes_by_what_somebody_holds(t: TestControl) {
    let (first, second) = (t.session().await, t.session().await);
    t.prompt(first).await;
    let admitted = t.prompt(second).await;
    let lock = format!("SELECT FROM session_heads WHERE session_id = '{first}' FOR UPDATE");
    let held = t.store.begin(&lock).await;
    let claim = tokio::time::timeout(LIMIT, t.claim("e1")).await.unwrap();
    assert_eq!(claim.run_id(), admitted.run_id);
    held.commit().await;
}

async fn one_run_is_claimed_by_one_of_many_instances(a: TestControl) {
    let b = another(&a).await;
    let instances = [Arc::new(a), b];
    for _ in 0..10 {
        let session = instances[0].session().await;
        instances[1].prompt(session).await;
        let mut claims = tokio::task::JoinSet::new();
        for n in 0..20 {
            let t = Arc::clone(&instances[n % 2]);
            claims.spawn(async move { t.try_claim(&format!("e{n}")).await });
        }
        let outcomes = claims.join_all().await;
        let won: Vec<_> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1);
        instances[0].complete(&won[0]).await;
    }
}

async fn writers_on_several_instances_make_one_dense_log(a: TestControl) {
    let b = another(&a).await;
    let instances = [Arc::new(a), b];
    let (session, claim) = instances[0].running("e1").await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (t, claim) = (Arc::clone(&instances[writer % 2]), claim.clone());
        writers.spawn(async move {
            for n in 0..10 {
                // Every event is sent through both instances, as a retry would be.
                let id = format!("e{}-{n}", writer / 2);
                t.say(&claim, &id, "x").await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let log = instances[1].log(session).await;
    let numbers: Vec<_> = log.iter().map(|event| event.session_seq).collect();
    let expected: Vec<_> = (1..=log.len() as u64).collect();
    assert_eq!(numbers, expected);
    let words = log.iter().filter(|event| event.kind == "StreamDelta");
    assert_eq!(words.count(), 4 * 10);
}

async fn sweeps_of_several_instances_recover_a_run_once(a: TestControl) {
    let b = another(&a).await;
    let mut lost = Vec::new();
    for n in 0..10 {
        lost.push(a.running(&format!("e{n}")).await);
    }
    a.pass(65_000).await;
    let (by_a, by_b) = tokio::join!(a.sweep(), b.sweep());
    for (session, claim) in lost {
        assert_eq!(b.run(claim.run_id()).await.status, RunStatus::Interrupted);
        let kinds = a.kinds(session).await;
        let ends = kinds.iter().filter(|kind| *kind == "TurnEnd").count();
        assert_eq!(ends, 1, "{kinds:?} {by_a:?} {by_b:?}");
    }
}

async fn an_instance_that_starts_later_interrupts_nothing(a: TestControl) {
    let (session, claim) = a.running("e1").await;
    // One instance alone is alive all the time, so nothing is credited to anybody.
    a.pass(40_000).await;
    let b = another(&a).await;
    b.sweep().await;
    b.beat(&claim).await.unwrap();
    drop(b);
    a.say(&claim, "a", "still here").await.unwrap();
    assert_eq!(a.run(claim.run_id()).await.status, RunStatus::Running);
    a.pass(55_000).await;
    let c = another(&a).await;
    c.pass(10_000).await;
    c.sweep().await;
    assert_eq!(a.run(claim.run_id()).await.status, RunStatus::Interrupted);
    assert_eq!(a.log(session).await, c.log(session).await);
}
