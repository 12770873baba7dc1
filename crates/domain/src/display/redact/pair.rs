//! Values that a name before them makes secret: in settings, headers, JSON and code. Code speaks of
//! tokens more often than it holds one, so a value without quotes must look like one there.

use std::ops::Range;

use super::{MARK, after_spaces, ended, run, word_at};

/// Names of secrets, as they end: `client_secret`, `githubToken`, `X-Api-Key`.
pub(super) const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "private-key",
    "privatekey",
    "secret_key",
    "secret-key",
    "secretkey",
    AUTHORIZATION,
];

const AUTHORIZATION: &str = "authorization";

/// What may stand before the credential in an `Authorization` header.
const SCHEMES: &[&str] = &["bearer", "basic", "token", "apikey", "digest", "negotiate"];

pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.trim_end();
    NAMES.iter().any(|secret| {
        let start = name.len().checked_sub(secret.len());
        start.is_some_and(|start| word_at(name, start, secret))
    })
}

/// How sure a pair's writing makes that its value is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// `name=value`.
    Tight,
    /// `name: value`, which in code is a type or an expression as often.
    Loose,
}

/// `password=…`, `"token": "…"`, `Authorization: Basic …`: the value.
pub(super) fn pair(text: &str, at: usize) -> Option<Range<usize>> {
    let name = NAMES.iter().find(|name| word_at(text, at, name))?;
    let named = at + name.len();
    let unquoted = after_quote(text, named).map_or(named, |(after, _)| after);
    let sign = after_spaces(text, unquoted);
    let rest = &text[sign..];
    let length = match rest.as_bytes() {
        [b':', b'=', ..] | [b'=', b'>', ..] => 2,
        [b'=', b'=', ..] | [b':', b':', ..] => return None,
        [b'=' | b':', ..] => 1,
        _ => return None,
    };
    let start = after_spaces(text, sign + length);
    let tight = rest.starts_with('=') && length == 1 && sign == named && start == sign + 1;
    let writing = if tight {
        Writing::Tight
    } else {
        Writing::Loose
    };
    if let Some((inside, quote)) = after_quote(text, start) {
        return quoted(text, inside, quote);
    }
    if *name == AUTHORIZATION
        && let Some(scheme) = SCHEMES.iter().find(|scheme| word_at(text, start, scheme))
    {
        let after = start + scheme.len();
        let credential = after_spaces(text, after);
        if credential > after {
            return bare(text, credential, Writing::Tight);
        }
    }
    bare(text, start, writing)
}

/// A quotation mark, and whether it is written inside another quotation.
#[derive(Clone, Copy)]
struct Quote {
    mark: u8,
    escaped: bool,
}

/// Past a quotation mark, if there is one.
fn after_quote(text: &str, at: usize) -> Option<(usize, Quote)> {
    let rest = &text.as_bytes()[at..];
    let slashes = run(&rest[..rest.len().min(3)], |byte| byte == b'\\');
    let mark = *rest.get(slashes)?;
    let quote = Quote {
        mark,
        escaped: slashes > 0,
    };
    matches!(mark, b'"' | b'\'' | b'`').then_some((at + slashes + 1, quote))
}

/// What is quoted, up to the closing mark or the line's end.
fn quoted(text: &str, start: usize, quote: Quote) -> Option<Range<usize>> {
    let content = &text[start..];
    if is_reference(content) || content.starts_with(MARK) {
        return None;
    }
    let bytes = content.as_bytes();
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        match *byte {
            b'\n' | b'\r' => break,
            b'\\' if quote.escaped => break,
            // Whatever is escaped belongs to the value, but for a line's end.
            b'\\' if !matches!(bytes.get(length + 1), None | Some(b'\n' | b'\r')) => length += 2,
            mark if mark == quote.mark => break,
            _ => length += 1,
        }
    }
    (length > 0).then_some(start..start + length)
}

/// A value without quotes.
fn bare(text: &str, start: usize, writing: Writing) -> Option<Range<usize>> {
    if is_reference(&text[start..]) {
        return None;
    }
    let class = |byte: u8| byte > b' ' && byte != 0x7f && !b"\"'`\\,;&|()[]{}<>".contains(&byte);
    let end = ended(text, start, class, |value| match writing {
        Writing::Tight => !value.is_empty() && !is_keyword(value),
        Writing::Loose => {
            let next = text[start + value.len()..].trim_start_matches('.');
            let is_expression = next.starts_with(['(', '[']);
            let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
            value.len() >= 7 && has_digit && !is_expression
        }
    })?;
    Some(start..end)
}

/// `$TOKEN`, `${TOKEN}`, `$(cat token)`, `{{ token }}`, `<your token>`: where a secret is to be put
/// in. A hash of a password begins with `$` and a digit.
pub(super) fn is_reference(value: &str) -> bool {
    match value.as_bytes() {
        [b'$', next, ..] => !next.is_ascii_digit(),
        [b'<', ..] | [b'{', b'{', ..] => true,
        _ => false,
    }
}

fn is_keyword(value: &str) -> bool {
    const KEYWORDS: &[&str] = &["none", "null", "nil", "true", "false", "undefined"];
    KEYWORDS
        .iter()
        .any(|keyword| value.eq_ignore_ascii_case(keyword))
}
