//! Every command of the one list under every wrong authority that there is (I6, I7, I8, I21; design
//! §4.8; docs/write-paths.md): the exact refusal, and not one row of the database differs. A command
//! that is new in the list fails here until it has its case and its row.

pub(crate) mod cases;

use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::claim_run::ClaimRun;
use tapedeck_control_plane::commands::expire_claim::ExpireClaim;
use tapedeck_control_plane::commands::expire_interaction::ExpireInteraction;
use tapedeck_control_plane::commands::fork_session::ForkPoint;

use tapedeck_control_plane::commands::resolve_interaction::QuestionTarget;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_control_plane::commands::{ALL, Any};
use tapedeck_control_plane::{Error, Outcome};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::claim::ClaimToken;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::tape::upload::EntryBatch;
use tapedeck_domain::{CheckpointId, Rejection, RunId, SessionId, TapeEntryId, TapeId};

use crate::control::{NAMESPACE, TestControl, claim_request};
use cases::{CLAIM_WRITES, Case, case, claim_write, new_ids};

on_every_store! {
    every_command_of_the_list_works_under_its_own_authority,
    stale_epoch_cannot_write,
    expired_lease_cannot_write,
    another_live_owner_cannot_write,
    owner_of_a_cannot_write_b,
    no_write_moves_a_row_to_another_session,
    another_namespace_cannot_write,
    a_settled_run_takes_no_write,
    a_claim_that_is_not_the_live_one_cannot_write,
}

/// What a command is told where one thing about its authority is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// It remembers an epoch that is over.
    StaleEpoch,
    /// It remembers the epoch whose lease has ended.
    ExpiredLease,
    /// Another owner's lease is live.
    OtherOwner,
}

/// The refusal; `ok` where the command may run but changes nothing, `None` where this is not wrong.
fn refusal(name: &str, wrong: Wrong) -> Option<&'static str> {
    use Wrong::{ExpiredLease, OtherOwner, StaleEpoch};
    match name {
        // There is no session yet that somebody could own; and nothing of a session is written:
        // docs/write-paths.md says what is, and why.
        "CreateSession" | "CreateToken" | "DrainExecutor" | "ForgetExecutor" | "LeaveExecutor"
        | "ListExpired" | "ListFoldable" | "MarkAlive" | "RecordContact" | "RevokeToken" => {
            return None;
        }
        // What needs that nobody is there, or gives back what has ended anyway.
        "FoldRun" | "ProjectTape" | "ReleaseOwner" | "RepairSession" if wrong == ExpiredLease => {
            return None;
        }
        // Only heads of this owner's name, which no epoch can be wrong for (rules R4).
        "FlagUnservable" | "KeepHouse" if wrong != OtherOwner => return None,
        _ => {}
    }
    Some(match (name, wrong) {
        // House-keeping leaves what is not its own alone.
        ("FlagUnservable" | "FoldRun" | "KeepHouse", _) => "ok",
        // What another owner holds is not even offered.
        ("ClaimRun", OtherOwner) => "NoRunAvailable",
        ("ProjectTape" | "RepairSession", _) => "OwnedElsewhere",
        ("RenewOwner" | "ReleaseOwner", OtherOwner) | (_, StaleEpoch) => "StaleEpoch",
        (_, ExpiredLease) => "OwnerLeaseExpired",
        (_, OtherOwner) => "OwnedElsewhere",
    })
}

/// An outcome in a word.
fn told(outcome: &Outcome<()>) -> String {
    let whole = match outcome {
        Ok(()) => "ok".to_owned(),
        Err(Error::Rejected(rejection)) => format!("{rejection:?}"),
        Err(Error::Store(_)) => "store".to_owned(),
        Err(error) => return format!("{error:?}"),
    };
    let word = whole.split(|c: char| !c.is_alphanumeric()).next();
    word.unwrap_or_default().to_owned()
}

/// Runs a command that must be refused so, and proves that not one row differs.
async fn refused(t: &TestControl, what: &str, command: Any, expected: &str) {
    let before = t.store.dump().await;
    let outcome = t.control.run_alone(command).await;
    assert_eq!(told(&outcome), expected, "{what}: {outcome:?}");
    assert_unchanged(&before, &t.store.dump().await, what);
}

