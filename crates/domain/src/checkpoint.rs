//! Checkpoints: named places on the tape that can be restored, and forks that start from one
//! (design §4.6). Nothing is deleted by any of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::event::{Draft, EventKind, server_event_id};
use crate::id::{CheckpointId, RunId, SessionId, SessionKey, TapeId};
use crate::owner::SessionHead;
use crate::rejection::Rejection;
use crate::run::Run;
use crate::session::{ApprovalPolicy, RunTarget, Session, SessionSettings, SessionSummary};
use crate::time::{Now, Timestamp};

/// The settings that a checkpoint keeps: those that runs depend on. Title and notes describe the
/// session to people and are left alone by a restore (ADR 13).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSettings {
    /// Who answers questions.
    pub approval_policy: ApprovalPolicy,
    /// Backend-specific settings.
    pub agent: Map<String, Value>,
    /// Where runs may execute.
    pub run_target: RunTarget,
}

impl KeptSettings {
    /// The kept part of a session's settings.
    pub fn of(settings: &SessionSettings) -> Self {
        Self {
            approval_policy: settings.approval_policy,
            agent: settings.agent.clone(),
            run_target: settings.run_target.clone(),
        }
    }

    fn put_back(self, settings: &mut SessionSettings) {
        settings.approval_policy = self.approval_policy;
        settings.agent = self.agent;
        settings.run_target = self.run_target;
    }
}

/// A named place on a session's tape.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The identifier.
    pub checkpoint_id: CheckpointId,
    /// The session.
    pub session_id: SessionId,
    /// What the person called it.
    pub label: Option<String>,
    /// The last position on the tape.
    pub tape_position: u64,
    /// The newest event at the capture.
    pub session_seq: u64,
    /// The settings.
    pub settings: KeptSettings,
    /// The agent's own state as the newest settled run left it.
    pub agent_state: Option<Value>,
    /// The newest settled run.
    pub run_id: Option<RunId>,
    /// That run's message snapshot.
    pub snapshot_id: Option<String>,
    /// The view of the tape at the capture.
    pub projection_epoch: u64,
    /// When it was captured.
    pub created_at: Timestamp,
    /// When a restore put it aside.
    pub superseded_at: Option<Timestamp>,
    /// Which checkpoint was restored then.
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
    /// When a person deleted it.
    pub deleted_at: Option<Timestamp>,
}

impl Checkpoint {
    /// Whether it can be restored and is shown in lists.
    pub const fn is_active(&self) -> bool {
        self.superseded_at.is_none() && self.deleted_at.is_none()
    }

    /// Refuses one that was put aside or deleted.
    pub const fn check_active(&self) -> Result<(), Rejection> {
        if self.is_active() {
            Ok(())
        } else {
            Err(Rejection::CheckpointSuperseded {
                checkpoint_id: self.checkpoint_id,
            })
        }
    }
}

/// What a capture records, loaded under the head's lock from a tape that has caught up.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CaptureMaterial {
    /// The newest settled run.
    pub run_id: Option<RunId>,
    /// The agent state it left.
    pub agent_state: Option<Value>,
    /// Its message snapshot.
    pub snapshot_id: Option<String>,
    /// The last position on the tape.
    pub tape_position: u64,
}

/// Captures a checkpoint. Updates the session's summary; gives the row and its event.
pub fn capture(
    session: &mut Session,
    head: &SessionHead,
    material: CaptureMaterial,
    checkpoint_id: CheckpointId,
    label: Option<String>,
    now: Now,
) -> Result<(Checkpoint, Draft), Rejection> {
    check_idle(session)?;
    let checkpoint = Checkpoint {
        checkpoint_id,
        session_id: session.session_id,
        label,
        tape_position: material.tape_position,
        session_seq: head.head_seq,
        settings: KeptSettings::of(&session.settings),
        agent_state: material.agent_state,
        run_id: material.run_id,
        snapshot_id: material.snapshot_id,
        projection_epoch: head.projection_epoch,
        created_at: now.wall,
        superseded_at: None,
        superseded_by_checkpoint_id: None,
        deleted_at: None,
    };
    let summary = &mut session.summary;
    summary.checkpoint_count += 1;
    summary.latest_checkpoint_id = Some(checkpoint_id);
    summary
        .latest_checkpoint_label
        .clone_from(&checkpoint.label);
    session.updated_at = now.wall;
    let payload = json!({
        "checkpoint_id": checkpoint_id,
        "label": checkpoint.label,
        "tape_position": checkpoint.tape_position,
        "session_seq": checkpoint.session_seq,
        "snapshot_id": checkpoint.snapshot_id,
    });
    Ok((
        checkpoint,
        Draft::server(EventKind::CheckpointCaptured, payload),
    ))
}

