use serde_json::json;

use super::*;
use crate::fixture::{RUN, after, at, run_id, session};

fn prompt(on_active: OnActive) -> Prompt {
    let mut metadata = Map::new();
    metadata.insert("ticket".to_owned(), json!(42));
    Prompt {
        run_id: run_id(2),
        text: "Go on".to_owned(),
        on_active,
        metadata,
    }
}

fn busy(queued_runs: u32) -> Session {
    let mut session = session();
    session.summary.active_run_id = Some(RUN);
    session.summary.last_run_id = Some(RUN);
    session.summary.last_run_status = Some(RunStatus::Running);
    session.summary.queued_runs = queued_runs;
    session
}

fn places(first: i64, last: i64) -> QueuePlaces {
    QueuePlaces {
        first: Some(first),
        last: Some(last),
    }
}

#[test]
fn a_prompt_runs_at_once_where_nothing_is_active() {
    for on_active in OnActive::ALL.iter().copied() {
        let mut session = session();
        let admitted = admit(
            &mut session,
            QueuePlaces::default(),
            prompt(on_active),
            9,
            after(5),
        )
        .unwrap();
        let expected = NewRun {
            run_id: run_id(2),
            parent_run_id: None,
            prompt: "Go on".to_owned(),
            metadata: prompt(on_active).metadata,
            resume_context: None,
            status: RunStatus::Requested,
            admitted_seq: 9,
            requested_at: after(5).wall,
        };
        assert_eq!(admitted.run, expected);
        assert_eq!(admitted.live.state, RunState::Requested { ready_at: at(5) });
        assert_eq!(
            (admitted.event.kind.as_str(), admitted.cancel_active),
            ("RunRequested", false)
        );
        let payload = json!({"status": "requested", "prompt": "Go on"});
        assert_eq!(admitted.event.payload.value(), payload);
        assert_eq!(session.summary.active_run_id, Some(run_id(2)));
        assert_eq!(session.summary.last_run_id, Some(run_id(2)));
        assert_eq!(session.summary.last_run_status, Some(RunStatus::Requested));
        assert_eq!(session.summary.queued_runs, 0);
    }
}

#[test]
fn reject_names_the_active_run_and_changes_nothing() {
    let mut session = busy(0);
    let refused = admit(
        &mut session,
        QueuePlaces::default(),
        prompt(OnActive::Reject),
        9,
        after(0),
    );
    assert_eq!(refused, Err(Rejection::SessionBusy { active_run_id: RUN }));
    assert_eq!(session, busy(0));
}

#[test]
fn enqueue_waits_at_the_end_and_interrupt_at_the_front() {
    // (what, places held, the new one, whether the active run is cancelled)
    for (on_active, held, place, cancels) in [
        (OnActive::Enqueue, QueuePlaces::default(), 0, false),
        (OnActive::Enqueue, places(3, 3), 4, false),
        (OnActive::Enqueue, places(-2, 7), 8, false),
        (OnActive::Interrupt, QueuePlaces::default(), 0, true),
        (OnActive::Interrupt, places(3, 3), 2, true),
        (OnActive::Interrupt, places(-2, 7), -3, true),
    ] {
        let mut session = busy(2);
        let admitted = admit(&mut session, held, prompt(on_active), 9, after(0)).unwrap();
        assert_eq!(admitted.live.place, place, "{on_active} {held:?}");
        assert_eq!(admitted.cancel_active, cancels, "{on_active}");
        assert_eq!(admitted.live.state, RunState::Queued);
        assert_eq!(admitted.run.status, RunStatus::Queued);
        assert_eq!(admitted.event.kind, "RunQueued");
        assert_eq!(admitted.event.payload.value()["status"], json!("queued"));
        let mut expected = busy(3);
        expected.summary.active_run_id = Some(RUN);
        assert_eq!(session, expected, "the active run stays the session's own");
    }
}

#[test]
fn a_full_queue_refuses_whoever_would_have_to_wait() {
    for on_active in [OnActive::Enqueue, OnActive::Interrupt] {
        let mut full = busy(limits::QUEUED_RUNS);
        let refused = admit(&mut full, places(0, 99), prompt(on_active), 9, after(0));
        assert_eq!(
            refused,
            Err(Rejection::QueueFull {
                limit: limits::QUEUED_RUNS
            })
        );
        assert_eq!(full, busy(limits::QUEUED_RUNS));
        let mut nearly = busy(limits::QUEUED_RUNS - 1);
        assert!(admit(&mut nearly, places(0, 98), prompt(on_active), 9, after(0)).is_ok());
    }
}

#[test]
fn a_closed_session_takes_no_prompt_under_any_policy() {
    for on_active in OnActive::ALL.iter().copied() {
        for mut closed in [session(), busy(0)] {
            closed.closed_at = Some(after(0).wall);
            let refused = admit(
                &mut closed,
                QueuePlaces::default(),
                prompt(on_active),
                9,
                after(1),
            );
            assert_eq!(refused, Err(Rejection::SessionClosed), "{on_active}");
        }
    }
}

#[test]
fn a_prompt_goes_before_a_held_queue_and_ends_the_hold() {
    let mut session = session();
    session.summary.queued_runs = 2;
    session.summary.queue_held = true;
    let admitted = admit(
        &mut session,
        places(0, 1),
        prompt(OnActive::Enqueue),
        9,
        after(0),
    )
    .unwrap();
    assert_eq!(admitted.run.status, RunStatus::Requested);
    assert_eq!(
        (session.summary.queued_runs, session.summary.queue_held),
        (2, false)
    );
}

#[test]
fn attempts_come_from_the_run_target_and_are_at_least_one() {
    for (asked, given) in [(None, 1), (Some(0), 1), (Some(1), 1), (Some(4), 4)] {
        let mut session = session();
        session.settings.run_target.constraints.max_attempts = asked;
        let admitted = admit(
            &mut session,
            QueuePlaces::default(),
            prompt(OnActive::Reject),
            9,
            after(0),
        );
        assert_eq!(
            admitted.unwrap().live.attempts,
            Attempts::new(given),
            "{asked:?}"
        );
    }
}

#[test]
fn a_prompt_has_text_of_bounded_size_without_nul() {
    let longest = "a".repeat(limits::PROMPT_BYTES);
    for good in ["x", " x ", longest.as_str(), "ä\n😀"] {
        assert_eq!(check_text(good), Ok(()));
    }
    let too_long = "a".repeat(limits::PROMPT_BYTES + 1);
    let too_long_in_bytes = "ä".repeat(limits::PROMPT_BYTES / 2 + 1);
    for bad in [
        "",
        " \n\t ",
        "a\0b",
        too_long.as_str(),
        too_long_in_bytes.as_str(),
    ] {
        let Err(Rejection::Invalid(errors)) = check_text(bad) else {
            panic!("{} passed", bad.len())
        };
        assert_eq!(errors[0].path, "prompt");
    }
}
