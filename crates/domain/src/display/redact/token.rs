//! Tokens that tell by themselves what they are: by a prefix of their issuer, or by the word before.

use std::ops::Range;

use super::{after_spaces, ended, word_at};

/// A token that its prefix tells.
struct Shape {
    prefix: &'static str,
    /// What may follow beside letters and digits.
    more: &'static [u8],
    /// What must follow, at least.
    least: usize,
    /// Whether what follows is a token and not a word.
    is_token: fn(&str) -> bool,
}

const fn shape(prefix: &'static str, more: &'static [u8], least: usize) -> Shape {
    checked(prefix, more, least, |_| true)
}

const fn checked(
    prefix: &'static str,
    more: &'static [u8],
    least: usize,
    is_token: fn(&str) -> bool,
) -> Shape {
    Shape {
        prefix,
        more,
        least,
        is_token,
    }
}

const SHAPES: &[Shape] = &[
    checked("sk-", b"-_", 16, looks_random),
    shape("sk_live_", b"", 10),
    shape("sk_test_", b"", 10),
    shape("rk_live_", b"", 10),
    shape("ghp_", b"", 20),
    shape("gho_", b"", 20),
    shape("ghu_", b"", 20),
    shape("ghs_", b"", 20),
    shape("ghr_", b"", 20),
    shape("github_pat_", b"_", 20),
    shape("glpat-", b"-_", 16),
    shape("xoxa-", b"-", 10),
    shape("xoxb-", b"-", 10),
    shape("xoxp-", b"-", 10),
    shape("xoxr-", b"-", 10),
    shape("xoxs-", b"-", 10),
    shape("npm_", b"", 30),
    shape("hf_", b"", 30),
    shape("tdk_", b"", 30),
    shape("AIza", b"-_", 30),
    checked("AKIA", b"", 16, is_aws_id),
    checked("ASIA", b"", 16, is_aws_id),
    checked("eyJ", b"-_.", 20, |body| body.matches('.').count() >= 2),
];

/// Words joined by hyphens are no token.
fn looks_random(body: &str) -> bool {
    let mixed = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    body.bytes().any(mixed) || body.split(['-', '_']).any(|part| part.len() >= 16)
}

fn is_aws_id(body: &str) -> bool {
    let capital = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    body.len() == 16 && body.bytes().all(capital)
}

pub(super) fn shaped(text: &str, at: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    if at > 0 && bytes[at - 1].is_ascii_alphanumeric() {
        return None;
    }
    let rest = &bytes[at..];
    let known = |shape: &&Shape| rest.starts_with(shape.prefix.as_bytes());
    SHAPES.iter().filter(known).find_map(|shape| {
        let of_token = |byte: u8| byte.is_ascii_alphanumeric() || shape.more.contains(&byte);
        let start = at + shape.prefix.len();
        let end = ended(text, start, of_token, |body| {
            body.len() >= shape.least && (shape.is_token)(body)
        })?;
        Some(at..end)
    })
}

/// `Bearer TOKEN` without its header's name.
pub(super) fn bearer(text: &str, at: usize) -> Option<Range<usize>> {
    if !word_at(text, at, "bearer") {
        return None;
    }
    let start = after_spaces(text, at + "bearer".len());
    if start == at + "bearer".len() {
        return None;
    }
    let of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let end = ended(text, start, of_token, |token| {
        token.len() >= 8 && looks_random(token)
    })?;
    Some(start..end)
}
