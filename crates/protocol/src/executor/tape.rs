//! What an executor sends of a run besides its events: the provider's messages as they stand, and
//! tape entries of its own. What a tape takes is the domain's rule; sizes and texts are checked here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::snapshot::SnapshotFacts;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};
use tapedeck_domain::{Rejection, RunId, TapeEntryId, limits};
use utoipa::ToSchema;

use super::lease::{Presented, PresentedFields};
use crate::check::Faults;
use crate::tape::TapeEntryResponse;

/// One entry as an executor sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TapeEntryUpload {
    /// Chosen by the executor; without one it is derived from the entry and its place in the request.
    #[serde(default)]
    #[schema(value_type = Option<Uuid>)]
    pub entry_id: Option<TapeEntryId>,
    /// `user_message`, `assistant_message`, `thinking`, `tool_call`, `tool_result`, `plan` or
    /// `anchor`.
    pub kind: String,
    /// The payload, an object of at most 256 KiB.
    #[schema(value_type = Object)]
    pub payload: Value,
    /// The executor's own notes.
    #[serde(default)]
    #[schema(value_type = Option<Value>)]
    pub meta: Option<Value>,
    /// The type, for anchors.
    #[serde(default)]
    pub anchor_type: Option<String>,
}

/// Checks a batch of one run and joins calls with their results.
pub(super) fn check_entries(
    faults: &mut Faults,
    run_id: RunId,
    entries: Vec<TapeEntryUpload>,
) -> Option<EntryBatch> {
    if entries.is_empty() || entries.len() > limits::TAPE_ENTRIES {
        let message = format!("must hold 1 to {} entries", limits::TAPE_ENTRIES);
        faults.add("tape_entries", message);
        return None;
    }
    for (index, entry) in entries.iter().enumerate() {
        let at = |field: &str| format!("tape_entries[{index}].{field}");
        for (field, value) in [
            ("payload", Some(&entry.payload)),
            ("meta", entry.meta.as_ref()),
        ] {
            let Some(value) = value else { continue };
            faults.json(&at(field), value);
            let bytes = value.to_string().len();
            if bytes > limits::EVENT_BYTES {
                let most = limits::EVENT_BYTES;
                faults.add(
                    at(field),
                    format!("has {bytes} bytes of JSON; {most} are allowed"),
                );
            }
        }
        faults.text(&at("kind"), &entry.kind, limits::EVENT_KIND_CHARS);
        if let Some(anchor_type) = &entry.anchor_type {
            faults.name(&at("anchor_type"), anchor_type, limits::NAME_CHARS);
        }
    }
    let uploads = entries.into_iter().map(UploadedEntry::from).collect();
    match EntryBatch::check(run_id, uploads) {
        Ok(batch) => Some(batch),
        Err(Rejection::Invalid(errors)) => {
            faults.extend(errors);
            None
        }
        Err(other) => {
            faults.add("tape_entries", other.to_string());
            None
        }
    }
}

impl From<TapeEntryUpload> for UploadedEntry {
    fn from(entry: TapeEntryUpload) -> Self {
        Self {
            entry_id: entry.entry_id,
            kind: entry.kind,
            payload: entry.payload,
            meta: entry.meta,
            anchor_type: entry.anchor_type,
        }
    }
}

/// Body of `POST /executor/runs/{id}/tape`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TapeRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// 1 to 1000 entries.
    #[schema(required)]
    pub tape_entries: Vec<TapeEntryUpload>,
}

impl TapeRequest {
    /// Checks every entry of a run and gives the claim and the batch.
    pub fn check(self, run_id: RunId) -> Result<(Presented, EntryBatch), Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        match check_entries(&mut faults, run_id, self.tape_entries) {
            Some(batch) => faults.finish((claim, batch)),
            None => Err(faults.into_errors()),
        }
    }
}

/// Answer of an upload of tape entries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TapeResponse {
    /// The entries as they stand on the tape, a call with its result as one.
    pub tape_entries: Vec<TapeEntryResponse>,
}

/// Body of `POST /executor/runs/{id}/snapshot`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// All of the provider's messages so far, in its own form; they replace those reported before.
    #[schema(required)]
    pub messages: Vec<Value>,
    /// The executor's own notes.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
}

