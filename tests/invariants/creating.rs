//! Idempotency keys on every write that creates something: one key is one effect and one answer,
//! however often and through however many processes it is sent (faults 9, 16; rules R17).

use std::sync::Arc;

use tapedeck_control_plane::commands::fork_session::ForkPoint;
use tapedeck_control_plane::{Outcome, ResumeRequest};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::{CheckpointId, Rejection, SessionId};

use crate::control::{NAMESPACE, TestControl, key};
use crate::stores::Kind;
use crate::write_paths::{assert_unchanged, cases};

on_every_store! {
    one_key_sent_many_times_at_once_has_one_effect_and_one_answer,
    one_key_sent_again_and_again_changes_nothing_more,
    another_body_under_any_key_is_refused_and_changes_nothing,
    a_key_comes_before_owner_and_state,
    a_send_whose_sender_is_gone_is_answered_when_it_comes_again,
    keys_of_other_principals_operations_and_namespaces_are_others,
}

/// What creates something.
#[derive(Debug, Clone, Copy)]
enum Creating {
    Session,
    Prompt,
    Resume,
    Checkpoint,
    Restore,
    Fork,
}

const ALL: [Creating; 6] = [
    Creating::Session,
    Creating::Prompt,
    Creating::Resume,
    Creating::Checkpoint,
    Creating::Restore,
    Creating::Fork,
];

/// A session in which each of them is allowed.
#[derive(Debug, Clone, Copy)]
struct Scene {
    session: SessionId,
    checkpoint: CheckpointId,
}

async fn scene(t: &TestControl) -> Scene {
    let (session, checkpoint, _) = cases::settled(t).await;
    Scene {
        session,
        checkpoint,
    }
}

/// Sends it; gives the answer as a text.
async fn send(
    t: &TestControl,
    what: Creating,
    scene: Scene,
    key: IdempotencyKey,
) -> Outcome<String> {
    let (control, session, key) = (&t.control, scene.session, Some(key));
    Ok(match what {
        Creating::Session => {
            let settings = SessionSettings::default();
            let created = control.create_session(NAMESPACE, settings, key).await?;
            created.session.session_id.to_string()
        }
        Creating::Prompt => {
            let command = t.prompt_command(session, "do it", OnActive::Enqueue, key);
            format!("{:?}", control.prompt(command).await?)
        }
        Creating::Resume => {
            let request = ResumeRequest {
                reason: "user_resume".to_owned(),
                key,
                ..ResumeRequest::default()
            };
            format!("{:?}", control.resume(NAMESPACE, session, request).await?)
        }
        Creating::Checkpoint => {
            let label = Some("here".to_owned());
            let captured = control
                .capture_checkpoint(NAMESPACE, session, label, key)
                .await?;
            captured.checkpoint_id.to_string()
        }
        Creating::Restore => {
            let id = scene.checkpoint;
            let restored = control.restore_session(NAMESPACE, session, id, key).await?;
            restored.head.projection_epoch.to_string()
        }
        Creating::Fork => {
            let forked = control.fork_session(NAMESPACE, session, ForkPoint::Head, None, key);
            forked.await?.session.session_id.to_string()
        }
    })
}

fn of(what: Creating, key_text: &str, body: &str) -> IdempotencyKey {
    key(&format!("{what:?}"), key_text, body)
}

/// How often it has had its effect in the whole database.
async fn effects(t: &TestControl, what: Creating) -> i64 {
    let counted = match what {
        Creating::Session | Creating::Fork => "sessions",
        Creating::Prompt | Creating::Resume => "runs",
        Creating::Checkpoint => "checkpoints",
        Creating::Restore => "events WHERE kind = 'SessionRestored'",
    };
    let count = format!("SELECT count(*) FROM {counted}");
    t.store.values::<i64>(&count).await[0]
}

/// The database, with a tape that no later command has to move first.
async fn caught_up(t: &TestControl, scene: Scene) -> Vec<String> {
    t.control
        .catch_up_tape(NAMESPACE, scene.session)
        .await
        .unwrap();
    t.store.dump().await
}

/// A second control plane: another instance where there may be one.
async fn second(t: &TestControl) -> TestControl {
    let store = match t.store.kind {
        Kind::Sqlite => t.store.shared(),
        Kind::Postgres | Kind::PostgresWithoutHints => t.store.another_instance().await,
    };
    TestControl::over(store).await
}

async fn one_key_sent_many_times_at_once_has_one_effect_and_one_answer(t: TestControl) {
    let instances = [Arc::new(second(&t).await), Arc::new(t)];
    let t = &instances[1];
    for what in ALL {
        let scene = scene(t).await;
        let before = effects(t, what).await;
        let mut sends = tokio::task::JoinSet::new();
        for n in 0..12 {
            let t = Arc::clone(&instances[n % 2]);
            sends.spawn(async move { send(&t, what, scene, of(what, "k", "b")).await.unwrap() });
        }
        let answers = sends.join_all().await;
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{what:?}: {answers:?}"
        );
        assert_eq!(effects(t, what).await, before + 1, "{what:?}");
        t.control
            .delete_session(NAMESPACE, scene.session, true)
            .await
            .unwrap();
    }
}

