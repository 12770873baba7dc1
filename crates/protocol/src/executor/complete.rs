//! The end of a run as its executor reports it. The same report again is recognised by its digest
//! (rules R11), which leaves the claim's own fields out.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::settle::Ending;
use tapedeck_domain::tape::upload::EntryBatch;
use tapedeck_domain::{RunId, TapeId};
use utoipa::ToSchema;

use super::lease::{Presented, PresentedFields};
use super::tape::{TapeEntryUpload, check_entries};
use crate::check::Faults;
use crate::schema;

/// An error text, in characters.
const ERROR_CHARS: usize = 16_384;

/// Body of `POST /executor/runs/{id}/complete`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompleteRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// How the run ended; `interrupted` hands it back.
    #[schema(value_type = Option<schema::Ending>, required)]
    pub status: Option<Ending>,
    /// What the run gave.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Value>,
    /// Why it did not end well.
    pub error: Option<String>,
    /// Events uploaded under this claim.
    pub event_count: Option<u64>,
    /// The tape that `tape_entries` belong to.
    #[schema(value_type = Option<Uuid>)]
    pub tape_id: Option<TapeId>,
    /// The executor's own tape entries instead of the projected ones, at most 1000.
    pub tape_entries: Option<Vec<TapeEntryUpload>>,
    /// The agent's own state, for a resume.
    #[schema(value_type = Option<Value>)]
    pub agent_state: Option<Value>,
}

/// A checked end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedComplete {
    /// The claim.
    pub claim: Presented,
    /// How it ended.
    pub ending: Ending,
    /// What it gave.
    pub result: Option<Value>,
    /// Why it did not end well.
    pub error: Option<String>,
    /// Events uploaded.
    pub event_count: Option<u64>,
    /// The tape that `tape_entries` belong to.
    pub tape_id: Option<TapeId>,
    /// The executor's own tape entries, where it sent any.
    pub tape: Option<EntryBatch>,
    /// The agent's own state.
    pub agent_state: Option<Value>,
    /// Tells the same report from another one.
    pub digest: Digest,
}

impl CompleteRequest {
    /// Checks every field of a run's end.
    pub fn check(self, run_id: RunId) -> Result<CheckedComplete, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        if self.status.is_none() {
            faults.add("status", "must be given");
        }
        if let Some(error) = &self.error {
            faults.text("error", error, ERROR_CHARS);
        }
        for (path, value) in [("result", &self.result), ("agent_state", &self.agent_state)] {
            if let Some(value) = value {
                faults.json(path, value);
            }
        }
        let ending = self.status.unwrap_or(Ending::Failed);
        let reported = json!({
            "status": ending,
            "result": self.result,
            "error": self.error,
            "event_count": self.event_count,
            "tape_id": self.tape_id,
            "tape_entries": self.tape_entries,
            "agent_state": self.agent_state,
        });
        let tape = match self.tape_entries {
            Some(entries) if !entries.is_empty() => check_entries(&mut faults, run_id, entries),
            Some(_) | None => None,
        };
        faults.finish(CheckedComplete {
            claim,
            ending,
            result: self.result,
            error: self.error,
            event_count: self.event_count,
            tape_id: self.tape_id,
            tape,
            agent_state: self.agent_state,
            digest: Digest::of_json("complete", &reported),
        })
    }
}
