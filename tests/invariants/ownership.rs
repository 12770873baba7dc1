//! Owners and epochs as far as one store's processes go (design §4.8; rules R4, R5).

use std::sync::Arc;

use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_control_plane::commands::keep_house::KeepHouse;
use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::settle::Ending;

use crate::control::{NAMESPACE, TestControl};
use crate::restore::TABLES;
use crate::write_paths::assert_unchanged;

on_every_store! {
    a_live_owner_keeps_others_out,
    renewal_keeps_epoch_takeover_advances,
    takeover_interrupts_active_run_atomically,
    a_restart_of_the_same_owner_interrupts_nothing,
    release_keeps_the_row_and_its_epoch,
    idle_sessions_are_released_and_never_deleted,
    a_session_is_idle_by_its_own_last_activity,
    a_takeover_that_fails_at_any_write_leaves_everything_as_it_was,
    any_command_of_a_new_owner_takes_over_first,
}

// A local process works on a data directory, whose lock says that no server lives (rules R8).
on_sqlite! {
    a_server_that_is_gone_gives_way_where_nothing_runs,
    a_dead_local_owner_gives_way_at_once,
    a_living_local_owner_keeps_others_out_until_its_process_ends,
}

async fn other(t: &TestControl, owner: &str) -> TestControl {
    TestControl::owned_by(t.store.shared(), owner).await
}

async fn a_live_owner_keeps_others_out(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let b = other(&t, "server:other").await;
    let before = t.log(session).await;
    assert_rejected!(
        b.try_prompt(session, OnActive::Enqueue).await,
        Rejection::OwnedElsewhere { ref owner_id, .. } if owner_id.starts_with("server:")
    );
    assert_rejected!(b.resume(session).await, Rejection::OwnedElsewhere { .. });
    assert_rejected!(
        b.control.cancel_session(NAMESPACE, session, "client").await,
        Rejection::OwnedElsewhere { .. }
    );
    assert_rejected!(
        b.control.delete_session(NAMESPACE, session, true).await,
        Rejection::OwnedElsewhere { .. }
    );
    assert_rejected!(
        b.control
            .close_session(NAMESPACE, session)
            .await
            .map(|_| ()),
        Rejection::OwnedElsewhere { .. }
    );
    assert_rejected!(b.beat(&claim).await, Rejection::OwnedElsewhere { .. });
    assert_rejected!(
        b.say(&claim, "x", "x").await,
        Rejection::OwnedElsewhere { .. }
    );
    assert_rejected!(
        b.settle(&claim, Ending::Completed).await,
        Rejection::OwnedElsewhere { .. }
    );
    assert_eq!(t.log(session).await, before);
    // What another live owner holds is not even offered.
    let waiting = t.session().await;
    t.prompt(waiting).await;
    assert_rejected!(
        b.try_claim("e2").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
}

async fn renewal_keeps_epoch_takeover_advances(t: TestControl) {
    let session = t.session().await;
    let epoch = |view: tapedeck_store::SessionView| view.head.owner.unwrap().epoch.0;
    assert_eq!(epoch(t.view(session).await), 1);
    t.pass(30_000).await;
    t.control.renew_owner(NAMESPACE, session).await.unwrap();
    t.prompt(session).await;
    assert_eq!(epoch(t.view(session).await), 1);
    t.pass(61_000).await;
    assert_rejected!(
        t.control.renew_owner(NAMESPACE, session).await,
        Rejection::OwnerLeaseExpired
    );
    t.control.acquire_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(epoch(t.view(session).await), 2);
    t.pass(61_000).await;
    let b = other(&t, "server:other").await;
    b.control.acquire_owner(NAMESPACE, session).await.unwrap();
    assert_eq!(epoch(t.view(session).await), 3);
    assert_rejected!(
        t.control.renew_owner(NAMESPACE, session).await,
        Rejection::StaleEpoch
    );
}

async fn takeover_interrupts_active_run_atomically(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let queued = t.enqueue(session).await;
    t.pass(300_000).await;
    let b = other(&t, "server:other").await;
    b.control.acquire_owner(NAMESPACE, session).await.unwrap();
    let run = b.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "owner_takeover");
    assert_eq!(b.run(queued.run_id).await.status, RunStatus::Cancelled);
    let kinds = b.kinds(session).await;
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "OwnerChanged").count(),
        1
    );
    assert_eq!(kinds.iter().filter(|kind| *kind == "TurnEnd").count(), 2);
    // The old claim died with it, at whichever process it knocks.
    assert_rejected!(b.beat(&claim).await, Rejection::RunSettled { .. });
    assert_rejected!(t.beat(&claim).await, Rejection::OwnedElsewhere { .. });
    let summary = b.view(session).await.session.summary;
    assert_eq!(
        (
            summary.active_run_id,
            summary.queued_runs,
            summary.queue_held
        ),
        (None, 0, false)
    );
    b.prompt(session).await;
}

async fn a_restart_of_the_same_owner_interrupts_nothing(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let t = t.restarted().await;
    t.beat(&claim).await.unwrap();
    assert!(
        !t.kinds(session)
            .await
            .iter()
            .any(|kind| kind == "OwnerChanged")
    );
}

