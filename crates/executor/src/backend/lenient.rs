//! JSON as agents write it. It owns the mend of what is JSON by its grammar and no text: half a
//! character, as programs write it that cut texts in the middle of one.

use serde_json::Value;

/// What stands for half a character.
const REPLACEMENT: &str = "\\ufffd";

/// Parses a line. An escape of one half of a surrogate pair, which RFC 8259 §8.2 lets pass, becomes
/// U+FFFD.
pub(super) fn parse(line: &str) -> Option<Value> {
    let parsed = serde_json::from_str(line).ok();
    parsed.or_else(|| serde_json::from_str(&mended(line)?).ok())
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
