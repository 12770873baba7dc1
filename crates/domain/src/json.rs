//! JSON as text. Payloads are stored and served as they came; they are parsed only where a rule
//! looks inside.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// One valid JSON value, kept as text and shared.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// Takes text that was valid when it was stored.
    pub fn from_stored(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the text; `null` where the store held something broken.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or(Value::Null)
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        Self(Arc::from(value.to_string()))
    }
}

impl From<Value> for JsonText {
    fn from(value: Value) -> Self {
        Self::from(&value)
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(Arc::from(raw.get())))
    }
}

/// Why a value can't be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unstorable {
    /// PostgreSQL can't hold U+0000 in text, so neither store takes it (stores §3).
    #[error("holds a NUL character")]
    Nul,
    /// Nested deeper than [`crate::limits::JSON_DEPTH`].
    #[error("is nested deeper than 128 levels")]
    TooDeep,
}

/// Checks that both stores can hold the value: no NUL in any text or key, bounded depth.
pub fn storable(value: &Value) -> Result<(), Unstorable> {
    walk(value, crate::limits::JSON_DEPTH)
}

/// Checks one text the way [`storable`] does.
pub fn storable_text(text: &str) -> Result<(), Unstorable> {
    if text.contains('\0') {
        Err(Unstorable::Nul)
    } else {
        Ok(())
    }
}

fn walk(value: &Value, depth: usize) -> Result<(), Unstorable> {
    let Some(left) = depth.checked_sub(1) else {
        return Err(Unstorable::TooDeep);
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => storable_text(text),
        // A parser that allows 128 levels counts the one inside an empty container too.
        Value::Array(_) | Value::Object(_) if left == 0 => Err(Unstorable::TooDeep),
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, left)),
        Value::Object(fields) => fields.iter().try_for_each(|(key, item)| {
            storable_text(key)?;
            walk(item, left)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nul_is_found_in_texts_and_keys_at_any_depth() {
        assert_eq!(storable(&json!({"a": ["b", {"c": "d"}]})), Ok(()));
        assert_eq!(storable(&json!({"a": ["b\u{0}"]})), Err(Unstorable::Nul));
        assert_eq!(storable(&json!({"a": {"k\u{0}": 1}})), Err(Unstorable::Nul));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels: usize| (1..levels).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(storable(&deep(128)), Ok(()));
        assert_eq!(storable(&deep(129)), Err(Unstorable::TooDeep));
        assert_eq!(
            JsonText::from(deep(128)).value(),
            deep(128),
            "what is stored can be read again"
        );
        let emptied = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
        assert_eq!(storable(&emptied(127)), Ok(()));
        assert_eq!(storable(&emptied(128)), Err(Unstorable::TooDeep));
        assert_eq!(JsonText::from(emptied(127)).value(), emptied(127));
    }
}
