//! What the random walks found to be stuck, each as a case of its own (fault 7).

use tapedeck_domain::run::RunStatus;

use crate::control::TestControl;

on_every_store! {
    the_sweep_settles_what_waits_under_an_owner_that_is_gone,
    runs_of_owners_that_are_gone_keep_no_other_from_being_claimed,
}

async fn the_sweep_settles_what_waits_under_an_owner_that_is_gone(t: TestControl) {
    let gone = TestControl::owned_by(t.store.shared(), "server:gone").await;
    let session = gone.session().await;
    let waiting = gone.prompt(session).await;
    // Nobody has claimed it, so no claim's end will ever bring it to the sweep's notice.
    t.sweep().await;
    assert_eq!(t.run(waiting.run_id).await.status, RunStatus::Requested);
    t.pass(61_000).await;
    let swept = t.sweep().await;
    assert_eq!((swept.claims, swept.failed), (1, 0));
    let run = t.run(waiting.run_id).await;
    assert_eq!(run.status, RunStatus::Interrupted);
    assert_eq!(run.recovery.unwrap().reason, "owner_takeover");
    assert_eq!(t.sweep().await.claims, 0);
    t.prompt(session).await;
}

async fn runs_of_owners_that_are_gone_keep_no_other_from_being_claimed(t: TestControl) {
    let gone = TestControl::owned_by(t.store.shared(), "server:gone").await;
    // More than a claim looks at.
    for _ in 0..20 {
        let session = gone.session().await;
        gone.prompt(session).await;
    }
    let session = t.session().await;
    let waiting = t.prompt(session).await;
    t.pass(61_000).await;
    t.sweep().await;
    assert_eq!(t.claim("e1").await.run_id(), waiting.run_id);
}
