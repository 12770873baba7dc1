//! What executors upload on a walk: events, new and again and under a known id, and tape entries of
//! their own.

use serde_json::{Value, json};
use tapedeck_control_plane::commands::append_events::{AppendEvents, Recorded};
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_domain::TapeEntryId;
use tapedeck_domain::append::Uploaded;
use tapedeck_domain::tape::upload::{EntryBatch, UploadedEntry};

use super::drive::{Drive, Went, same};
use super::steps::judge;

/// What an upload of these numbers is: its kind, its tool call and its data.
fn upload(content: u8, shape: u8) -> (&'static str, Option<u8>, Value) {
    let call = content % 2;
    let id = format!("call-{call}");
    match shape {
        0 | 1 => (
            "StreamDelta",
            None,
            json!({"content": format!("{content} {shape}")}),
        ),
        2 => (
            "ToolCallDelta",
            Some(call),
            json!({"call_id": id, "tool_name": "t", "arguments": {"n": content}}),
        ),
        3 => (
            "ToolResultDelta",
            Some(call),
            json!({"call_id": id, "display_result": content.to_string(), "is_error": false}),
        ),
        4 => (
            "ToolCallEnd",
            Some(call),
            json!({"call_id": id, "status": "completed", "n": content}),
        ),
        _ => ("TurnBegin", None, json!({"n": content})),
    }
}

impl Drive {
    pub(super) async fn append(
        &mut self,
        via: usize,
        claim: usize,
        uploads: &[(u8, u8, u8)],
    ) -> Went {
        let me = Self::owner(via);
        let held = self.claims[claim].0.clone();
        let known = &self.model.runs[self.model.claims[claim].run].uploads;
        let mut batch = Vec::new();
        let mut expected: Vec<(u8, u8, &str, Option<u8>)> = Vec::new();
        for (id, content, shape) in uploads {
            if expected.iter().any(|(sent, ..)| sent == id) {
                continue;
            }
            // What was sent before mostly comes again as it was, shape and all.
            let mut packed = content * 8 + shape;
            if let Some((stored, _)) = known.get(id)
                && *content % 4 != 3
            {
                packed = *stored;
            }
            let (kind, call, data) = upload(packed / 8, packed % 8);
            let name = format!("event-{id}");
            let checked = Uploaded::check(0, name, kind.to_owned(), &data, None);
            batch.push(checked.map_err(|error| format!("{error:?}"))?);
            expected.push((*id, packed, kind, call));
        }
        let expected = self.expect(via, |model| model.append(claim, me, &expected));
        let command = AppendEvents {
            proof: held.proof,
            batch,
        };
        let real = self.t(via).control.append_events(command).await;
        let compare = |real: Recorded, expected: &Vec<u64>| {
            let numbers = real
                .events
                .into_iter()
                .flatten()
                .map(|record| record.session_seq);
            same("numbers", &numbers.collect(), expected)
        };
        judge(real, expected, compare).map(drop)
    }

    pub(super) async fn own_tape(
        &mut self,
        via: usize,
        claim: usize,
        entry: u8,
        content: u8,
    ) -> Went {
        let me = Self::owner(via);
        let held = self.claims[claim].0.clone();
        let run = held.run_id();
        let content = content / 6;
        // The run's own id, with another end.
        let mut id = run.to_string();
        id.replace_range(id.len() - 2.., &format!("{entry:02x}"));
        let id: TapeEntryId = id.parse().map_err(|error| format!("{error:?}"))?;
        let upload = UploadedEntry {
            entry_id: Some(id),
            kind: "assistant_message".to_owned(),
            payload: json!({"text": content}),
            meta: None,
            anchor_type: None,
        };
        let batch = EntryBatch::check(run, vec![upload]).map_err(|error| error.to_string())?;
        let command = AppendTape {
            proof: held.proof,
            batch,
            weight: 100,
        };
        let expected = self.expect(via, |model| model.append_tape(claim, me, entry, content));
        let real = self.t(via).control.append_tape(command).await;
        judge(real, expected, |_, ()| Ok(())).map(drop)
    }
}
