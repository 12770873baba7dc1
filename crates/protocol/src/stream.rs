//! Frames of a stream that are no events: they carry no id and never move a cursor.

use serde::{Deserialize, Serialize};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{LogId, RunId};
use utoipa::ToSchema;

use crate::interaction::InteractionResponse;
use crate::schema;

/// `event:` of [`StreamOpen`].
pub const OPEN: &str = "stream.open";
/// `event:` of [`StreamLive`].
pub const LIVE: &str = "stream.live";
/// `event:` of [`StreamEnd`].
pub const END: &str = "stream.end";
/// The comment sent on quiet streams, in milliseconds (design §6).
pub const COMMENT_INTERVAL_MS: u64 = 10_000;
/// The `retry:` every stream begins with, in milliseconds (design §6).
pub const RETRY_MS: u64 = 1_000;

/// The first frame of a stream: where things stand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamOpen {
    /// The number of the newest event.
    pub head_seq: u64,
    /// The active run.
    #[schema(value_type = Option<Uuid>, required)]
    pub active_run_id: Option<RunId>,
    /// Its status, or that of the run the stream is scoped to.
    #[schema(value_type = Option<schema::RunStatus>, required)]
    pub run_status: Option<RunStatus>,
    /// Open questions.
    pub interactions: Vec<InteractionResponse>,
    /// The identity of the log; another one after a backup was restored.
    #[schema(value_type = Option<Uuid>, required)]
    #[serde(default)]
    pub log_id: Option<LogId>,
}

/// The stream has caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamLive {
    /// The number of the newest event.
    pub head_seq: u64,
}

/// The stream ends here; a close without this frame means reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamEnd {
    /// Why.
    pub reason: EndReason,
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The run that it is scoped to has its terminal event.
    Settled,
    /// The run that it is scoped to was put aside by a restore.
    Superseded,
    /// The session is deleted.
    Deleted,
    /// The server shuts down: reconnect.
    Shutdown,
    /// The caller's token was revoked or has expired: with another one the stream can be continued.
    TokenEnded,
}