/// A checked snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedSnapshot {
    /// The claim.
    pub claim: Presented,
    /// The messages.
    pub messages: Vec<Value>,
    /// The executor's notes.
    pub metadata: Map<String, Value>,
}

impl SnapshotRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedSnapshot, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        if self.messages.is_empty() {
            faults.add("messages", "must hold at least one message");
        }
        for (index, message) in self.messages.iter().enumerate() {
            faults.json(&format!("messages[{index}]"), message);
        }
        let metadata = self.metadata.unwrap_or_default();
        faults.object("metadata", &metadata);
        faults.finish(CheckedSnapshot {
            claim,
            messages: self.messages,
            metadata,
        })
    }
}

/// Answer of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedSnapshot {
    /// `{run_id}:latest`.
    pub snapshot_id: String,
    /// How many messages.
    pub message_count: u64,
}

impl From<&SnapshotFacts> for SavedSnapshot {
    fn from(facts: &SnapshotFacts) -> Self {
        Self {
            snapshot_id: facts.snapshot_id(),
            message_count: facts.message_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn run() -> RunId {
        RunId::new("01890000-0000-7000-8000-000000000002".parse().unwrap())
    }

    fn faults(entries: &Value) -> Vec<String> {
        let body = json!({"executor_id": "x", "claim_token": "1.a", "tape_entries": entries});
        let request: TapeRequest = serde_json::from_value(body).unwrap();
        let errors = request.check(run()).err().unwrap_or_default();
        errors.into_iter().map(|error| error.path).collect()
    }

    #[rstest]
    #[case(json!([{"kind": "plan", "payload": {}}]), &[])]
    #[case(json!([{"kind": "anchor", "payload": {}, "anchor_type": "mark", "meta": [1]}]), &[])]
    #[case(json!([]), &["tape_entries"])]
    #[case(json!([{"kind": "plan", "payload": 1}]), &["tape_entries[0].payload"])]
    #[case(json!([{"kind": "plan", "payload": {"a": "\u{0}"}}]), &["tape_entries[0].payload"])]
    #[case(json!([{"kind": "plan", "payload": {"a": "x".repeat(limits::EVENT_BYTES)}}]),
        &["tape_entries[0].payload"])]
    #[case(json!([{"kind": "plan", "payload": {}, "meta": "x".repeat(limits::EVENT_BYTES)}]),
        &["tape_entries[0].meta"])]
    #[case(json!([{"kind": "plan", "payload": {}}, {"kind": "run_end", "payload": {}}]),
        &["tape_entries[1].kind"])]
    #[case(json!([{"kind": "anchor", "payload": {}, "anchor_type": " "}]),
        &["tape_entries[0].anchor_type"])]
    #[case(json!([{"kind": "tool_result", "payload": {"call_id": "c"}}]),
        &["tape_entries[0].payload"])]
    fn entries_say_where_a_rule_is_broken(#[case] entries: Value, #[case] expected: &[&str]) {
        assert_eq!(faults(&entries), expected);
    }

    #[test]
    fn a_batch_is_bounded() {
        let entry = json!({"kind": "plan", "payload": {}});
        assert_eq!(faults(&json!(vec![entry.clone(); 1000])), [""; 0]);
        assert_eq!(faults(&json!(vec![entry; 1001])), ["tape_entries"]);
    }

    #[test]
    fn a_snapshot_has_messages_that_can_be_stored() {
        let check = |messages: Value, metadata: Value| {
            let body = json!({"executor_id": "x", "claim_token": "1.a", "messages": messages,
                "metadata": metadata});
            let request: SnapshotRequest = serde_json::from_value(body).unwrap();
            let errors = request.check().err().unwrap_or_default();
            errors
                .into_iter()
                .map(|error| error.path)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            check(json!([{"role": "user"}, "any"]), json!({"a": 1})),
            [""; 0]
        );
        assert_eq!(check(json!([]), Value::Null), ["messages"]);
        let broken = json!([{}, {"content": "\u{0}"}]);
        assert_eq!(
            check(broken, json!({"a": "\u{0}"})),
            ["messages[1]", "metadata.a"]
        );
    }
}