#[track_caller]
pub(crate) fn assert_unchanged(before: &[String], after: &[String], what: &str) {
    let lost: Vec<_> = before.iter().filter(|row| !after.contains(row)).collect();
    let new: Vec<_> = after.iter().filter(|row| !before.contains(row)).collect();
    assert!(
        before == after,
        "{what} changed rows\nbefore: {lost:#?}\nafter: {new:#?}"
    );
}

/// Ends a case, so that nothing of it is in the next one's way.
async fn end(t: &TestControl, case: &Case) {
    let gone = t
        .control
        .delete_session(NAMESPACE, case.session, true)
        .await;
    assert!(matches!(gone, Ok(()) | Err(Error::NotFound(_))), "{gone:?}");
}

async fn owner_of(t: &TestControl, session: SessionId) -> String {
    t.view(session).await.head.owner.unwrap().owner_id
}

async fn every_command_of_the_list_works_under_its_own_authority(t: TestControl) {
    // Else a refusal would prove nothing: the cases are such that each command is allowed and writes.
    for name in ALL {
        let case = case(&t, name).await;
        // Even where only a lease is written, it is a later one.
        t.pass(1_000).await;
        if *name == "RepairSession" {
            t.control
                .release_owner(NAMESPACE, case.session)
                .await
                .unwrap();
        }
        let before = t.store.dump().await;
        assert_eq!(case.command().name(), *name);
        t.control.run_alone(case.command()).await.unwrap();
        let changed = t.store.dump().await != before;
        let reads = [
            "CheckClaim",
            "KeepHouse",
            "ListExpired",
            "ListFoldable",
            "MarkAlive",
        ];
        assert_eq!(changed, !reads.contains(name), "`{name}` writes");
        end(&t, &case).await;
    }
}

async fn stale_epoch_cannot_write(t: TestControl) {
    for name in ALL {
        let Some(expected) = refusal(name, Wrong::StaleEpoch) else {
            continue;
        };
        let case = case(&t, name).await;
        // Somebody released and acquired meanwhile; whoever remembers the first epoch is stale.
        t.control
            .release_owner(NAMESPACE, case.session)
            .await
            .unwrap();
        t.control
            .acquire_owner(NAMESPACE, case.session)
            .await
            .unwrap();
        let owner_id = owner_of(&t, case.session).await;
        let stale = TestControl::at_epoch(t.store.shared(), &owner_id, Some(1)).await;
        refused(&stale, name, case.command(), expected).await;
        // One that is ahead is none of this session's either.
        let ahead = TestControl::at_epoch(t.store.shared(), &owner_id, Some(3)).await;
        refused(&ahead, name, case.command(), expected).await;
        let present = TestControl::at_epoch(t.store.shared(), &owner_id, Some(2)).await;
        if *name != "RepairSession" {
            present.control.run_alone(case.command()).await.unwrap();
        }
        end(&t, &case).await;
    }
}

async fn expired_lease_cannot_write(t: TestControl) {
    for name in ALL {
        let Some(expected) = refusal(name, Wrong::ExpiredLease) else {
            continue;
        };
        let case = case(&t, name).await;
        t.pass(61_000).await;
        let owner_id = owner_of(&t, case.session).await;
        let late = TestControl::at_epoch(t.store.shared(), &owner_id, Some(1)).await;
        refused(&late, name, case.command(), expected).await;
        end(&t, &case).await;
    }
}

async fn another_live_owner_cannot_write(t: TestControl) {
    for name in ALL {
        let Some(expected) = refusal(name, Wrong::OtherOwner) else {
            continue;
        };
        let case = case(&t, name).await;
        let other = TestControl::owned_by(t.store.shared(), "server:other").await;
        refused(&other, name, case.command(), expected).await;
        if expected == "OwnedElsewhere" {
            let owner = t.view(case.session).await.head.owner.unwrap();
            let lease_ends = t
                .control
                .now()
                .await
                .unwrap()
                .wall_of(owner.expires_at.unwrap());
            assert_rejected!(
                other.control.run_alone(case.command()).await,
                Rejection::OwnedElsewhere { ref owner_id, until }
                    if *owner_id == owner.owner_id && until == lease_ends
            );
        }
        end(&t, &case).await;
    }
}

