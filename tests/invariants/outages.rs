//! Outages of the whole deployment (rules R5, R6).

use tapedeck_domain::Rejection;
use tapedeck_domain::run::RunStatus;

use crate::control::TestControl;

on_every_store! {
    an_outage_does_not_count_against_a_live_lease,
    an_outage_counts_once,
    time_before_the_outage_counts,
    a_lease_that_had_ended_before_the_outage_stays_ended,
    a_frozen_process_credits_its_gap_before_any_other_command,
    a_run_that_waits_stays_claimable_through_a_late_sweep,
    a_live_claim_keeps_its_session_owned,
}

// PostgreSQL's clock is the server's wall clock, which knows no boots (rules R7).
on_sqlite! {
    a_reboot_carries_leases_to_the_new_clock,
    a_run_that_waits_is_claimable_after_a_reboot,
    a_lease_that_had_ended_before_a_reboot_stays_ended,
}

async fn an_outage_does_not_count_against_a_live_lease(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.outage(3_600_000);
    let t = t.restarted().await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
    t.beat(&claim).await.unwrap();
    t.pass(55_000).await;
    t.sweep().await;
    t.beat(&claim).await.unwrap();
}

async fn an_outage_counts_once(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    let mut t = t;
    // A crash loop can't keep a dead executor's run alive: only time in which nobody could renew is
    // credited, and each restart is alive for a while.
    for _ in 0..5 {
        t.outage(100_000);
        t = t.restarted().await;
        t.pass(15_000).await;
        t.sweep().await;
    }
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Interrupted);
}

async fn time_before_the_outage_counts(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.pass(50_000).await;
    t.outage(1_000_000);
    let t = t.restarted().await;
    t.pass(15_000).await;
    assert_rejected!(t.beat(&claim).await, Rejection::ClaimLost);
}

async fn a_lease_that_had_ended_before_the_outage_stays_ended(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.pass(65_000).await;
    t.outage(1_000_000);
    let t = t.restarted().await;
    assert_rejected!(t.beat(&claim).await, Rejection::ClaimLost);
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Interrupted);
}

async fn a_frozen_process_credits_its_gap_before_any_other_command(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    // As after SIGSTOP and SIGCONT: no restart, and a heartbeat comes before the next sweep.
    t.outage(300_000);
    t.beat(&claim).await.unwrap();
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
}

/// A busy machine's sweep may come late while commands go through. What was made ready in between is
/// ready, not put off by the time that is credited.
async fn a_run_that_waits_stays_claimable_through_a_late_sweep(t: TestControl) {
    let session = t.session().await;
    t.outage(9_000);
    let admitted = t.prompt(session).await;
    t.outage(9_000);
    let claim = t.try_claim("e1").await.unwrap();
    assert_eq!(claim.run_id(), admitted.run_id);
}

async fn a_run_that_waits_is_claimable_after_a_reboot(t: TestControl) {
    t.pass(600_000).await;
    let session = t.session().await;
    let admitted = t.prompt(session).await;
    t.pass(20_000).await;
    // The new boot's clock is far behind the old one's.
    t.store.clock.reboot(1_000);
    let t = t.restarted().await;
    let claim = t.try_claim("e1").await.unwrap();
    assert_eq!(claim.run_id(), admitted.run_id);
}

async fn a_lease_that_had_ended_before_a_reboot_stays_ended(t: TestControl) {
    t.pass(600_000).await;
    let (session, claim) = t.running("e1").await;
    let idle = t.session().await;
    t.pass(130_000).await;
    t.store.clock.reboot(1_000);
    let store = t.store.reopened(t.control).await;
    let t = TestControl::owned_by(store, "server:other").await;
    // Neither the dead executor nor the old owner comes to life again.
    assert_rejected!(t.beat(&claim).await, Rejection::RunSettled { .. });
    t.prompt(idle).await;
    t.prompt(session).await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Interrupted);
}

async fn a_reboot_carries_leases_to_the_new_clock(t: TestControl) {
    let (_, claim) = t.running("e1").await;
    t.pass(20_000).await;
    t.store.clock.reboot(1_000);
    let t = t.restarted().await;
    t.sweep().await;
    t.pass(35_000).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Running);
    t.beat(&claim).await.unwrap();
    t.pass(65_000).await;
    t.sweep().await;
    assert_eq!(t.run(claim.run_id()).await.status, RunStatus::Interrupted);
}

async fn a_live_claim_keeps_its_session_owned(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let expires = |view: tapedeck_store::SessionView| view.head.owner.unwrap().expires_at.unwrap();
    let lease_end = t.store.clock.lease() + 60_000;
    assert!(expires(t.view(session).await).0 >= lease_end);
    // The sweep renews heads with an active run, whoever sends nothing.
    t.pass(40_000).await;
    t.beat(&claim).await.unwrap();
    t.pass(40_000).await;
    t.sweep().await;
    assert!(expires(t.view(session).await).0 >= t.store.clock.lease() + 60_000);
}
