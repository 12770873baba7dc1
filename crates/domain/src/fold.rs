//! Folds: consecutive deltas of one message become one event at the last of their numbers (rules
//! R20). It only decides; it never looks at anything but the events, and what it decides leaves the
//! tape, every number and everything a reader puts together from the pieces as they were.

use std::slice;

use serde_json::{Map, Value};

use crate::event::{EventRecord, uploaded};
use crate::id::RunId;
use crate::json::JsonText;
use crate::limits;
use crate::tape::{TapeState, project};

/// One event that takes the place of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// The first number it stands for.
    pub first_seq: u64,
    /// The last one, which is its own: the event with this number keeps its id and its times.
    pub last_seq: u64,
    /// Stored events before the last one that it swallows.
    pub swallowed: u64,
    /// The merged payload.
    pub payload: JsonText,
}

/// The place was folded past meanwhile, by another instance: begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overtaken;

/// How far a settled run's part of the log has been looked at. A run is looked at in steps of any
/// size, and the folds are the same whatever the size: a message that a step cuts is taken up again
/// by the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folding {
    run_id: RunId,
    after: u64,
    /// The tape as it grows from the run's admission: a message that the tape cuts is cut here, too,
    /// so that the folded log gives the same tape.
    tape: TapeState,
}

impl Folding {
    /// Begins at the event that admits the run.
    pub fn new(run_id: RunId, admitted_seq: u64) -> Self {
        let after = admitted_seq.saturating_sub(1);
        Self {
            run_id,
            after,
            tape: TapeState {
                tape_seq: after,
                ..TapeState::default()
            },
        }
    }

    /// The next step reads the events after this number.
    pub const fn after(&self) -> u64 {
        self.after
    }

    /// Takes the next events of the log, in order and without gaps, other runs' among them. No fold
    /// spans a number of `cuts`, which are sorted: something else begins right after it. `is_last`
    /// says that the run ends with these events.
    pub fn take(
        &mut self,
        events: &[EventRecord],
        cuts: &[u64],
        is_last: bool,
    ) -> Result<Vec<Fold>, Overtaken> {
        let Some(first) = events.first() else {
            return Ok(Vec::new());
        };
        if first.first_seq() != self.after + 1 {
            return Err(Overtaken);
        }
        let before = self.tape.clone();
        let mut folds = Vec::new();
        let mut row: Option<Row> = None;
        let mut row_at = events.len();
        for (index, event) in events.iter().enumerate() {
            let piece = self.look(event);
            match (&mut row, piece) {
                (Some(row), Some(piece)) if row.continues(&piece, cuts) => row.push(piece),
                (_, piece) => {
                    folds.extend(row.take().and_then(Row::folded));
                    row_at = if piece.is_some() { index } else { events.len() };
                    row = piece.map(Row::new);
                }
            }
        }
        folds.extend(row.and_then(Row::folded));
        // What the last row of a step belongs to may go on. A single event that nothing could be
        // compared with is passed, so that every step gets on.
        if is_last || (row_at == 0 && folds.is_empty()) {
            row_at = events.len();
        }
        if row_at < events.len() {
            self.tape = before;
            project(&mut self.tape, &events[..row_at]);
        }
        if let Some(event) = row_at.checked_sub(1).and_then(|index| events.get(index)) {
            self.after = event.session_seq;
        }
        Ok(folds)
    }

    /// Moves the tape over one event and says what of a message it is.
    fn look<'a>(&mut self, event: &'a EventRecord) -> Option<Piece<'a>> {
        let mut piece = if event.run_id == Some(self.run_id) {
            Piece::of(event)
        } else {
            None
        };
        let call_id = piece.as_ref().and_then(Piece::result_of);
        let result_bytes = |tape: &TapeState| {
            let mut open = tape.open_calls.values();
            let open = open.find(|open| Some(open.call_id.as_str()) == call_id.as_deref())?;
            Some(open.result.as_ref()?.len())
        };
        let text_at = |tape: &TapeState| tape.open_text.as_ref().map(|open| open.first_seq);
        let (text_before, result_before) = (text_at(&self.tape), result_bytes(&self.tape));
        project(&mut self.tape, slice::from_ref(event));
        let (text_after, result_after) = (text_at(&self.tape), result_bytes(&self.tape));
        if let Some(piece) = &mut piece {
            piece.begins_message = text_before != text_after;
            piece.is_dropped = result_before == result_after && !piece.text.is_empty();
        }
        piece
    }
}

/// What of a payload is put together, and what must be the same for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The text of an answer or a thought; the other fields are those of the last piece.
    Message(&'static str),
    /// A tool's output. What is said beside it must not differ.
    Output(&'static str),
    /// A description of a call; later fields replace earlier ones.
    Call,
}

/// One delta.
struct Piece<'a> {
    event: &'a EventRecord,
    form: Form,
    /// Without its text.
    fields: Map<String, Value>,
    text: String,
    /// Whether a new entry of the tape begins with it.
    begins_message: bool,
    /// Whether the tape has no room left for it.
    is_dropped: bool,
}