async fn owner_of_a_cannot_write_b(t: TestControl) {
    // The owner of A has a live lease, a run and a claim of its own, and sends commands for B.
    let other = TestControl::owned_by(t.store.shared(), "server:other").await;
    let (_a, claim_a) = other.running("other").await;
    for name in ALL {
        let Some(expected) = refusal(name, Wrong::OtherOwner) else {
            continue;
        };
        if *name == "KeepHouse" {
            // It keeps A's house.
            continue;
        }
        let case = case(&t, name).await;
        refused(&other, name, case.command(), expected).await;
        end(&t, &case).await;
    }
    // Its claim on A's run proves nothing for B's, whoever owns B.
    let (_b, claim_b) = t.running("e1").await;
    let mut proof = claim_a.proof.clone();
    proof.run_id = claim_b.run_id();
    for name in CLAIM_WRITES {
        let write = || claim_write(name, proof.clone(), new_ids(&t));
        refused(&other, name, write(), "OwnedElsewhere").await;
        refused(&t, name, write(), "ClaimTokenInvalid").await;
    }
}

#[expect(clippy::too_many_lines, reason = "a table of what is wrong")]
async fn no_write_moves_a_row_to_another_session(t: TestControl) {
    // One owner has both sessions, so that only the target is wrong.
    let (busy, claim) = t.running("e1").await;
    let (other_busy, other) = t.running("e2").await;
    let (idle, _, _) = cases::settled(&t).await;
    let (other_idle, other_checkpoint, other_settled) = cases::settled(&t).await;
    let asked = t.ask(&other, "theirs").await.unwrap().interaction_id;
    let entry_id = TapeEntryId::new(t.control.new_id());
    let theirs = cases::append_tape(other.proof.clone(), vec![cases::entry(entry_id, "theirs")]);
    t.control.append_tape(theirs).await.unwrap();
    let fresh = || t.control.new_id();

    for name in CLAIM_WRITES {
        let mut proof = claim.proof.clone();
        proof.run_id = other.run_id();
        let write = claim_write(name, proof, new_ids(&t));
        refused(&t, name, write, "ClaimTokenInvalid").await;
        // The right token by another executor is as wrong.
        let mut proof = claim.proof.clone();
        "e2".clone_into(&mut proof.executor_id);
        let write = claim_write(name, proof, new_ids(&t));
        refused(&t, name, write, "ClaimTokenInvalid").await;
    }
    let moved = |text| vec![cases::entry(entry_id, text)];
    let batch = |text| EntryBatch::check(claim.run_id(), moved(text)).unwrap();
    let tape_id = t.view(other_busy).await.session.tape_id;
    let new = || (SessionId::new(fresh()), TapeId::new(fresh()));
    let of_theirs = QuestionTarget::Interaction {
        session_id: busy,
        interaction_id: asked,
    };
    let by_request = QuestionTarget::Request {
        session_id: busy,
        request_id: "theirs".to_owned(),
    };
    let rule = t
        .control
        .create_rule(
            NAMESPACE,
            Some(other_busy),
            cases::any_shell(),
            "client:test",
            None,
        )
        .await
        .unwrap()
        .rule_id;
    let prompt = |run_id| {
        let mut command = t.prompt_command(idle, "do it", OnActive::Reject, None);
        command.prompt.run_id = run_id;
        command
    };
    let wrong: Vec<(&str, Any, &str)> = vec![
        (
            "another entry under their id",
            cases::append_tape(claim.proof.clone(), moved("mine")).into(),
            "EntryIdConflict",
        ),
        (
            "their very entry",
            cases::append_tape(claim.proof.clone(), moved("theirs")).into(),
            "EntryIdConflict",
        ),
        (
            "a settle with their entry",
            cases::settle(claim.proof.clone(), Some(batch("theirs"))).into(),
            "EntryIdConflict",
        ),
        (
            "a settle on their tape",
            SettleRun {
                tape_id: Some(tape_id),
                ..cases::settle(claim.proof.clone(), None)
            }
            .into(),
            "Invalid",
        ),
        (
            "a cancel of their run",
            cases::cancel(NAMESPACE, busy, other.run_id()).into(),
            "NotFound(Run)",
        ),
        (
            "an answer to their question",
            cases::resolve(NAMESPACE, of_theirs).into(),
            "NotFound(Interaction)",
        ),
        (
            "an answer to their request",
            cases::resolve(NAMESPACE, by_request).into(),
            "NotFound(Interaction)",
        ),
        (
            "a revoke of their rule",
            cases::revoke(NAMESPACE, Some(busy), rule).into(),
            "NotFound(Rule)",
        ),
        (
            "a revoke of their rule as if it were the namespace's",
            cases::revoke(NAMESPACE, None, rule).into(),
            "NotFound(Rule)",
        ),
        (
            "a delete of their checkpoint",
            cases::delete_checkpoint(NAMESPACE, idle, other_checkpoint),
            "NotFound(Checkpoint)",
        ),
        (
            "a restore of their checkpoint",
            cases::restore(NAMESPACE, idle, other_checkpoint),
            "NotFound(Checkpoint)",
        ),
        (
            "a fork from their checkpoint",
            cases::fork(
                NAMESPACE,
                idle,
                ForkPoint::Checkpoint(other_checkpoint),
                new(),
            ),
            "NotFound(Checkpoint)",
        ),
        // An id that is taken is never taken over.
        (
            "a session under their id",
            cases::create(NAMESPACE, other_idle, TapeId::new(fresh())).into(),
            "store",
        ),
        (
            "a fork under their id",
            cases::fork(
                NAMESPACE,
                idle,
                ForkPoint::Head,
                (other_idle, TapeId::new(fresh())),
            ),
            "store",
        ),
        (
            "a run under their id",
            prompt(other_settled.run_id()).into(),
            "store",
        ),
        (
            "a resume under their run's id",
            cases::resume(
                NAMESPACE,
                idle,
                other_settled.run_id(),
                TapeEntryId::new(fresh()),
            ),
            "store",
        ),
        (
            "an anchor under their entry's id",
            cases::resume(NAMESPACE, idle, RunId::new(fresh()), entry_id),
            "store",
        ),
        (
            "a question under their id",
            cases::ask(claim.proof.clone(), asked, "mine").into(),
            "store",
        ),
        (
            "a checkpoint under their id",
            cases::capture(NAMESPACE, idle, other_checkpoint),
            "store",
        ),
    ];
    for (what, command, expected) in wrong {
        refused(&t, what, command, expected).await;
    }
    // The writer is none the worse for it.
    let checkpoint = cases::capture(NAMESPACE, idle, CheckpointId::new(fresh()));
    t.control.run_alone(checkpoint).await.unwrap();
    t.answer(asked, true).await.unwrap();
}

