//! Entries that an executor sends instead of having its uploads projected (design §4.6). The prompt
//! and the end of a run stay the server's. A call and its result are one entry (ADR 6), so a call
//! without a result counts as unanswered for good, and a result without its call is refused.

use std::collections::HashMap;

use serde_json::{Value, json};
use uuid::Builder;

use super::{EntryKind, EntrySource, NO_RESULT, NewEntry, RESUME_BOUNDARY, TapeEntry};
use crate::digest::Digest;
use crate::id::{RunId, SessionId, TapeEntryId};
use crate::rejection::{FieldError, Rejection};
use crate::time::Timestamp;

/// The kind under which the result of a call in the same batch is sent apart from it.
pub const TOOL_RESULT: &str = "tool_result";
/// What an executor may send.
pub const KINDS: [&str; 7] = [
    "user_message",
    "assistant_message",
    "thinking",
    "tool_call",
    TOOL_RESULT,
    "plan",
    "anchor",
];

/// An entry as an executor sends it.
#[derive(Debug, Clone, PartialEq)]
pub struct UploadedEntry {
    /// The executor's id; without one it is derived from the content.
    pub entry_id: Option<TapeEntryId>,
    /// One of [`KINDS`].
    pub kind: String,
    /// The payload, an object.
    pub payload: Value,
    /// The executor's notes.
    pub meta: Option<Value>,
    /// The type, for anchors.
    pub anchor_type: Option<String>,
}

/// An entry that is stored under an uploaded id.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownEntry {
    /// Whose tape it is on.
    pub session_id: SessionId,
    /// The entry.
    pub entry: TapeEntry,
}

/// A checked batch: calls joined with their results, every entry with its id.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryBatch {
    run_id: RunId,
    entries: Vec<(TapeEntryId, EntryKind, UploadedEntry)>,
}

/// What becomes of one entry of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum EntrySlot {
    /// To be written.
    New(TapeEntryId, NewEntry),
    /// Stored before.
    Known(TapeEntry),
}

impl EntryBatch {
    /// Checks a batch of one run. Every error names the entry.
    pub fn check(run_id: RunId, uploads: Vec<UploadedEntry>) -> Result<Self, Rejection> {
        let mut faults = Vec::new();
        let mut entries: Vec<(TapeEntryId, EntryKind, UploadedEntry)> = Vec::new();
        let mut ids = HashMap::new();
        for (index, mut upload) in uploads.into_iter().enumerate() {
            let mut fault = |field: &str, message: String| {
                faults.push(FieldError::new(
                    format!("tape_entries[{index}]{field}"),
                    message,
                ));
            };
            if !upload.payload.is_object() {
                fault(".payload", "must be an object".to_owned());
                continue;
            }
            if upload.kind == TOOL_RESULT {
                if let Err(message) = join_result(&mut entries, &upload.payload) {
                    fault(".payload", message);
                }
                continue;
            }
            let Some(kind) = upload
                .kind
                .parse()
                .ok()
                .filter(|kind| *kind != EntryKind::RunEnd)
            else {
                fault(".kind", format!("must be one of {}", KINDS.join(", ")));
                continue;
            };
            match (kind, upload.anchor_type.as_deref()) {
                (EntryKind::Anchor, Some(RESUME_BOUNDARY)) => {
                    fault(".anchor_type", "is the server's own".to_owned());
                }
                (EntryKind::Anchor, None) => {
                    fault(".anchor_type", "must be given for an anchor".to_owned());
                }
                (EntryKind::Anchor, Some(_)) | (_, None) => {}
                (_, Some(_)) => fault(".anchor_type", "belongs to anchors only".to_owned()),
            }
            let entry_id = upload
                .entry_id
                .unwrap_or_else(|| derived_id(run_id, index, &upload));
            if let Some(first) = ids.insert(entry_id, index) {
                fault(".entry_id", format!("is the id of entry {first} too"));
            }
            if kind == EntryKind::ToolCall && call_id(&upload.payload).is_none() {
                fault(".payload.call_id", "must be a text".to_owned());
            }
            upload.entry_id = Some(entry_id);
            entries.push((entry_id, kind, upload));
        }
        if !faults.is_empty() {
            return Err(Rejection::Invalid(faults));
        }
        for (_, kind, upload) in &mut entries {
            if *kind == EntryKind::ToolCall {
                answer(&mut upload.payload);
            }
        }
        Ok(Self { run_id, entries })
    }

