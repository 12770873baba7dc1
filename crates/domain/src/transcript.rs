//! A session's tape for people to read and pass on: Markdown, one JSON document, or JSON Lines. It
//! is written an entry at a time, so that a long one can go out page by page, and it holds no secret
//! of a known shape. It never changes an entry; the tape itself is what programs should read.

mod markdown;

use serde_json::{Value, json};

use crate::display::redact;
use crate::id::SessionId;
use crate::session::text_enum;
use crate::tape::TapeEntry;

text_enum! {
    /// The forms of a transcript.
    TranscriptFormat {
        /// For people; results are bounded.
        Markdown = "md",
        /// One object with `session_id`, `title` and all `entries`.
        Json = "json",
        /// An entry a line.
        JsonLines = "jsonl",
    }
}

/// A transcript that is being written: [`Self::begin`], each entry in order, [`Self::end`].
#[derive(Debug, Clone)]
pub struct Transcript {
    format: TranscriptFormat,
    turn: u64,
    entries: u64,
}

impl Transcript {
    /// An empty one.
    pub const fn new(format: TranscriptFormat) -> Self {
        Self {
            format,
            turn: 0,
            entries: 0,
        }
    }

    /// What comes before the first entry.
    pub fn begin(&self, session_id: SessionId, title: Option<&str>) -> String {
        let title = title.map(redact::text);
        match self.format {
            TranscriptFormat::Markdown => markdown::title(title.as_deref().unwrap_or("Session")),
            TranscriptFormat::Json => {
                let (session_id, title) = (json!(session_id), json!(title));
                format!("{{\"session_id\":{session_id},\"title\":{title},\"entries\":[")
            }
            TranscriptFormat::JsonLines => String::new(),
        }
    }

    /// One entry; they come in the order of their positions.
    pub fn entry(&mut self, entry: &TapeEntry) -> String {
        self.entries += 1;
        match self.format {
            TranscriptFormat::Markdown => markdown::entry(entry, &mut self.turn),
            TranscriptFormat::Json if self.entries == 1 => value(entry).to_string(),
            TranscriptFormat::Json => format!(",{}", value(entry)),
            TranscriptFormat::JsonLines => format!("{}\n", value(entry)),
        }
    }

    /// What comes after the last entry.
    pub const fn end(&self) -> &'static str {
        match self.format {
            TranscriptFormat::Json => "]}",
            TranscriptFormat::Markdown | TranscriptFormat::JsonLines => "",
        }
    }
}

/// An entry as JSON, without secrets.
pub fn value(entry: &TapeEntry) -> Value {
    let mut payload = entry.payload.clone();
    redact::json(&mut payload);
    let mut meta = entry.meta.clone();
    if let Some(meta) = &mut meta {
        redact::json(meta);
    }
    json!({
        "position": entry.position,
        "entry_id": entry.entry_id,
        "kind": entry.kind,
        "payload": payload,
        "meta": meta,
        "anchor_type": entry.anchor_type,
        "run_id": entry.run_id,
        "created_at": entry.created_at,
        "superseded_by_checkpoint_id": entry.superseded_by_checkpoint_id,
    })
}

#[cfg(test)]
mod tests;