async fn another_namespace_cannot_write(t: TestControl) {
    let elsewhere = "elsewhere";
    let theirs = t
        .control
        .create_session(elsewhere, SessionSettings::default(), None)
        .await
        .unwrap();
    for name in ALL {
        // Those name their session by a run, a claim or nothing at all.
        let bound = [
            "ClaimRun",
            "CreateSession",
            "CreateToken",
            "DrainExecutor",
            "ExpireClaim",
            "ExpireInteraction",
            "FlagUnservable",
            "FoldRun",
            "ForgetExecutor",
            "KeepHouse",
            "LeaveExecutor",
            "ListExpired",
            "ListFoldable",
            "LoadContext",
            "MarkAlive",
            "RecordContact",
            "RevokeToken",
        ];
        if bound.contains(name) || CLAIM_WRITES.contains(name) {
            continue;
        }
        let case = case(&t, name).await;
        refused(&t, name, (case.make)(elsewhere), "NotFound(Session)").await;
        end(&t, &case).await;
    }
    t.control
        .session(elsewhere, theirs.session.session_id)
        .await
        .unwrap();
}

async fn a_settled_run_takes_no_write(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q").await.unwrap().interaction_id;
    t.say(&claim, "a", "x").await.unwrap();
    t.complete(&claim).await;
    // Every deadline of it is over, and its owner's lease as well.
    t.pass(4_000_000).await;
    for name in CLAIM_WRITES {
        let write = claim_write(name, claim.proof.clone(), new_ids(&t));
        refused(&t, name, write, "RunSettled").await;
    }
    let one_new = AppendEvents {
        proof: claim.proof.clone(),
        batch: vec![stored("a"), cases::said("new", "x")],
    };
    let only = ClaimRun {
        session_id: Some(session),
        ..claim_request("e1", "after the end")
    };
    let question = QuestionTarget::Interaction {
        session_id: session,
        interaction_id: asked,
    };
    let run_id = claim.run_id();
    let ended: Vec<(&str, Any, &str)> = vec![
        ("one new event", one_new.into(), "RunSettled"),
        ("a claim", only.into(), "NoRunAvailable"),
        (
            "a cancel",
            cases::cancel(NAMESPACE, session, run_id).into(),
            "ok",
        ),
        ("the sweep", ExpireClaim { run_id }.into(), "ok"),
        (
            "the sweep of questions",
            ExpireInteraction {
                interaction_id: asked,
            }
            .into(),
            "ok",
        ),
        (
            "an answer",
            cases::resolve(NAMESPACE, question).into(),
            "AlreadyResolved",
        ),
    ];
    for (what, command, expected) in ended {
        refused(&t, what, command, expected).await;
    }
    // What was stored before the end may come again (rules R11), and still changes nothing but a
    // lease.
    let again = AppendEvents {
        proof: claim.proof.clone(),
        batch: vec![stored("a")],
    };
    refused(&t, "the same event again", again.into(), "ok").await;
}