/// Refuses where runs are active or the session is closed.
pub const fn check_idle(session: &Session) -> Result<(), Rejection> {
    if session.closed_at.is_some() {
        return Err(Rejection::SessionClosed);
    }
    if let Some(active_run_id) = session.summary.active_run_id {
        return Err(Rejection::SessionBusy { active_run_id });
    }
    Ok(())
}

/// What is left of a session's past after a restore has put later rows aside.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Remaining {
    /// The newest settled run that is still active.
    pub latest: Option<Run>,
    /// The newest interrupted one.
    pub last_interrupted_run_id: Option<RunId>,
    /// Active checkpoints.
    pub checkpoint_count: u32,
    /// How many runs were put aside.
    pub superseded_runs: u64,
    /// How many tape entries were put aside.
    pub superseded_entries: u64,
}

/// Puts a session back to a checkpoint: its settings, its summary and a new view of the tape. Later
/// rows have been put aside in the same transaction; gives the event.
pub fn restore(
    session: &mut Session,
    head: &mut SessionHead,
    checkpoint: &Checkpoint,
    remaining: &Remaining,
    now: Now,
) -> Draft {
    checkpoint.settings.clone().put_back(&mut session.settings);
    head.projection_epoch += 1;
    if remaining.superseded_runs > 0 {
        session.restored_seq = Some(head.head_seq + 1);
    }
    let latest = remaining.latest.as_ref();
    let summary = &mut session.summary;
    *summary = SessionSummary {
        last_run_id: latest.map(|run| run.run_id),
        last_run_status: latest.map(|run| run.status),
        last_interrupted_run_id: remaining.last_interrupted_run_id,
        resume_from_event_id: latest.and_then(|run| run.settled_seq).map(server_event_id),
        checkpoint_count: remaining.checkpoint_count,
        latest_checkpoint_id: Some(checkpoint.checkpoint_id),
        latest_checkpoint_label: checkpoint.label.clone(),
        ..SessionSummary::empty()
    };
    summary.derive(None, session.closed_at.is_some());
    session.updated_at = now.wall;
    let payload = json!({
        "checkpoint_id": checkpoint.checkpoint_id,
        "label": checkpoint.label,
        "tape_position": checkpoint.tape_position,
        "session_seq": checkpoint.session_seq,
        "projection_epoch": head.projection_epoch,
        "superseded_runs": remaining.superseded_runs,
        "superseded_entries": remaining.superseded_entries,
    });
    Draft::server(EventKind::SessionRestored, payload)
}

/// Drops a checkpoint from the active list. `latest` is the newest one that stays.
pub fn delete(session: &mut Session, latest: Option<&Checkpoint>, now: Now) {
    let summary = &mut session.summary;
    summary.checkpoint_count = summary.checkpoint_count.saturating_sub(1);
    summary.latest_checkpoint_id = latest.map(|checkpoint| checkpoint.checkpoint_id);
    summary.latest_checkpoint_label = latest.and_then(|checkpoint| checkpoint.label.clone());
    session.updated_at = now.wall;
}

/// Where a forked session comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkOrigin {
    /// The session.
    pub session_id: SessionId,
    /// The checkpoint, where one was named.
    pub checkpoint_id: Option<CheckpointId>,
    /// The last event whose settled conversation the fork has.
    pub session_seq: u64,
}

/// A fork as a client asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// The new session.
    pub session_id: SessionId,
    /// Its tape.
    pub tape_id: TapeId,
    /// Its title; `None` takes the source's.
    pub title: Option<String>,
}

/// The session that a fork makes, and its first event. Settings are the checkpoint's where one is
/// given. It shares no agent state with its source: two sessions must not write to one conversation
/// of an agent (ADR 13).
pub fn fork(
    source: &Session,
    checkpoint: Option<&Checkpoint>,
    origin: ForkOrigin,
    request: &Fork,
    now: Now,
) -> (Session, Draft) {
    let mut settings = source.settings.clone();
    if let Some(checkpoint) = checkpoint {
        checkpoint.settings.clone().put_back(&mut settings);
    }
    if let Some(title) = &request.title {
        settings.title = Some(title.clone());
    }
    let session = Session {
        key: SessionKey(0),
        session_id: request.session_id,
        namespace: source.namespace.clone(),
        settings,
        tape_id: request.tape_id,
        summary: SessionSummary::empty(),
        forked_from: Some(origin),
        restored_seq: None,
        folded_seq: None,
        created_at: now.wall,
        updated_at: now.wall,
        last_activity_at: now.wall,
        closed_at: None,
    };
    let payload = json!({
        "forked_from_session_id": origin.session_id,
        "checkpoint_id": origin.checkpoint_id,
        "session_seq": origin.session_seq,
    });
    (session, Draft::server(EventKind::SessionForked, payload))
}

#[cfg(test)]
mod tests;