impl<'a> Piece<'a> {
    fn of(event: &'a EventRecord) -> Option<Self> {
        let form = match event.kind.as_str() {
            uploaded::STREAM_DELTA => Form::Message("content"),
            uploaded::THINKING_DELTA => Form::Message("text"),
            uploaded::TOOL_RESULT_DELTA => Form::Output("display_result"),
            uploaded::TOOL_CALL_DELTA => Form::Call,
            _ => return None,
        };
        let Value::Object(mut fields) = event.payload.value() else {
            return None;
        };
        let text = match form {
            Form::Message(field) | Form::Output(field) => match fields.remove(field) {
                Some(Value::String(text)) => text,
                Some(_) | None => return None,
            },
            Form::Call => String::new(),
        };
        // Arguments that come as text may be pieces, which nobody could put together afterwards.
        let whole = |name| {
            matches!(
                fields.get(name),
                None | Some(Value::Null | Value::Object(_))
            )
        };
        let named = fields.get("call_id").is_some_and(Value::is_string);
        match form {
            Form::Output(_) if !named => return None,
            Form::Call if !named || !whole("arguments") => return None,
            Form::Message(_) | Form::Output(_) | Form::Call => {}
        }
        Some(Self {
            event,
            form,
            fields,
            text,
            begins_message: false,
            is_dropped: false,
        })
    }

    /// The call whose output it is.
    fn result_of(&self) -> Option<String> {
        match self.form {
            Form::Output(_) => self.fields.get("call_id")?.as_str().map(str::to_owned),
            Form::Message(_) | Form::Call => None,
        }
    }

    fn is_same_message(&self, next: &Self) -> bool {
        let same = |name| self.fields.get(name) == next.fields.get(name);
        match next.form {
            Form::Message(_) => !next.begins_message && same("message_id") && same("role"),
            Form::Output(_) => self.is_dropped == next.is_dropped && self.fields == next.fields,
            Form::Call => same("call_id"),
        }
    }
}

/// Deltas of one message that follow each other.
struct Row<'a> {
    first_seq: u64,
    events: u64,
    /// Bytes that the text has as JSON.
    text_bytes: usize,
    /// The last piece, with the text and the fields of all.
    merged: Piece<'a>,
}

impl<'a> Row<'a> {
    fn new(piece: Piece<'a>) -> Self {
        Self {
            first_seq: piece.event.first_seq(),
            events: 1,
            text_bytes: json_bytes(&piece.text),
            merged: piece,
        }
    }

    fn continues(&self, next: &Piece<'_>, cuts: &[u64]) -> bool {
        let (last, event) = (self.merged.event, next.event);
        event.first_seq() == last.session_seq + 1
            && cuts.binary_search(&last.session_seq).is_err()
            && event.kind == last.kind
            && event.attempt == last.attempt
            && event.executor_id == last.executor_id
            && event.trace_id == last.trace_id
            && self.merged.is_same_message(next)
            && self.has_room(next)
    }

    fn has_room(&self, next: &Piece<'_>) -> bool {
        let bytes = match next.form {
            Form::Message(_) | Form::Output(_) => {
                self.text_bytes + next.event.payload.as_str().len()
            }
            Form::Call => fields_bytes(&overlaid(self.merged.fields.clone(), &next.fields)),
        };
        let shown = self.merged.text.len() + next.text.len();
        // People see so much of an output's piece, so a longer piece would show less of the whole.
        let is_shown =
            !matches!(next.form, Form::Output(_)) || shown <= limits::DISPLAY_OUTPUT_BYTES;
        bytes <= limits::EVENT_BYTES && is_shown
    }

    fn push(&mut self, next: Piece<'a>) {
        self.events += 1;
        self.text_bytes += json_bytes(&next.text);
        let merged = &mut self.merged;
        merged.event = next.event;
        merged.text.push_str(&next.text);
        merged.fields = match next.form {
            Form::Message(_) | Form::Output(_) => next.fields,
            Form::Call => overlaid(std::mem::take(&mut merged.fields), &next.fields),
        };
    }

    /// Its fold; a row of one is left alone.
    fn folded(self) -> Option<Fold> {
        if self.events < 2 {
            return None;
        }
        let Piece {
            event,
            form,
            mut fields,
            text,
            ..
        } = self.merged;
        match form {
            Form::Message(field) | Form::Output(field) => {
                fields.insert(field.to_owned(), Value::String(text));
            }
            Form::Call => {}
        }
        Some(Fold {
            first_seq: self.first_seq,
            last_seq: event.session_seq,
            swallowed: self.events - 1,
            payload: Value::Object(fields).into(),
        })
    }
}

/// The earlier fields under the later ones. What says nothing replaces nothing, as on the tape.
fn overlaid(mut fields: Map<String, Value>, later: &Map<String, Value>) -> Map<String, Value> {
    for (name, value) in later {
        let says_nothing = match value {
            Value::Null => true,
            Value::String(text) => name == "tool_name" && text.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                name == "tool_name"
            }
        };
        if !says_nothing || !fields.contains_key(name) {
            fields.insert(name.clone(), value.clone());
        }
    }
    fields
}

fn fields_bytes(fields: &Map<String, Value>) -> usize {
    serde_json::to_string(fields).map_or(usize::MAX, |text| text.len())
}

/// What a text adds to a JSON string that it is appended to.
fn json_bytes(text: &str) -> usize {
    let quotes = 2;
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len() - quotes)
}

#[cfg(test)]
mod tests;
