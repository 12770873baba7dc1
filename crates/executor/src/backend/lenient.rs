//! JSON as agents write it. It owns the mend of what is JSON by its grammar and no value to us: half
//! a character, as programs write it that cut texts in the middle of one, and nesting without end.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::event::DEPTH_LIMIT;

/// What stands for half a character.
const REPLACEMENT: &str = "\\ufffd";

/// Parses a line. An escape of one half of a surrogate pair, which RFC 8259 §8.2 lets pass, becomes
/// U+FFFD. What is nested deeper than an event may be becomes a text, if it would be deeper than the
/// parser goes.
pub(super) fn parse(line: &str) -> Option<Value> {
    let parsed = serde_json::from_str(line).ok();
    parsed.or_else(|| flat(mended(line).as_deref().unwrap_or(line)))
}

/// The line with its deepest parts as texts.
fn flat(line: &str) -> Option<Value> {
    let mut source = serde_json::Deserializer::from_str(line);
    let value = Flat { depth: 0 }.deserialize(&mut source).ok()?;
    source.end().ok().map(|()| value)
}

/// A value at this depth.
#[derive(Clone, Copy)]
struct Flat {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Flat {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        if self.depth < DEPTH_LIMIT {
            return source.deserialize_any(self);
        }
        // A raw value is checked without recursion, however deep it is.
        let raw = <&RawValue>::deserialize(source)?.get();
        if raw.starts_with(['[', '{']) {
            Ok(Value::String(rendered(raw)))
        } else {
            serde_json::from_str(raw).map_err(D::Error::custom)
        }
    }
}

impl<'de> Visitor<'de> for Flat {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = Self {
            depth: self.depth + 1,
        };
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(inner)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let inner = Self {
            depth: self.depth + 1,
        };
        let mut values = Map::new();
        while let Some(name) = fields.next_key()? {
            values.insert(name, fields.next_value_seed(inner)?);
        }
        Ok(values.into())
    }
}

/// JSON with its texts escaped no more than they must be, so that a secret in them is found.
fn rendered(raw: &str) -> String {
    let mut rendered = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('"') {
        rendered.push_str(&rest[..at]);
        rest = &rest[at..];
        let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let Some(Ok(text)) = texts.next() else { break };
        rendered.push_str(&text.to_string());
        rest = &rest[texts.byte_offset()..];
    }
    rendered.push_str(rest);
    rendered
}

/// The line without halves; `None` if it has none.
fn mended(line: &str) -> Option<String> {
    let mut mended = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = line[at..].find('\\') {
        at += found;
        let Some(number) = unit(line, at) else {
            // The character after the backslash may be a backslash, or of several bytes.
            at += 1 + line[at + 1..].chars().next().map_or(0, char::len_utf8);
            continue;
        };
        let is_pair = || matches!(unit(line, at + 6), Some(0xdc00..=0xdfff));
        match number {
            0xd800..=0xdbff if is_pair() => at += 12,
            0xd800..=0xdfff => {
                mended.push_str(&line[copied..at]);
                mended.push_str(REPLACEMENT);
                at += 6;
                copied = at;
            }
            _ => at += 6,
        }
    }
    mended.push_str(&line[copied..]);
    (copied > 0).then_some(mended)
}

/// The number of the escape `\uXXXX` that begins at `at`.
fn unit(line: &str, at: usize) -> Option<u16> {
    let digits = line.get(at..at + 6)?.strip_prefix("\\u")?;
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| hex)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn halves_of_characters_are_replaced_and_whole_ones_are_kept() {
        for (line, expected) in [
            (r#"["\ud83d"]"#, json!(["\u{fffd}"])),
            (r#"["a\ude00b"]"#, json!(["a\u{fffd}b"])),
            (r#"["\ud83d\ude00"]"#, json!(["😀"])),
            (r#"["\ud83d\ud83d\ude00"]"#, json!(["\u{fffd}😀"])),
            (r#"["\ude00\ud83d"]"#, json!(["\u{fffd}\u{fffd}"])),
            (r#"["\\ud83d", "\ud83d"]"#, json!(["\\ud83d", "\u{fffd}"])),
            (r#"["\ud83d\n"]"#, json!(["\u{fffd}\n"])),
            (r#"{"\ud83d": "é\ud83d"}"#, json!({"\u{fffd}": "é\u{fffd}"})),
            (r#"["plain\u00e9"]"#, json!(["plainé"])),
        ] {
            assert_eq!(parse(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_is_no_json_stays_none() {
        for line in [
            "",
            "\\",
            "\\u",
            "\\ud83",
            "[\"\\ud83d\"",
            "\\é",
            "[\"\\ud83\"]",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    /// `[[[…]]]` around an element.
    fn nested(levels: usize, inner: &str) -> String {
        format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn what_is_nested_too_deep_becomes_a_text_and_the_rest_is_read() {
        for levels in [1, 64, 100, 126] {
            let line = nested(levels, "1");
            let plain = serde_json::from_str::<Value>(&line).unwrap();
            assert_eq!(parse(&line), Some(plain), "{levels}");
        }
        for levels in [127, 128, 200, 1_000_000] {
            let line = nested(levels, "1");
            let read = parse(&format!(r#"{{"a": {line}, "b": [-1, 2.5, null, true]}}"#)).unwrap();
            assert_eq!(read["b"], json!([-1, 2.5, null, true]), "{levels}");
            let mut cut = &read["a"];
            let mut around = 1;
            while let Value::Array(items) = cut {
                cut = &items[0];
                around += 1;
            }
            assert_eq!(around, DEPTH_LIMIT);
            let left = levels - (DEPTH_LIMIT - 1);
            assert_eq!(cut.as_str().unwrap(), nested(left, "1"), "{levels}");
        }
        assert_eq!(parse(&nested(64, "[")), None);
        assert_eq!(parse(&"[".repeat(1_000_000)), None);
        assert_eq!(parse(&format!("{} x", nested(200, "1"))), None);
    }

    #[test]
    fn texts_in_deep_parts_are_written_plainly() {
        let line = nested(200, r#"{"k\u0065y": "a\/b \u00e9 \" \ud83d"}"#);
        let read = parse(&line).unwrap().to_string();
        let inner = json!(json!({"key": "a/b é \" \u{fffd}"}).to_string()).to_string();
        let inner = inner.trim_matches('"').replace(':', ": ");
        assert!(read.contains(&inner), "{read} / {inner}");
    }

    proptest! {
        /// Whatever stands around them, each half is one replacement, and nothing else changes.
        #[test]
        fn a_text_of_any_utf_16_is_read_as_it_would_be_lossily(units in prop::collection::vec(any::<u16>(), 0..40)) {
            let escape = |unit: &u16| format!("\\u{unit:04x}");
            let escaped = units.iter().map(escape).collect::<Vec<_>>().concat();
            let expected = Value::String(String::from_utf16_lossy(&units));
            prop_assert_eq!(parse(&format!("\"{escaped}\"")), Some(expected));
        }
    }
}
