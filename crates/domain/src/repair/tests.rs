use super::*;
use crate::fixture::{after, live, run_id, session};
use crate::id::RunKey;
use crate::owner::Authority;
use crate::run::RunStatus;
use crate::session::SessionStatus;

fn head() -> SessionHead {
    let authority = Authority {
        owner_id: "server:1".to_owned(),
        epoch: None,
        lease_ms: 60_000,
    };
    let session = session();
    SessionHead::new(session.key, session.session_id, &authority, after(0))
}

#[test]
fn a_repair_derives_again_and_then_finds_nothing() {
    let mut session = session();
    session.summary.active_run_id = Some(run_id(9));
    session.summary.queued_runs = 4;
    session.summary.pending_interactions = 3;
    let mut head = head();
    head.active_run = Some(RunKey(99));
    let running = live(RunStatus::Running);
    let derived = Derived {
        checkpoint_count: 2,
        ..Derived::default()
    };
    let rows = [running.clone()];
    let changed = repair(&mut session, &mut head, &rows, &derived);
    assert!(changed.contains(&"head.active_run") && changed.contains(&"queued_runs"));
    assert_eq!(head.active_run, Some(running.key));
    assert_eq!(session.summary.active_run_id, Some(running.run_id));
    assert_eq!(session.summary.status, SessionStatus::Running);
    assert_eq!(session.summary.pending_interactions, 0);
    assert_eq!(session.summary.checkpoint_count, 2);
    assert_eq!(
        repair(&mut session, &mut head, &rows, &derived),
        Vec::<&str>::new()
    );
}
