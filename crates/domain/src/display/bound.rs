//! Cuts what tools were given and gave to a size that people read. A cut is at a character's end and
//! the size before it is told; nothing is cut that fits.

use serde_json::Value;

use crate::limits::DISPLAY_OUTPUT_BYTES;

/// A value that fits, and its size as JSON if it did not.
pub(crate) struct Bounded {
    pub(crate) value: Value,
    pub(crate) original_bytes: Option<usize>,
}

impl Bounded {
    pub(crate) const fn is_cut(&self) -> bool {
        self.original_bytes.is_some()
    }
}

/// The beginning of a text, and its size if more was there.
pub(crate) fn cut(text: &str) -> (&str, Option<usize>) {
    if text.len() <= DISPLAY_OUTPUT_BYTES {
        return (text, None);
    }
    let end = text.floor_char_boundary(DISPLAY_OUTPUT_BYTES);
    (&text[..end], Some(text.len()))
}

/// The value with its longest texts cut until the whole fits; where it is not texts that fill it,
/// the beginning of its JSON.
pub(crate) fn bounded(value: &Value) -> Bounded {
    let json = value.to_string();
    if json.len() <= DISPLAY_OUTPUT_BYTES {
        return Bounded {
            value: value.clone(),
            original_bytes: None,
        };
    }
    let mut limit = DISPLAY_OUTPUT_BYTES / 2;
    let mut shorter = value.clone();
    while limit >= SHORTEST_CUT {
        cut_texts(&mut shorter, limit);
        if shorter.to_string().len() <= DISPLAY_OUTPUT_BYTES {
            return Bounded {
                value: shorter,
                original_bytes: Some(json.len()),
            };
        }
        limit /= 2;
    }
    let (start, original_bytes) = cut(&json);
    Bounded {
        value: start.into(),
        original_bytes,
    }
}

/// A text cut further than this says nothing any more.
const SHORTEST_CUT: usize = 256;

fn cut_texts(value: &mut Value, limit: usize) {
    match value {
        Value::String(text) => text.truncate(text.floor_char_boundary(limit)),
        Value::Array(items) => items.iter_mut().for_each(|item| cut_texts(item, limit)),
        Value::Object(fields) => fields.values_mut().for_each(|item| cut_texts(item, limit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
