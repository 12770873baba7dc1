//! Checkpoints, restores and forks on the wire. What is checked here is the shape; whether a session
//! can be captured, put back or forked is the domain's decision.

use serde::{Deserialize, Serialize};
use tapedeck_domain::checkpoint::Checkpoint;
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::{CheckpointId, RunId, SessionId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::page::{Page, PageQuery, QueryFault};
use crate::session::check_command_id;

/// Body of `POST /sessions/{id}/checkpoints`. Everything is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateCheckpointRequest {
    /// What people call it.
    pub label: Option<String>,
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

impl CreateCheckpointRequest {
    /// Checks every field and gives the label.
    pub fn check(self) -> Result<Option<String>, Vec<FieldError>> {
        let mut faults = Faults::default();
        if let Some(label) = &self.label {
            faults.text("label", label, limits::NAME_CHARS);
        }
        check_command_id(&mut faults, self.command_id.as_deref());
        faults.finish(self.label)
    }
}

/// Body of `POST /sessions/{id}/checkpoints/{cid}/restore`; there needn't be one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RestoreRequest {
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

impl RestoreRequest {
    /// Checks every field.
    pub fn check(self) -> Result<(), Vec<FieldError>> {
        let mut faults = Faults::default();
        check_command_id(&mut faults, self.command_id.as_deref());
        faults.finish(())
    }
}

/// Body of `POST /sessions/{id}/fork`. With neither place the fork starts from what has settled by
/// now; both at once are refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForkRequest {
    /// Starts from this checkpoint, with its settings.
    #[schema(value_type = Option<Uuid>)]
    pub checkpoint_id: Option<CheckpointId>,
    /// Starts from what had settled by this event.
    pub session_seq: Option<u64>,
    /// The new session's title; the source's by default.
    pub title: Option<String>,
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

/// Where a fork starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkFrom {
    /// A checkpoint.
    Checkpoint(CheckpointId),
    /// What had settled by this event.
    Seq(u64),
    /// What has settled by now.
    Now,
}

/// A checked fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedFork {
    /// Where it starts.
    pub from: ForkFrom,
    /// The new session's title.
    pub title: Option<String>,
}

impl ForkRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedFork, Vec<FieldError>> {
        let mut faults = Faults::default();
        let from = match (self.checkpoint_id, self.session_seq) {
            (Some(_), Some(_)) => {
                faults.add("session_seq", "excludes `checkpoint_id`; give one of them");
                ForkFrom::Now
            }
            (Some(id), None) => ForkFrom::Checkpoint(id),
            (None, Some(seq)) => {
                // Stores count in signed 64 bits.
                if i64::try_from(seq).is_err() {
                    faults.add("session_seq", "is no number of an event");
                }
                ForkFrom::Seq(seq)
            }
            (None, None) => ForkFrom::Now,
        };
        if let Some(title) = &self.title {
            faults.text("title", title, limits::NAME_CHARS);
        }
        check_command_id(&mut faults, self.command_id.as_deref());
        faults.finish(CheckedFork {
            from,
            title: self.title,
        })
    }
}

/// Query of `GET /sessions/{id}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CheckpointsQuery {
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Also those that were deleted or put aside by a restore.
    pub include_superseded: bool,
}

impl CheckpointsQuery {
    /// Checks limit and cursor.
    pub fn page(&self) -> Result<Page<CheckpointId>, QueryFault> {
        PageQuery::of(self.limit.as_ref(), self.cursor.as_ref()).check()
    }
}

/// A named place on a session's tape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub checkpoint_id: CheckpointId,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// What people call it.
    #[schema(required)]
    pub label: Option<String>,
    /// The last position on the tape; 0 on an empty one.
    pub tape_position: u64,
    /// The number of the newest event at the capture.
    pub session_seq: u64,
    /// The newest settled run at the capture.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// That run's message snapshot.
    #[schema(required)]
    pub snapshot_id: Option<String>,
    /// When it was captured.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When a restore put it aside.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub superseded_at: Option<Timestamp>,
    /// Which checkpoint was restored then.
    #[schema(value_type = Option<Uuid>, required)]
    pub superseded_by_checkpoint_id: Option<CheckpointId>,
    /// When a person deleted it.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub deleted_at: Option<Timestamp>,
}

impl From<&Checkpoint> for CheckpointResponse {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            checkpoint_id: checkpoint.checkpoint_id,
            session_id: checkpoint.session_id,
            label: checkpoint.label.clone(),
            tape_position: checkpoint.tape_position,
            session_seq: checkpoint.session_seq,
            run_id: checkpoint.run_id,
            snapshot_id: checkpoint.snapshot_id.clone(),
            created_at: checkpoint.created_at,
            superseded_at: checkpoint.superseded_at,
            superseded_by_checkpoint_id: checkpoint.superseded_by_checkpoint_id,
            deleted_at: checkpoint.deleted_at,
        }
    }
}

/// Answer of `GET /sessions/{id}/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointList {
    /// Newest first.
    pub checkpoints: Vec<CheckpointResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    const ID: &str = "01890000-0000-7000-8000-000000000002";

    fn paths(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|error| error.path.as_str()).collect()
    }

    #[rstest]
    #[case(json!({}), ForkFrom::Now)]
    #[case(json!({"checkpoint_id": ID, "title": ""}), ForkFrom::Checkpoint(ID.parse().unwrap()))]
    #[case(json!({"session_seq": 0}), ForkFrom::Seq(0))]
    fn a_fork_starts_from_one_place(#[case] body: Value, #[case] from: ForkFrom) {
        let request: ForkRequest = serde_json::from_value(body).unwrap();
        assert_eq!(request.check().unwrap().from, from);
    }

    #[rstest]
    #[case(json!({"checkpoint_id": ID, "session_seq": 1}), &["session_seq"])]
    #[case(json!({"session_seq": u64::MAX}), &["session_seq"])]
    #[case(json!({"title": "a\u{0}"}), &["title"])]
    #[case(json!({"title": "a".repeat(201), "command_id": " "}), &["title", "command_id"])]
    fn a_broken_fork_says_where(#[case] body: Value, #[case] expected: &[&str]) {
        let request: ForkRequest = serde_json::from_value(body).unwrap();
        assert_eq!(paths(&request.check().unwrap_err()), expected);
    }

    #[test]
    fn a_label_is_a_bounded_text() {
        let check = |label: &str| {
            let body = json!({"label": label});
            serde_json::from_value::<CreateCheckpointRequest>(body)
                .unwrap()
                .check()
        };
        assert_eq!(
            check("é".repeat(200).as_str()).unwrap(),
            Some("é".repeat(200))
        );
        for broken in ["a".repeat(201), "\0".to_owned()] {
            assert_eq!(paths(&check(&broken).unwrap_err()), ["label"]);
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        let body = json!({"label": "a", "name": "b"});
        assert!(serde_json::from_value::<CreateCheckpointRequest>(body).is_err());
        assert!(serde_json::from_value::<RestoreRequest>(json!({"force": true})).is_err());
        assert!(serde_json::from_value::<ForkRequest>(json!({"seq": 1})).is_err());
    }
}
