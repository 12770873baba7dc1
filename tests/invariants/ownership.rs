//! Owners and epochs as far as one store's processes go (design §4.8; rules R4, R5, R8).

use std::sync::Arc;

use tapedeck_domain::Rejection;
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::settle::Ending;

use crate::control::{NAMESPACE, TestControl};

on_every_store! {
    a_live_owner_keeps_others_out,
    renewal_keeps_epoch_takeover_advances,
    takeover_interrupts_active_run_atomically,
    a_restart_of_the_same_owner_interrupts_nothing,
    release_keeps_the_row_and_its_epoch,
    idle_sessions_are_released_and_never_deleted,
}

// A local process works on a data directory, whose lock says that no server lives.
on_sqlite! {
    a_server_that_is_gone_gives_way_where_nothing_runs,
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
