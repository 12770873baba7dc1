//! Artifacts of runs: once under their name, found by their session, put aside and deleted with
//! their runs.

use tapedeck_control_plane::commands::save_artifacts::SaveArtifacts;
use tapedeck_control_plane::{Error, Outcome, Target};
use tapedeck_domain::artifact::Artifact;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::{Rejection, RunId, SessionId};

use crate::control::{Claim, NAMESPACE, TestControl};
use crate::restore::checkpoint;
use crate::write_paths::cases::artifact;

const NAME: &str = "run.patch";

async fn save(t: &TestControl, claim: &Claim, content: &str) -> Outcome<()> {
    let command = SaveArtifacts {
        proof: claim.proof.clone(),
        artifacts: vec![artifact(NAME, content)],
    };
    t.control.save_artifacts(command).await
}

async fn find(t: &TestControl, session: SessionId, run: Option<RunId>) -> Outcome<Artifact> {
    t.control.changes(NAMESPACE, session, run, NAME).await
}

async fn content(t: &TestControl, session: SessionId, run: Option<RunId>) -> String {
    find(t, session, run).await.unwrap().sent.content
}

fn is_missing(found: &Outcome<Artifact>, target: Target) -> bool {
    matches!(found, Err(Error::NotFound(missing)) if *missing == target)
}

async fn an_artifact_is_stored_once_under_its_name(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    assert!(is_missing(&find(&t, session, None).await, Target::Changes));
    save(&t, &claim, "patch").await.unwrap();
    save(&t, &claim, "patch").await.unwrap();
    let other = save(&t, &claim, "another").await;
    assert_rejected!(other, Rejection::ArtifactConflict { .. });
    let found = find(&t, session, Some(claim.run_id())).await.unwrap();
    assert_eq!((found.run_id, found.attempt), (claim.run_id(), 1));
    assert_eq!(found.sent, artifact(NAME, "patch"));
    // The run can't be released any more, and what is settled takes nothing new.
    t.complete(&claim).await;
    let late = save(&t, &claim, "patch").await;
    assert_rejected!(late, Rejection::RunSettled { .. });
}

async fn what_a_later_attempt_sends_replaces_the_earlier(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(2);
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let first = t.claim("e1").await;
    t.beat(&first).await.unwrap();
    save(&t, &first, "first").await.unwrap();
    t.pass(61_000).await;
    t.sweep().await;
    let second = t.claim("e2").await;
    t.beat(&second).await.unwrap();
    let lost = save(&t, &first, "late").await;
    assert_rejected!(lost, Rejection::ClaimLost);
    assert_eq!(content(&t, session, None).await, "first");
    save(&t, &second, "second").await.unwrap();
    assert_eq!(content(&t, session, None).await, "second");
}

async fn the_newest_is_found_until_a_restore_puts_its_run_aside(t: TestControl) {
    let (session, first) = t.running("e1").await;
    save(&t, &first, "one").await.unwrap();
    t.complete(&first).await;
    let kept = checkpoint(&t, session, "kept").await.checkpoint_id;
    t.prompt(session).await;
    let second = t.claim("e1").await;
    t.beat(&second).await.unwrap();
    save(&t, &second, "two").await.unwrap();
    t.complete(&second).await;
    // A run that told of nothing is passed over.
    t.prompt(session).await;
    let third = t.claim("e1").await;
    t.complete(&third).await;
    assert_eq!(content(&t, session, None).await, "two");
    assert_eq!(content(&t, session, Some(first.run_id())).await, "one");
    let nothing = find(&t, session, Some(third.run_id())).await;
    assert!(is_missing(&nothing, Target::Changes));
    let restored = t.control.restore_session(NAMESPACE, session, kept, None);
    restored.await.unwrap();
    assert_eq!(content(&t, session, None).await, "one");
    // What is put aside is still there for who asks for it.
    assert_eq!(content(&t, session, Some(second.run_id())).await, "two");
}

async fn artifacts_belong_to_their_session_and_go_with_it(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    save(&t, &claim, "patch").await.unwrap();
    t.complete(&claim).await;
    let other = t.session().await;
    let run = Some(claim.run_id());
    assert!(is_missing(&find(&t, other, run).await, Target::Run));
    assert!(is_missing(&find(&t, other, None).await, Target::Changes));
    let elsewhere = t.control.changes("elsewhere", session, run, NAME).await;
    assert!(is_missing(&elsewhere, Target::Session));
    let delete = t.control.delete_session(NAMESPACE, session, false);
    delete.await.unwrap();
    assert!(is_missing(&find(&t, session, run).await, Target::Session));
    let counts = t.store.row_counts().await;
    assert!(
        counts
            .iter()
            .all(|(table, count)| table != "artifacts" || *count == 0)
    );
}

on_every_store!(
    an_artifact_is_stored_once_under_its_name,
    what_a_later_attempt_sends_replaces_the_earlier,
    the_newest_is_found_until_a_restore_puts_its_run_aside,
    artifacts_belong_to_their_session_and_go_with_it,
);