async fn a_server_that_is_gone_gives_way_where_nothing_runs(t: TestControl) {
    let idle = t.session().await;
    let (busy, claim) = t.running("e1").await;
    let local = "cli:01890000-0000-7000-8000-000000000001";
    let store = t.store.reopened_by(t.control, local).await;
    let local = TestControl::owned_by(store, local).await;
    // Its lease has not ended, but no server can live beside a local process.
    local.prompt(idle).await;
    // An executor works on the other one and waits for the server to come back.
    assert_rejected!(
        local.try_prompt(busy, OnActive::Enqueue).await,
        Rejection::OwnedElsewhere { .. }
    );
    assert_eq!(local.run(claim.run_id()).await.status, RunStatus::Running);
}

async fn release_keeps_the_row_and_its_epoch(t: TestControl) {
    let session = t.session().await;
    t.control.release_owner(NAMESPACE, session).await.unwrap();
    let owner = t.view(session).await.head.owner.unwrap();
    assert_eq!((owner.epoch.0, owner.expires_at), (1, None));
    let b = other(&t, "server:other").await;
    b.prompt(session).await;
    assert_eq!(b.view(session).await.head.owner.unwrap().epoch.0, 2);
    assert_rejected!(
        t.control.release_owner(NAMESPACE, session).await,
        Rejection::StaleEpoch
    );
}

async fn idle_sessions_are_released_and_never_deleted(t: TestControl) {
    let t = Arc::new(t);
    let idle = t.session().await;
    let (busy, claim) = t.running("e1").await;
    for _ in 0..24 {
        t.pass(30_000).await;
        t.beat(&claim).await.unwrap();
        t.sweep().await;
    }
    assert_eq!(t.view(idle).await.head.owner.unwrap().expires_at, None);
    assert!(t.view(busy).await.head.owner.unwrap().expires_at.is_some());
    // A year later it is still there and takes a prompt.
    t.outage(365 * 24 * 3_600_000);
    t.sweep().await;
    t.prompt(idle).await;
    assert_eq!(t.view(idle).await.head.owner.unwrap().epoch.0, 2);
}

async fn a_session_is_idle_by_its_own_last_activity(t: TestControl) {
    let (quiet, touched) = (t.session().await, t.session().await);
    let elsewhere = TestControl::owned_by(t.store.shared(), "server:other").await;
    let of_other = elsewhere.session().await;
    let (busy, _claim) = t.running("e1").await;
    let released = async |session| {
        t.view(session)
            .await
            .head
            .owner
            .unwrap()
            .expires_at
            .is_none()
    };
    t.pass(599_000).await;
    let title = SettingsPatch {
        title: Some(Some("touched".to_owned())),
        ..SettingsPatch::default()
    };
    t.control
        .configure_session(NAMESPACE, touched, title)
        .await
        .unwrap();
    t.sweep().await;
    assert!(!released(quiet).await);
    t.pass(2_000).await;
    // Long ago for whoever looks at the row, and active all the same.
    let old = "UPDATE session_heads SET last_activity_at = 0 WHERE active_run_key IS NOT NULL";
    t.store.run(old).await;
    let before = t.store.dump().await;
    t.control.run_alone(KeepHouse.into()).await.unwrap();
    assert!(released(quiet).await);
    for kept in [touched, of_other, busy] {
        assert!(!released(kept).await);
    }
    // Nothing else has changed: one row, and in it the lease.
    let after = t.store.dump().await;
    assert_eq!(before.iter().filter(|row| !after.contains(row)).count(), 1);
    assert_eq!(before.len(), after.len());
}

async fn a_takeover_that_fails_at_any_write_leaves_everything_as_it_was(t: TestControl) {
    let mut failed = Vec::new();
    for table in TABLES {
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            // A run that works and asks, and two that wait.
            let (session, claim) = t.running("e1").await;
            t.ask(&claim, "q").await.unwrap();
            t.enqueue(session).await;
            t.enqueue(session).await;
            t.pass(300_000).await;
            let b = other(&t, "server:other").await;
            let before = t.store.dump().await;
            t.store.refuse(verb, table).await;
            let outcome = b.control.acquire_owner(NAMESPACE, session).await;
            t.store.allow_writes().await;
            if outcome.is_err() {
                let what = format!("a takeover without {verb} of {table}");
                assert_unchanged(&before, &t.store.dump().await, &what);
                failed.push(format!("{verb} {table}"));
                b.control.acquire_owner(NAMESPACE, session).await.unwrap();
            }
            assert_eq!(b.run(claim.run_id()).await.status, RunStatus::Interrupted);
            let summary = b.view(session).await.session.summary;
            assert_eq!((summary.active_run_id, summary.queued_runs), (None, 0));
            b.control
                .delete_session(NAMESPACE, session, true)
                .await
                .unwrap();
        }
    }
    for write in [
        "INSERT events",
        "UPDATE interactions",
        "UPDATE runs",
        "DELETE run_heads",
        "UPDATE session_heads",
        "UPDATE sessions",
    ] {
        assert!(
            failed.iter().any(|name| name == write),
            "{write}: {failed:?}"
        );
    }
}

