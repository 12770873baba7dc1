//! What the rules say of owners, leases and the clock, sentence by sentence (rules R4, R5, R6).

use std::sync::Arc;

use serde_json::{Map, json};
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::heartbeat::Heartbeat;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::sweep;
use tapedeck_domain::executor::Report;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::{Rejection, RunId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl, claim_request};
use crate::stores::Kind;
use crate::write_paths::assert_unchanged;

on_every_store! {
    a_lapsed_lease_of_ones_own_is_a_new_epoch_and_nothing_else,
    a_claim_outlives_the_epoch_that_it_was_made_under,
    every_write_of_an_executor_keeps_the_owner_for_as_long_as_the_claim,
    a_shorter_lease_never_shortens_the_owners,
    the_sweep_keeps_heads_owned_in_which_a_run_waits,
    the_sweep_writes_as_owner_takes_over_the_dead_and_leaves_the_living,
    a_gap_moves_each_live_lease_once_and_by_its_length,
    a_gap_is_credited_by_whatever_comes_first,
    a_crash_loop_keeps_nobody_alive,
    a_gap_of_two_sweeps_is_no_outage,
}

async fn epoch(t: &TestControl, session: SessionId) -> i64 {
    t.view(session).await.head.owner.unwrap().epoch.0
}

async fn owner_ends(t: &TestControl, session: SessionId) -> i64 {
    let owner = t.view(session).await.head.owner.unwrap();
    owner.expires_at.unwrap().0
}

/// A column of a live run that no answer shows.
pub(crate) async fn of_live_run(t: &TestControl, run: RunId, column: &str) -> i64 {
    let id = match t.store.kind {
        Kind::Sqlite => format!("X'{}'", run.uuid().simple()),
        Kind::Postgres | Kind::PostgresWithoutHints => format!("'{run}'"),
    };
    let statement = format!("SELECT CAST({column} AS BIGINT) FROM run_heads WHERE run_id = {id}");
    t.store.values::<i64>(&statement).await[0]
}

/// When a run's lease ends.
pub(crate) async fn lease_ends(t: &TestControl, run: RunId) -> i64 {
    of_live_run(t, run, "lease_expires_at").await
}

async fn a_lapsed_lease_of_ones_own_is_a_new_epoch_and_nothing_else(t: TestControl) {
    let session = t.session().await;
    let waiting = t.prompt(session).await;
    let queued = t.enqueue(session).await;
    let before = t.log(session).await;
    // Nobody renews meanwhile: no sweep keeps house.
    t.pass(61_000).await;
    t.control.acquire_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(epoch(&t, session).await, 2);
    // A released one is as good as lapsed.
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    t.control.acquire_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(epoch(&t, session).await, 3);
    assert_eq!(t.log(session).await, before, "no event tells of it");
    assert_eq!(t.run(waiting.run_id).await.status, RunStatus::Requested);
    assert_eq!(t.run(queued.run_id).await.status, RunStatus::Queued);
    // Whichever command comes first does the same in passing.
    t.pass(61_000).await;
    let claim = t.claim("e1").await;
    assert_eq!(claim.run_id(), waiting.run_id);
    assert_eq!(epoch(&t, session).await, 4);
    let kinds = t.kinds(session).await;
    assert!(
        !kinds.iter().any(|kind| kind == "OwnerChanged"),
        "{kinds:?}"
    );
}

async fn a_claim_outlives_the_epoch_that_it_was_made_under(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q").await.unwrap();
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    t.control.acquire_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(epoch(&t, session).await, 2);
    t.beat(&claim).await.unwrap();
    t.say(&claim, "a", "x").await.unwrap();
    t.answer(asked.interaction_id, true).await.unwrap();
    t.complete(&claim).await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Completed);
}

/// What an executor writes under a claim that goes on afterwards.
const WRITES: [&str; 5] = ["heartbeat", "events", "question", "tape", "snapshot"];

async fn write(t: &TestControl, claim: &Claim, what: &str) {
    match what {
        "heartbeat" => drop(t.beat(claim).await.unwrap()),
        "events" => drop(t.say(claim, "e", "x").await.unwrap()),
        "question" => drop(t.ask(claim, "q").await.unwrap()),
        "tape" => {
            let entry = UploadedEntry {
                entry_id: None,
                kind: "assistant_message".to_owned(),
                payload: json!({"text": "mine"}),
                meta: None,
                anchor_type: None,
            };
            let command = AppendTape {
                proof: claim.proof.clone(),
                batch: EntryBatch::check(claim.run_id(), vec![entry]).unwrap(),
                weight: 100,
            };
            drop(t.control.append_tape(command).await.unwrap());
        }
        "snapshot" => {
            let command = SaveSnapshot {
                proof: claim.proof.clone(),
                messages: vec![json!({"role": "user", "content": "do it"})],
                metadata: Map::new(),
                weight: 100,
            };
            t.control.save_snapshot(command).await.unwrap();
        }
        other => panic!("{other}"),
    }
}

