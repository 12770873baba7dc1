//! Messages and thoughts in pieces. A message has one id however often and in whatever pieces it is
//! told: the agent's own within its run, or else the number of its first event.

use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, MessageId, SessionUpdate, TextContent,
};
use serde_json::Value;
use tapedeck_client::StreamEvent;
use tapedeck_domain::RunId;
use tapedeck_domain::text::pieces;

use super::PIECE;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    Agent,
    Thought,
}

#[derive(Debug, Default)]
pub(super) struct Messages {
    current: Option<Message>,
}

/// The message whose pieces are coming in.
#[derive(Debug)]
struct Message {
    run_id: RunId,
    voice: Voice,
    theirs: Option<String>,
    id: MessageId,
    /// The number of its last event.
    last_seq: u64,
    /// What was told of it, in bytes.
    told: usize,
}

impl Messages {
    /// A piece of a message.
    pub(super) fn piece(
        &mut self,
        event: &StreamEvent,
        voice: Voice,
        field: &str,
    ) -> Vec<SessionUpdate> {
        let (Some(text), Some(run_id)) = (event.text(field), event.run_id) else {
            return Vec::new();
        };
        let Some(message) = self.continued(event, run_id, voice) else {
            return Vec::new();
        };
        let first = first_seq(event);
        // Where pieces were folded into one meanwhile, a part of it may be known already.
        let known = if first <= message.last_seq {
            text.floor_char_boundary(message.told)
        } else {
            0
        };
        message.last_seq = event.session_seq;
        message.told = if known > 0 {
            text.len()
        } else {
            message.told + text.len()
        };
        let id = message.id.clone();
        pieces(&text[known..], PIECE)
            .map(|piece| update(voice, text_chunk(piece).message_id(id.clone())))
            .collect()
    }

    /// A picture, a sound or a resource within a message.
    pub(super) fn content(&mut self, event: &StreamEvent) -> Vec<SessionUpdate> {
        let voice = match event.text("role") {
            Some("thought") => Voice::Thought,
            _ => Voice::Agent,
        };
        let Some(run_id) = event.run_id else {
            return Vec::new();
        };
        let block = block_of(event.data.get("content").unwrap_or(&Value::Null));
        let Some(message) = self.continued(event, run_id, voice) else {
            return Vec::new();
        };
        message.last_seq = event.session_seq;
        let chunk = ContentChunk::new(block).message_id(message.id.clone());
        vec![update(voice, chunk)]
    }

    /// The prompt of a run that the editor hasn't sent itself.
    pub(super) fn prompt(&mut self, run_id: RunId, text: Option<&str>) -> Vec<SessionUpdate> {
        self.interrupt();
        let id = MessageId::from(format!("{run_id}/prompt"));
        pieces(text.unwrap_or_default(), PIECE)
            .map(|piece| SessionUpdate::UserMessageChunk(text_chunk(piece).message_id(id.clone())))
            .collect()
    }

    /// Something else came; what follows is another message.
    pub(super) fn interrupt(&mut self) {
        self.current = None;
    }

    /// The message that an event belongs to: the one before, or a new one.
    fn continued(
        &mut self,
        event: &StreamEvent,
        run_id: RunId,
        voice: Voice,
    ) -> Option<&mut Message> {
        let theirs = event.text("message_id");
        let goes_on = self.current.as_ref().is_some_and(|message| {
            message.run_id == run_id
                && message.voice == voice
                && message.theirs.as_deref() == theirs
        });
        if !goes_on {
            let id = match (theirs, voice) {
                (Some(theirs), Voice::Agent) => format!("{run_id}/{theirs}"),
                (Some(theirs), Voice::Thought) => format!("{run_id}/thought/{theirs}"),
                (None, _) => format!("{run_id}/{}", first_seq(event)),
            };
            self.current = Some(Message {
                run_id,
                voice,
                theirs: theirs.map(str::to_owned),
                id: MessageId::from(id),
                last_seq: 0,
                told: 0,
            });
        }
        self.current.as_mut()
    }
}

fn update(voice: Voice, chunk: ContentChunk) -> SessionUpdate {
    match voice {
        Voice::Agent => SessionUpdate::AgentMessageChunk(chunk),
        Voice::Thought => SessionUpdate::AgentThoughtChunk(chunk),
    }
}

pub(super) fn text_chunk(text: &str) -> ContentChunk {
    ContentChunk::new(ContentBlock::Text(TextContent::new(text)))
}

/// The first event that an event stands for.
fn first_seq(event: &StreamEvent) -> u64 {
    let folded = event.data.get("folded_from").and_then(Value::as_u64);
    folded.unwrap_or(event.session_seq)
}

/// Content as the log has it; what was left out of the log is named instead.
fn block_of(content: &Value) -> ContentBlock {
    serde_json::from_value(content.clone()).unwrap_or_else(|_incomplete| {
        let kind = content["type"].as_str().unwrap_or("content");
        ContentBlock::Text(TextContent::new(format!("[{kind}, too large to be kept]")))
    })
}