async fn any_command_of_a_new_owner_takes_over_first(t: TestControl) {
    // Whichever command comes first settles what the old owner had, in its own transaction.
    let b = other(&t, "server:other").await;
    let kinds = async |session| {
        let kinds = b.kinds(session).await;
        let of = |name: &str| kinds.iter().filter(|kind| *kind == name).count();
        (of("OwnerChanged"), of("TurnEnd"))
    };
    for first in ["prompt", "cancel", "configure", "recover", "refused"] {
        let (session, claim) = t.running("e1").await;
        t.enqueue(session).await;
        t.pass(300_000).await;
        match first {
            "prompt" => drop(b.prompt(session).await),
            "cancel" => {
                let cancelled = b.control.cancel_session(NAMESPACE, session, "client").await;
                assert_eq!(
                    cancelled.unwrap().run_id,
                    None,
                    "nothing is active any more"
                );
            }
            "recover" => assert!(b.control.recover_run(claim.run_id()).await.unwrap()),
            "configure" => {
                let title = SettingsPatch {
                    title: Some(Some("mine".to_owned())),
                    ..SettingsPatch::default()
                };
                b.control
                    .configure_session(NAMESPACE, session, title)
                    .await
                    .unwrap();
            }
            // A refused command has changed nothing, so it has taken nothing over either.
            "refused" => {
                let before = t.store.dump().await;
                assert_rejected!(b.beat(&claim).await, Rejection::RunSettled { .. });
                assert_unchanged(&before, &t.store.dump().await, first);
                b.control.acquire_owner(NAMESPACE, session).await.unwrap();
            }
            other => panic!("{other}"),
        }
        assert_eq!(kinds(session).await, (1, 2), "{first}");
        assert_eq!(
            b.run(claim.run_id()).await.status,
            RunStatus::Interrupted,
            "{first}"
        );
        b.control
            .delete_session(NAMESPACE, session, true)
            .await
            .unwrap();
    }
}

const LOCAL: [&str; 2] = [
    "cli:01890000-0000-7000-8000-000000000001",
    "acp-stdio:01890000-0000-7000-8000-000000000002",
];

async fn a_dead_local_owner_gives_way_at_once(t: TestControl) {
    let store = t.store.reopened_by(t.control, LOCAL[0]).await;
    let first = TestControl::owned_by(store, LOCAL[0]).await;
    let (session, claim) = first.running("e1").await;
    let queued = first.enqueue(session).await;
    // Its process ends without a word; no time passes.
    let store = first.store.reopened_by(first.control, LOCAL[1]).await;
    let second = TestControl::owned_by(store, LOCAL[1]).await;
    let resumed = {
        second
            .control
            .acquire_owner(NAMESPACE, session)
            .await
            .unwrap();
        second.resume(session).await.unwrap()
    };
    let run = second.run(claim.run_id()).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "owner_takeover");
    assert_eq!(second.run(queued.run_id).await.status, RunStatus::Cancelled);
    assert_eq!(
        second.run(resumed.run_id).await.parent_run_id,
        Some(claim.run_id())
    );
    assert_eq!(second.view(session).await.head.owner.unwrap().epoch.0, 2);
    // A server that comes knows it as well: it has the directory alone.
    let server = second.restarted().await;
    server
        .control
        .acquire_owner(NAMESPACE, session)
        .await
        .unwrap();
    assert_eq!(server.view(session).await.head.owner.unwrap().epoch.0, 3);
    assert_eq!(
        server.run(resumed.run_id).await.status,
        RunStatus::Interrupted
    );
}

async fn a_living_local_owner_keeps_others_out_until_its_process_ends(t: TestControl) {
    let store = t.store.reopened_by(t.control, LOCAL[0]).await;
    let first = TestControl::owned_by(store, LOCAL[0]).await;
    let beside = first.store.beside(LOCAL[1]).await;
    let second = TestControl::owned_by(beside, LOCAL[1]).await;
    let (session, claim) = first.running("e1").await;
    let owner = first.view(session).await.head.owner.unwrap();
    let lease_ends = first
        .control
        .now()
        .await
        .unwrap()
        .wall_of(owner.expires_at.unwrap());
    assert_rejected!(
        second.try_prompt(session, OnActive::Enqueue).await,
        Rejection::OwnedElsewhere { ref owner_id, until } if owner_id == LOCAL[0] && until == lease_ends
    );
    assert_rejected!(
        second.try_claim("e2").await.map(|_| ()),
        Rejection::NoRunAvailable
    );
    // What it reads is the same, and it has sessions of its own beside it.
    assert_eq!(second.log(session).await, first.log(session).await);
    let own = second.session().await;
    second.prompt(own).await;
    first.beat(&claim).await.unwrap();
    // Once the process is gone, nobody waits for its lease.
    let TestControl { control, store } = first;
    control
        .lifecycle()
        .finish(std::time::Duration::from_secs(5))
        .await;
    drop(control);
    store.store.close().await;
    drop(store);
    second.prompt(session).await;
    assert_eq!(
        second.run(claim.run_id()).await.status,
        RunStatus::Interrupted
    );
}