async fn every_write_of_an_executor_keeps_the_owner_for_as_long_as_the_claim(t: TestControl) {
    for what in WRITES {
        for lease_ms in [20_000, 600_000] {
            let session = t.session().await;
            t.prompt(session).await;
            let mut request = claim_request("e1", &format!("{what}-{lease_ms}"));
            request.request.lease_ms = lease_ms;
            let claim = t.claim_as(request).await.unwrap();
            t.beat(&claim).await.unwrap();
            t.pass(15_000).await;
            write(&t, &claim, what).await;
            let ends = owner_ends(&t, session).await;
            let now = t.store.clock.lease();
            assert!(ends >= now + 60_000, "{what}: the owner's own lease");
            let claims = lease_ends(&t, claim.run_id()).await;
            assert!(claims >= now, "{what}");
            assert!(ends >= claims, "{what}: {ends} is before {claims}");
            t.complete(&claim).await;
        }
    }
}

async fn a_shorter_lease_never_shortens_the_owners(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let beat = |lease_ms| Heartbeat {
        proof: claim.proof.clone(),
        lease_ms: Some(lease_ms),
        report: Report::default(),
        agent_state: None,
    };
    let heartbeat = t
        .control
        .heartbeat(beat(300_000), std::time::Duration::ZERO);
    heartbeat.await.unwrap();
    let long = t.store.clock.lease() + 300_000;
    assert_eq!(owner_ends(&t, session).await, long);
    for lease_ms in [10_000, 60_000] {
        t.pass(1_000).await;
        let heartbeat = t
            .control
            .heartbeat(beat(lease_ms), std::time::Duration::ZERO);
        heartbeat.await.unwrap();
        t.say(&claim, &format!("e{lease_ms}"), "x").await.unwrap();
        assert_eq!(owner_ends(&t, session).await, long);
        assert_eq!(lease_ends(&t, claim.run_id()).await, long);
    }
    // Nor does the end of the run: it is a lease, not a belonging.
    t.complete(&claim).await;
    assert_eq!(owner_ends(&t, session).await, long);
}

async fn the_sweep_keeps_heads_owned_in_which_a_run_waits(t: TestControl) {
    let waiting = t.session().await;
    t.prompt(waiting).await;
    let idle = t.session().await;
    let idle_ends = owner_ends(&t, idle).await;
    for _ in 0..10 {
        t.pass(30_000).await;
        t.sweep().await;
        let ends = owner_ends(&t, waiting).await;
        assert_eq!(ends, t.store.clock.lease() + 60_000);
    }
    assert_eq!(epoch(&t, waiting).await, 1, "never lapsed");
    assert_eq!(owner_ends(&t, idle).await, idle_ends, "nothing is active");
}

async fn the_sweep_writes_as_owner_takes_over_the_dead_and_leaves_the_living(t: TestControl) {
    let living = TestControl::owned_by(t.store.shared(), "server:living").await;
    let dead = TestControl::owned_by(t.store.shared(), "server:dead").await;
    let (mine, mine_claim) = t.running("e1").await;
    let (of_living, living_claim) = living.running("e2").await;
    let (of_dead, dead_claim) = dead.running("e3").await;
    t.pass(50_000).await;
    // It lives, though its executor doesn't.
    let renewed = living.control.renew_owner(NAMESPACE, of_living).await;
    renewed.unwrap();
    t.pass(15_000).await;
    let before = (living.view(of_living).await, living.log(of_living).await);
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (2, 0));
    let run = t.run(mine_claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "lease_expired");
    let run = t.run(dead_claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "owner_takeover");
    let head = t.view(of_dead).await.head.owner.unwrap();
    assert_eq!(head.epoch.0, 2);
    assert_eq!(epoch(&t, mine).await, 2, "its own lease had lapsed as well");
    // The other one's is for the other one.
    let after = (living.view(of_living).await, living.log(of_living).await);
    assert_eq!(after, before);
    let of_living = living_claim.run_id();
    assert_eq!(t.run(of_living).await.status, RunStatus::Running);
    living.sweep().await;
    assert_eq!(t.run(of_living).await.status, RunStatus::Interrupted);
}