async fn one_key_sent_again_and_again_changes_nothing_more(mut t: TestControl) {
    for what in ALL {
        let scene = scene(&t).await;
        let first = send(&t, what, scene, of(what, "k", "b")).await.unwrap();
        let after = caught_up(&t, scene).await;
        for _ in 0..3 {
            assert_eq!(
                send(&t, what, scene, of(what, "k", "b")).await.unwrap(),
                first
            );
        }
        assert_unchanged(&after, &t.store.dump().await, &format!("{what:?} again"));
        t = t.restarted().await;
        assert_eq!(
            send(&t, what, scene, of(what, "k", "b")).await.unwrap(),
            first
        );
        assert_unchanged(
            &after,
            &t.store.dump().await,
            &format!("{what:?} after a restart"),
        );
        t.control
            .delete_session(NAMESPACE, scene.session, true)
            .await
            .unwrap();
    }
}

async fn another_body_under_any_key_is_refused_and_changes_nothing(t: TestControl) {
    let other = second(&t).await;
    for what in ALL {
        let scene = scene(&t).await;
        send(&t, what, scene, of(what, "k", "b")).await.unwrap();
        let after = caught_up(&t, scene).await;
        for t in [&t, &other] {
            assert_rejected!(
                send(t, what, scene, of(what, "k", "another body")).await,
                Rejection::IdempotencyConflict
            );
        }
        assert_unchanged(
            &after,
            &t.store.dump().await,
            &format!("{what:?}, another body"),
        );
        t.control
            .delete_session(NAMESPACE, scene.session, true)
            .await
            .unwrap();
    }
}

async fn a_key_comes_before_owner_and_state(t: TestControl) {
    // The same key is answered the same where the command itself would be refused: another owner
    // holds the session, a run is active, the session is closed.
    let elsewhere = TestControl::owned_by(t.store.shared(), "server:other").await;
    for what in ALL {
        let scene = scene(&t).await;
        let first = send(&t, what, scene, of(what, "k", "b")).await.unwrap();
        let refused = send(&elsewhere, what, scene, of(what, "new", "b")).await;
        match what {
            Creating::Session => drop(refused.unwrap()),
            _ => assert_rejected!(refused, Rejection::OwnedElsewhere { .. }),
        }
        let again = send(&elsewhere, what, scene, of(what, "k", "b")).await;
        assert_eq!(again.unwrap(), first, "{what:?} by another owner");
        let _active = t.try_prompt(scene.session, OnActive::Reject).await;
        let again = send(&t, what, scene, of(what, "k", "b")).await;
        assert_eq!(again.unwrap(), first, "{what:?} with a run");
        t.control
            .cancel_session(NAMESPACE, scene.session, "client")
            .await
            .unwrap();
        t.control
            .close_session(NAMESPACE, scene.session)
            .await
            .unwrap();
        let again = send(&t, what, scene, of(what, "k", "b")).await;
        assert_eq!(again.unwrap(), first, "{what:?} of a closed session");
        t.control
            .delete_session(NAMESPACE, scene.session, true)
            .await
            .unwrap();
    }
}

async fn a_send_whose_sender_is_gone_is_answered_when_it_comes_again(t: TestControl) {
    for what in ALL {
        let scene = scene(&t).await;
        let before = effects(&t, what).await;
        // Dropped after so many looks at it: before it began, on its way, or after its commit.
        for looks in 0..8 {
            let mut sending = Box::pin(send(&t, what, scene, of(what, "k", "b")));
            for _ in 0..looks {
                let _pending = futures::poll!(&mut sending);
                tokio::task::yield_now().await;
            }
        }
        let first = send(&t, what, scene, of(what, "k", "b")).await.unwrap();
        assert_eq!(
            send(&t, what, scene, of(what, "k", "b")).await.unwrap(),
            first
        );
        assert_eq!(effects(&t, what).await, before + 1, "{what:?}");
        t.control
            .delete_session(NAMESPACE, scene.session, true)
            .await
            .unwrap();
    }
}

async fn keys_of_other_principals_operations_and_namespaces_are_others(t: TestControl) {
    let base = of(Creating::Session, "k", "b");
    let mut keys = vec![base.clone(); 5];
    "client:other".clone_into(&mut keys[1].principal);
    "elsewhere".clone_into(&mut keys[2].namespace);
    "other".clone_into(&mut keys[3].operation);
    "other".clone_into(&mut keys[4].key);
    let scene = scene(&t).await;
    let mut answers = Vec::new();
    for key in keys {
        answers.push(send(&t, Creating::Session, scene, key).await.unwrap());
    }
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 5);
}
