//! Views of a session's past: its runs, its tape and transcript, what it gave last, what a run's
//! messages were. Nothing here decides which of them are still active.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::run::{Run, RunStatus};
use tapedeck_domain::snapshot::{MessageSnapshot, snapshot_id};
use tapedeck_domain::transcript::TranscriptFormat;
use tapedeck_domain::{RunId, SessionId, Timestamp, limits};
use utoipa::{IntoParams, ToSchema};

use crate::page::{self, Page, PageQuery, QueryFault};
use crate::schema;

/// Query of the lists of runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunsQuery {
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Also those that a restore has put aside.
    pub include_superseded: bool,
    /// Only those that wait and that nobody can serve.
    pub unservable: bool,
}

impl RunsQuery {
    /// Checks limit and cursor.
    pub fn page(&self) -> Result<Page<RunId>, QueryFault> {
        PageQuery::of(self.limit.as_ref(), self.cursor.as_ref()).check()
    }
}

/// Answer of `GET /sessions/{id}/result`: the newest settled run that no restore has put aside. All
/// but the session is null where none has settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResultResponse {
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// The run.
    #[schema(value_type = Option<Uuid>, required)]
    pub run_id: Option<RunId>,
    /// How it ended.
    #[schema(value_type = Option<schema::RunStatus>, required)]
    pub status: Option<RunStatus>,
    /// What its executor reported.
    #[schema(value_type = Option<Value>, required)]
    pub result: Option<Value>,
    /// Why it did not end well.
    #[schema(required)]
    pub error: Option<String>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub settled_at: Option<Timestamp>,
}

impl ResultResponse {
    /// What a session gave last.
    pub fn new(session_id: SessionId, run: Option<Run>) -> Self {
        let (run_id, status) = (
            run.as_ref().map(|run| run.run_id),
            run.as_ref().map(|run| run.status),
        );
        let settled_at = run.as_ref().and_then(|run| run.settled_at);
        let (result, error) = run.map_or((None, None), |run| (run.result, run.error));
        Self {
            session_id,
            run_id,
            status,
            result,
            error,
            settled_at,
        }
    }
}

/// Answer of `GET /runs/{id}/snapshot`: the provider's messages as the run last reported them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotResponse {
    /// `{run_id}:latest`.
    pub snapshot_id: String,
    /// The run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// How many messages.
    pub message_count: u64,
    /// The messages, in the provider's own form.
    pub messages: Vec<Value>,
    /// The executor's notes.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The attempt that reported them.
    pub attempt: u32,
    /// When the run first reported any.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it last did.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl From<MessageSnapshot> for SnapshotResponse {
    fn from(snapshot: MessageSnapshot) -> Self {
        Self {
            snapshot_id: snapshot_id(snapshot.run_id),
            run_id: snapshot.run_id,
            message_count: snapshot.messages.len() as u64,
            messages: snapshot.messages,
            metadata: snapshot.metadata,
            attempt: snapshot.attempt,
            created_at: snapshot.created_at,
            updated_at: snapshot.updated_at,
        }
    }
}

/// Answer of `POST /sessions/{id}/repair`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairResponse {
    /// What was wrong and is derived again; empty where all was well.
    pub changed: Vec<String>,
}

/// Query of `GET /sessions/{id}/tape`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TapeQuery {
    /// Only entries after this position: `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u64>)]
    pub after: Option<String>,
    /// Entries of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// Also those that a restore has put aside or an executor's own entries have replaced.
    pub include_superseded: bool,
}

/// A checked part of a tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapeSelection {
    /// Only entries after this position.
    pub after: u64,
    /// Entries of one page.
    pub limit: u32,
    /// Also those that are no longer active.
    pub include_superseded: bool,
}

impl TapeQuery {
    /// Checks every parameter.
    pub fn check(&self) -> Result<TapeSelection, QueryFault> {
        let after = match self.after.as_deref() {
            None => 0,
            Some(text) => position(text).ok_or_else(|| {
                let why = "the cursor must be the position of an entry of this tape";
                QueryFault::Cursor(why.to_owned())
            })?,
        };
        let limit = page::limit(
            self.limit.as_deref(),
            limits::PAGE_DEFAULT,
            limits::PAGE_MAX,
        )?;
        Ok(TapeSelection {
            after,
            limit,
            include_superseded: self.include_superseded,
        })
    }
}

/// Stores count in signed 64 bits.
fn position(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let position = text.parse().ok().filter(|_| digits)?;
    i64::try_from(position).is_ok().then_some(position)
}

/// Query of `GET /sessions/{id}/transcript`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TranscriptQuery {
    /// `md` (the default), `json` or `jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::TranscriptFormat>, inline)]
    pub format: Option<String>,
}

impl TranscriptQuery {
    /// Checks the format.
    pub fn check(&self) -> Result<TranscriptFormat, QueryFault> {
        let format = page::word("format", self.format.as_deref())?;
        Ok(format.unwrap_or(TranscriptFormat::Markdown))
    }
}

/// The media type of a transcript.
pub const fn media_type(format: TranscriptFormat) -> &'static str {
    match format {
        TranscriptFormat::Markdown => "text/markdown; charset=utf-8",
        TranscriptFormat::Json => "application/json",
        TranscriptFormat::JsonLines => "application/x-ndjson",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_tape_is_checked() {
        let check = |after: Option<&str>, limit: Option<&str>| {
            let query = TapeQuery {
                after: after.map(str::to_owned),
                limit: limit.map(str::to_owned),
                include_superseded: true,
            };
            query.check()
        };
        let selection = check(Some("7"), Some("200")).unwrap();
        assert_eq!((selection.after, selection.limit), (7, 200));
        let selection = check(None, None).unwrap();
        assert_eq!((selection.after, selection.limit), (0, 50));
        for after in ["", "-1", "+1", "head", "9223372036854775808"] {
            assert!(
                matches!(check(Some(after), None), Err(QueryFault::Cursor(_))),
                "{after}"
            );
        }
        for limit in ["0", "201"] {
            let checked = check(None, Some(limit));
            assert!(matches!(checked, Err(QueryFault::Parameters(_))), "{limit}");
        }
    }

    #[test]
    fn a_transcript_is_markdown_unless_it_is_asked_for_otherwise() {
        let check = |format: Option<&str>| {
            let format = format.map(str::to_owned);
            TranscriptQuery { format }.check()
        };
        assert_eq!(check(None), Ok(TranscriptFormat::Markdown));
        assert_eq!(check(Some("jsonl")), Ok(TranscriptFormat::JsonLines));
        assert!(check(Some("pdf")).is_err());
    }
}