async fn a_gap_moves_each_live_lease_once_and_by_its_length(t: TestControl) {
    let (ended_in, ended) = t.running("e1").await;
    t.pass(55_000).await;
    let (live_in, live) = t.running("e2").await;
    // The first one's lease ends while somebody is alive.
    t.pass(10_000).await;
    let leases = [
        lease_ends(&t, ended.run_id()).await,
        lease_ends(&t, live.run_id()).await,
    ];
    let owners = [
        owner_ends(&t, ended_in).await,
        owner_ends(&t, live_in).await,
    ];
    // Two processes find out at once, and both again and again.
    let other = TestControl::over(t.store.shared()).await;
    let processes = [Arc::new(t), Arc::new(other)];
    processes[0].outage(1_000_000);
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..8 {
        let process = Arc::clone(&processes[n % 2]);
        starts.spawn(async move { sweep::start(&process.control).await.unwrap().credited_ms });
    }
    let credited: i64 = starts.join_all().await.into_iter().sum();
    assert_eq!(credited, 1_000_000);
    let t = &processes[0];
    assert_eq!(lease_ends(t, ended.run_id()).await, leases[0]);
    assert_eq!(lease_ends(t, live.run_id()).await, leases[1] + 1_000_000);
    assert_eq!(owner_ends(t, ended_in).await, owners[0]);
    assert_eq!(owner_ends(t, live_in).await, owners[1] + 1_000_000);
    t.beat(&live).await.unwrap();
    assert_rejected!(t.beat(&ended).await, Rejection::ClaimLost);
}

async fn a_gap_is_credited_by_whatever_comes_first(t: TestControl) {
    for first in ["upload", "question", "release", "claim", "takeover"] {
        let (session, claim) = t.running("e1").await;
        let before = lease_ends(&t, claim.run_id()).await;
        t.outage(200_000);
        match first {
            "upload" => drop(t.say(&claim, "a", "x").await.unwrap()),
            "question" => drop(t.ask(&claim, "q").await.unwrap()),
            "release" => {
                let release = ReleaseRun {
                    proof: claim.proof.clone(),
                };
                drop(t.control.release_run(release).await.unwrap());
                let again = t.claim("e1").await;
                assert_eq!(again.run_id(), claim.run_id());
                t.complete(&again).await;
                continue;
            }
            // What another executor asks for takes nothing from the first.
            "claim" => assert_rejected!(
                t.try_claim("e2").await.map(|_| ()),
                Rejection::NoRunAvailable
            ),
            // And the owner was no less cut off than its executors.
            "takeover" => {
                let other = TestControl::owned_by(t.store.shared(), "server:other").await;
                assert_rejected!(
                    other.control.acquire_owner(NAMESPACE, session).await,
                    Rejection::OwnedElsewhere { .. }
                );
            }
            other => panic!("{other}"),
        }
        let ends = lease_ends(&t, claim.run_id()).await;
        assert!(ends >= before + 200_000, "{first}");
        t.beat(&claim).await.unwrap();
        t.complete(&claim).await;
    }
}

async fn a_crash_loop_keeps_nobody_alive(mut t: TestControl) {
    // The executor is dead. Servers come and go, each alive for some seconds: what counts is the
    // time in which one was there, and it adds up to the lease whatever lies between.
    let (_, claim) = t.running("e1").await;
    let mut alive = 0;
    while t.run(claim.run_id()).await.status == RunStatus::Running {
        assert!(alive <= 70_000, "{alive} ms of life and no end");
        t.outage(3_600_000);
        t = t.restarted().await;
        t.pass(7_000).await;
        alive += 7_000;
        t.sweep().await;
    }
    assert!(alive > 55_000, "{alive} ms are less than its lease");
}

async fn a_gap_of_two_sweeps_is_no_outage(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    let before = t.store.dump().await;
    let ends = lease_ends(&t, claim.run_id()).await;
    t.outage(10_000);
    let alive = sweep::start(&t.control).await.unwrap();
    assert_eq!((alive.credited_ms, alive.claims), (0, 0));
    assert_eq!(lease_ends(&t, claim.run_id()).await, ends);
    let tables = |dump: Vec<String>| -> Vec<String> {
        let kept = |row: &String| !row.starts_with("deployment ");
        dump.into_iter().filter(kept).collect()
    };
    let after = t.store.dump().await;
    assert_unchanged(&tables(before), &tables(after), "a sign of life");
    // One millisecond more is one.
    t.outage(10_001);
    let alive = sweep::start(&t.control).await.unwrap();
    assert_eq!((alive.credited_ms, alive.claims), (10_001, 1));
    assert_eq!(lease_ends(&t, claim.run_id()).await, ends + 10_001);
}
