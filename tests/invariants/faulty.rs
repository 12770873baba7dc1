//! A store that fails now and then under clients that do as ours do: they try again with the same
//! key, the same ids, the same claim request, the same body. Nothing acknowledged is lost, nothing
//! is doubled, and the retry gets the answer that was lost (faults 7, 9, 15, 16).

mod calls;
mod script;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::{FollowRequest, Followed, Follower, Start, commands};
use tapedeck_domain::SessionId;
use tapedeck_store::Store;

use crate::control::{NAMESPACE, TestControl};
use crate::faulty_store::{Fault, Faulty};
use crate::seed::Seed;
use crate::stores::{Kind, TestStore};
use calls::{CALLS, Scene};
use script::Script;

on_every_store! {
    every_command_survives_every_fault,
    random_faults_change_no_outcome,
    an_answer_that_was_lost_is_given_again_by_any_process,
    what_a_failed_commit_wrote_is_seen_by_nobody,
    a_follower_misses_nothing_that_another_process_wrote_in_between,
}

const LIMIT: Duration = Duration::from_secs(30);
/// Runs of the script under random faults.
const CASES: u32 = 3;
/// How many of a hundred commands fail.
const PERCENT: u32 = 25;

/// A control plane over a faulty store, and another one over the same store without faults.
async fn shaky(kind: Kind) -> (TestControl, TestControl, Arc<Faulty>) {
    let mut store = TestStore::fresh(kind).await;
    let steady = TestControl::over(store.shared()).await;
    let faulty = Faulty::around(Arc::clone(&store.store));
    store.store = Arc::clone(&faulty) as Arc<dyn Store>;
    (TestControl::over(store).await, steady, faulty)
}

/// What the script comes to.
async fn played(kind: Kind, plan: impl FnOnce(&Faulty)) -> (Vec<String>, Arc<Faulty>) {
    let (control, _steady, faulty) = shaky(kind).await;
    plan(&faulty);
    let mut script = Script::new(control);
    script.play().await;
    faulty.heal();
    (script.everything().await, faulty)
}

#[track_caller]
fn assert_same(found: &[String], expected: &[String], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

async fn every_command_survives_every_fault(t: TestControl) {
    let kind = t.store.kind;
    let (expected, faulty) = played(kind, |_| {}).await;
    let came: BTreeSet<_> = faulty.struck().into_keys().collect();
    let all: BTreeSet<_> = commands::ALL.iter().copied().collect();
    assert_eq!(came, all, "commands that the script leaves out");
    for fault in Fault::ALL {
        let (found, faulty) = played(kind, |faulty| faulty.fail_first_of_each(fault)).await;
        assert_same(&found, &expected, &format!("{fault:?}"));
        let spared: Vec<_> = faulty
            .struck()
            .into_iter()
            .filter(|(_, times)| *times == 0)
            .collect();
        assert!(spared.is_empty(), "{fault:?}: {spared:?}");
    }
}

async fn random_faults_change_no_outcome(t: TestControl) {
    let kind = t.store.kind;
    let (expected, _faulty) = played(kind, |_| {}).await;
    let seed = Seed::of_this_run();
    for case in 0..Seed::cases(CASES) {
        let each = seed.number(u64::from(case));
        let (found, _faulty) = played(kind, |faulty| faulty.fail_randomly(each, PERCENT)).await;
        assert_same(&found, &expected, &format!("case {case}; {seed}"));
    }
}

async fn an_answer_that_was_lost_is_given_again_by_any_process(t: TestControl) {
    let (shaky, steady, faulty) = shaky(t.store.kind).await;
    let mut number = 0;
    for call in CALLS {
        let mut scene = async || {
            number += 1;
            Scene::set(&steady, *call, number).await
        };
        let calm = scene().await;
        faulty.heal();
        calm.make(&shaky).await.unwrap();
        let commands = faulty.heal();
        assert!(commands > 0);
        let expected = steady.kinds(calm.session).await;
        for after in 0..commands {
            for fault in [Fault::Before, Fault::LostReply] {
                let scene = scene().await;
                faulty.fail_once(after, fault);
                let first = scene.make(&shaky).await;
                faulty.heal();
                let again = scene.make(&steady).await.unwrap();
                let log = steady.log(scene.session).await;
                assert_eq!(
                    scene.make(&shaky).await.unwrap(),
                    again,
                    "{call:?} {after} {fault:?}"
                );
                if let Ok(first) = first {
                    assert_eq!(first, again, "{call:?} {after} {fault:?}");
                }
                assert_eq!(
                    steady.log(scene.session).await,
                    log,
                    "{call:?} {after} {fault:?}"
                );
                let kinds = steady.kinds(scene.session).await;
                assert_eq!(kinds, expected, "{call:?} {after} {fault:?}");
            }
        }
    }
}

/// A follower that has caught up.
async fn follower(t: &TestControl, session_id: SessionId) -> Follower {
    let request = FollowRequest {
        namespace: NAMESPACE.to_owned(),
        session_id,
        start: Start::After(t.view(session_id).await.head.head_seq),
        run_id: None,
        kinds: Vec::new(),
    };
    let mut follower = t.control.follow(request).await.unwrap();
    let live = async { while !matches!(follower.next().await, Ok(Some(Followed::Live { .. }))) {} };
    tokio::time::timeout(LIMIT, live).await.unwrap();
    follower
}

/// The ids of the next events, up to this one.
async fn read_to(follower: &mut Follower, last: &str) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    while seen.last().is_none_or(|id| id != last) {
        let item = tokio::time::timeout(LIMIT, follower.next()).await.unwrap();
        if let Some(Followed::Events(events)) = item.unwrap() {
            seen.extend(events.iter().map(|event| event.record.event_id.clone()));
        }
    }
    seen
}

async fn what_a_failed_commit_wrote_is_seen_by_nobody(t: TestControl) {
    let (t, _steady, faulty) = shaky(t.store.kind).await;
    let (session, claim) = t.running("e1").await;
    let mut follower = follower(&t, session).await;
    faulty.fail_once(0, Fault::AtCommit);
    t.say(&claim, "lost", "never said").await.unwrap_err();
    // It has the number that the lost one would have had (fault 3).
    t.say(&claim, "kept", "said").await.unwrap();
    assert_eq!(read_to(&mut follower, "kept").await, ["kept"]);
}

async fn a_follower_misses_nothing_that_another_process_wrote_in_between(t: TestControl) {
    let other = TestControl::over(t.store.shared()).await;
    let (session, claim) = t.running("e1").await;
    let mut follower = follower(&t, session).await;
    // Only what a process wrote itself is in its hot tail, which must not close over the gap (R21).
    t.say(&claim, "a", "by this one").await.unwrap();
    other.say(&claim, "b", "by the other").await.unwrap();
    t.say(&claim, "c", "by this one").await.unwrap();
    assert_eq!(read_to(&mut follower, "c").await, ["a", "b", "c"]);
}