    /// The ids, for the look-up of what is stored.
    pub fn ids(&self) -> Vec<TapeEntryId> {
        self.entries.iter().map(|(id, _, _)| *id).collect()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Decides each entry: an id that is stored with another content, run or session is refused, so
    /// an entry can never move (design §4.8).
    pub fn plan(
        self,
        session_id: SessionId,
        known: &[KnownEntry],
        head_seq: u64,
        now: Timestamp,
    ) -> Result<Vec<EntrySlot>, Rejection> {
        let run_id = self.run_id;
        let slot = |(entry_id, kind, upload): (TapeEntryId, EntryKind, UploadedEntry)| {
            let Some(stored) = known.iter().find(|known| known.entry.entry_id == entry_id) else {
                return Ok(EntrySlot::New(
                    entry_id,
                    NewEntry {
                        kind,
                        payload: upload.payload,
                        run_id: Some(run_id),
                        first_seq: head_seq,
                        created_at: now,
                        anchor_type: upload.anchor_type,
                        source: EntrySource::Executor,
                        meta: upload.meta,
                    },
                ));
            };
            let entry = &stored.entry;
            let same = stored.session_id == session_id
                && entry.run_id == Some(run_id)
                && entry.source == EntrySource::Executor
                && entry.kind == kind
                && entry.payload == upload.payload
                && entry.meta == upload.meta
                && entry.anchor_type == upload.anchor_type;
            if same {
                Ok(EntrySlot::Known(entry.clone()))
            } else {
                Err(Rejection::EntryIdConflict { entry_id })
            }
        };
        self.entries.into_iter().map(slot).collect()
    }
}

/// Puts a result into its call, which must come before it in the batch and have none yet.
fn join_result(
    entries: &mut [(TapeEntryId, EntryKind, UploadedEntry)],
    result: &Value,
) -> Result<(), String> {
    let Some(wanted) = call_id(result) else {
        return Err("must have a `call_id`".to_owned());
    };
    let call = entries.iter_mut().rev().find(|(_, kind, upload)| {
        *kind == EntryKind::ToolCall && call_id(&upload.payload) == Some(wanted)
    });
    let Some((_, _, call)) = call else {
        return Err(format!(
            "answers `{wanted}`, which is no call before it in this request"
        ));
    };
    if call
        .payload
        .get("result")
        .is_some_and(|result| !result.is_null())
    {
        return Err(format!("answers `{wanted}`, which has its result already"));
    }
    call.payload["result"] = result.get("result").cloned().unwrap_or_else(|| json!(""));
    call.payload["is_error"] = json!(result.get("is_error") == Some(&Value::Bool(true)));
    Ok(())
}

/// Gives a call without a result the standing answer, as the projection does (fault 12).
fn answer(call: &mut Value) {
    if call.get("result").is_none_or(Value::is_null) {
        call["result"] = json!(NO_RESULT);
        call["is_error"] = json!(true);
    }
}

fn call_id(payload: &Value) -> Option<&str> {
    payload
        .get("call_id")
        .and_then(Value::as_str)
        .filter(|id| !id.is_empty())
}

/// An id that the same entry at the same place of the same request gets again (RFC 9562, version 8).
fn derived_id(run_id: RunId, index: usize, upload: &UploadedEntry) -> TapeEntryId {
    let content = json!([
        run_id,
        index,
        upload.kind,
        upload.payload,
        upload.meta,
        upload.anchor_type
    ]);
    let digest = Digest::of_json("tape_entry", &content);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.0[..16]);
    TapeEntryId::new(Builder::from_custom_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests;