/// The event that [`TestControl::say`] has uploaded.
fn stored(id: &str) -> Uploaded {
    cases::said(id, "x")
}

async fn a_claim_that_is_not_the_live_one_cannot_write(t: TestControl) {
    let mut settings = SessionSettings::default();
    settings.run_target.constraints.max_attempts = Some(3);
    let session = t.session_with(settings).await;
    t.prompt(session).await;
    let first = t.claim("e1").await;
    t.beat(&first).await.unwrap();
    t.pass(61_000).await;
    // Its lease has ended, and no sweep has come yet.
    for name in CLAIM_WRITES {
        let write = claim_write(name, first.proof.clone(), new_ids(&t));
        refused(&t, name, write, "ClaimLost").await;
    }
    t.sweep().await;
    // Nobody holds it now.
    for name in CLAIM_WRITES {
        let write = claim_write(name, first.proof.clone(), new_ids(&t));
        refused(&t, name, write, "ClaimLost").await;
    }
    let second = t.claim("e1").await;
    t.beat(&second).await.unwrap();
    let mut foreign = second.proof.clone();
    let mut unknown_attempt = second.proof.clone();
    foreign.token = ClaimToken::derive("another request", second.run_id(), 2);
    unknown_attempt.token = ClaimToken::derive("another request", second.run_id(), 9);
    let mut garbage = second.proof.clone();
    garbage.token = ClaimToken::presented("no token".to_owned());
    for name in CLAIM_WRITES {
        for (proof, expected) in [
            (&first.proof, "ClaimLost"),
            (&foreign, "ClaimTokenInvalid"),
            (&unknown_attempt, "ClaimTokenInvalid"),
            (&garbage, "ClaimTokenInvalid"),
        ] {
            let write = claim_write(name, proof.clone(), new_ids(&t));
            refused(&t, name, write, expected).await;
        }
    }
    t.complete(&second).await;
    // After the end, too: the earlier attempt learns no more than that it has lost.
    for name in CLAIM_WRITES {
        let write = claim_write(name, first.proof.clone(), new_ids(&t));
        refused(&t, name, write, "ClaimLost").await;
    }
}
