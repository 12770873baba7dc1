//! Replaces secrets of well-known shapes by [`MARK`]: credentials in headers, URLs and name–value
//! pairs, tokens with a telling prefix, private keys. One pass over the text whose every look-ahead
//! is bounded or consumed, so its time is linear. It guards what people look at and pass on; it
//! can't know a secret without a shape, nor one that two events share.

mod pair;
mod token;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value};

use pair::{is_reference, is_secret_name, pair};
use token::{bearer, shaped};

/// What stands where a secret was.
pub const MARK: &str = "[redacted]";

/// The text without secrets; borrowed if there are none.
pub fn text(text: &str) -> Cow<'_, str> {
    let mut clean = String::new();
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        let Some(secret) = secret_at(text, at) else {
            at += 1;
            continue;
        };
        clean.push_str(&text[copied..secret.start]);
        clean.push_str(MARK);
        copied = secret.end;
        at = secret.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    clean.push_str(&text[copied..]);
    Cow::Owned(clean)
}

/// Cleans every text of a JSON value, names too, and empties the fields whose names say secret.
pub fn json(value: &mut Value) {
    match value {
        Value::String(content) => {
            if let Cow::Owned(clean) = text(content) {
                *content = clean;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(json),
        Value::Object(fields) => {
            let old: Map<String, Value> = std::mem::take(fields);
            fields.extend(old.into_iter().map(|(name, mut item)| {
                if is_secret_name(&name) {
                    hide(&mut item);
                } else {
                    json(&mut item);
                }
                match text(&name) {
                    Cow::Borrowed(_) => (name, item),
                    Cow::Owned(clean) => (clean, item),
                }
            }));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Hides a value whose name says secret. An object under such a name describes more often than it
/// holds: a schema's property `password` is `{"type": "string"}`.
fn hide(value: &mut Value) {
    match value {
        Value::String(content) if content.is_empty() || is_reference(content) => json(value),
        Value::String(_) | Value::Number(_) => *value = MARK.into(),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(_) => json(value),
        Value::Null | Value::Bool(_) => {}
    }
}

/// The secret that begins with what stands here.
fn secret_at(text: &str, at: usize) -> Option<Range<usize>> {
    let byte = *text.as_bytes().get(at)?;
    let secret = match byte {
        b'-' => private_key(text, at),
        b':' => url_password(text, at),
        _ => word(text, at),
    }?;
    // A value may be the first line of a key.
    let begin = text[secret.clone()].find("-----BEGIN");
    let key = begin.and_then(|begin| private_key(text, secret.start + begin));
    let end = key.map_or(secret.end, |key| key.end.max(secret.end));
    Some(secret.start..end)
}

/// The secret that a word begins or announces.
fn word(text: &str, at: usize) -> Option<Range<usize>> {
    if !text.as_bytes().get(at)?.is_ascii_alphabetic() {
        return None;
    }
    shaped(text, at)
        .or_else(|| bearer(text, at))
        .or_else(|| pair(text, at))
}

/// A private key's block, to its end or, where that was cut off, the text's.
fn private_key(text: &str, at: usize) -> Option<Range<usize>> {
    const LABEL: usize = 48;
    let label = text.get(at..)?.strip_prefix("-----BEGIN ")?;
    let head = label.as_bytes();
    let head = &head[..head.len().min(LABEL)];
    let length = run(head, |byte| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' '
    });
    if !label[..length].contains("PRIVATE KEY") {
        return None;
    }
    let rest = &label[length..];
    let end = rest.find("-----END ").map_or(text.len(), |start| {
        let tail = &rest[start + "-----END ".len()..];
        let close = tail
            .find("-----")
            .map_or(tail.len(), |close| close + "-----".len());
        text.len() - tail.len() + close
    });
    Some(at..end)
}

/// `scheme://user:password@host`: the password, and the user where that holds a secret itself.
fn url_password(text: &str, at: usize) -> Option<Range<usize>> {
    const USER: usize = 128;
    const PASSWORD: usize = 512;
    let part = |from: usize, most: usize| {
        let bytes = text.as_bytes().get(from..)?;
        let bytes = &bytes[..bytes.len().min(most)];
        Some(run(bytes, |byte| {
            byte > b' ' && !b"/@\"'`<>[]\\:".contains(&byte)
        }))
    };
    let is = |place: usize, mark: u8| text.as_bytes().get(place) == Some(&mark);
    text.get(at..)?.strip_prefix("://")?;
    let user = at + 3;
    let colon = user + part(user, USER)?;
    let password = colon + 1;
    if !is(colon, b':') {
        return None;
    }
    let end = password + part(password, PASSWORD)?;
    if end == password || !is(end, b'@') {
        return None;
    }
    let is_secret = (user..colon).any(|place| word(text, place).is_some());
    Some(if is_secret { user } else { password }..end)
}

/// How many bytes from the beginning are of a class.
fn run(bytes: &[u8], class: impl Fn(u8) -> bool) -> usize {
    bytes
        .iter()
        .position(|byte| !class(*byte))
        .unwrap_or(bytes.len())
}

/// Whether the text goes on with this lower-case word, in any case.
fn word_at(text: &str, at: usize, word: &str) -> bool {
    let found = text.as_bytes().get(at..at + word.len());
    found.is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
}

/// Longer runs are no words, whatever they look like; so looking at one costs this much at most.
const LONGEST_WORD: usize = 512;

/// The end of the run that starts here, if it is a secret: judged by its look, or longer than words
/// are.
fn ended(
    text: &str,
    start: usize,
    class: impl Fn(u8) -> bool,
    is_secret: impl Fn(&str) -> bool,
) -> Option<usize> {
    let bytes = text.as_bytes().get(start..)?;
    let length = run(&bytes[..bytes.len().min(LONGEST_WORD)], &class);
    if length == LONGEST_WORD {
        return Some(start + run(bytes, class));
    }
    // A full stop ends the sentence, not the secret.
    let body = text.get(start..start + length)?.trim_end_matches('.');
    is_secret(body).then_some(start + body.len())
}

/// Past a few blanks.
fn after_spaces(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    at + run(&rest[..rest.len().min(4)], |byte| {
        byte == b' ' || byte == b'\t'
    })
}

#[cfg(test)]
mod tests;
