use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::pair::NAMES;
use super::*;
use crate::fixture::cases;

const AWS: &str = "AKIAIOSFODNN7EXAMPLE";
const GITHUB: &str = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
const OPENAI: &str = "sk-proj-abcDEF0123456789abcdef";
const KEY: &str =
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----";

#[track_caller]
fn becomes(input: &str, expected: &str) {
    assert_eq!(text(input), expected, "from `{input}`");
    assert_eq!(text(expected), expected, "again");
}

#[test]
fn secrets_of_known_shapes_are_replaced_and_what_stands_around_them_stays() {
    for token in [
        AWS,
        GITHUB,
        OPENAI,
        "github_pat_11ABCDEFG0123456789_abcdefghijkl",
        "sk-ant-api03-AbCdEf0123456789",
        "sk-abcdefghijklmnopqrstuvwx",
        "glpat-abcDEF0123456789xyzw",
        "xoxb-123456789012-abcdefghij",
        "sk_live_abcdef0123456789",
        "AIzaSyA0123456789abcdefghijklmnopqrstuvw",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        KEY,
    ] {
        for (before, after) in [("", ""), ("see ", "."), ("é\"", "\" é"), ("(", ")\nnext")] {
            becomes(
                &format!("{before}{token}{after}"),
                &format!("{before}{MARK}{after}"),
            );
        }
    }
}

#[test]
fn credentials_in_headers_are_replaced() {
    becomes(
        "Authorization: Bearer abc.def-123",
        "Authorization: Bearer [redacted]",
    );
    becomes(
        "curl -H 'authorization: Basic dXNlcg==' https://x",
        "curl -H 'authorization: Basic [redacted]' https://x",
    );
    becomes(
        "proxy-authorization: abc12345",
        "proxy-authorization: [redacted]",
    );
    becomes(
        r#"{"Authorization": "token abc"}"#,
        r#"{"Authorization": "[redacted]"}"#,
    );
    becomes("sent Bearer abcdef0123456789", "sent Bearer [redacted]");
    becomes("X-Api-Key: 0123456789", "X-Api-Key: [redacted]");
}

#[test]
fn values_of_secret_names_are_replaced() {
    for (input, expected) in [
        ("password=hunter2", "password=[redacted]"),
        (
            "DB_PASSWORD=correct-horse\nX=1",
            "DB_PASSWORD=[redacted]\nX=1",
        ),
        ("--token=abc --verbose", "--token=[redacted] --verbose"),
        ("?api_key=k&page=2", "?api_key=[redacted]&page=2"),
        ("apiKey: \"k\", n: 1", "apiKey: \"[redacted]\", n: 1"),
        ("password: 'a b'", "password: '[redacted]'"),
        ("password: hunter2", "password: [redacted]"),
        (
            r#"{"token":"a\"b","n":1}"#,
            r#"{"token":"[redacted]","n":1}"#,
        ),
        (
            r#"{\"token\":\"abc\",\"n\":1}"#,
            r#"{\"token\":\"[redacted]\",\"n\":1}"#,
        ),
        ("secret = \"x", "secret = \"[redacted]"),
        ("postgres://app:pw@db/x", "postgres://app:[redacted]@db/x"),
        (
            "https://ghp_0123456789abcdefghij:x@github.com",
            "https://[redacted]@github.com",
        ),
    ] {
        becomes(input, expected);
    }
}

#[test]
fn a_key_in_a_value_is_replaced_to_its_end() {
    becomes(
        &format!("private_key: \"{KEY}\""),
        "private_key: \"[redacted]\"",
    );
    becomes(&format!("private_key={KEY} x"), "private_key=[redacted] x");
    let cut_off = &KEY[..50];
    becomes(&format!("a {cut_off}"), "a [redacted]");
}

#[test]
fn code_and_prose_about_secrets_stay() {
    for same in [
        "",
        "The bearer authentication of sk-learn-contrib-package is described below.",
        "let token = self.next_token();",
        "fn with(token: String, secret: &str, id: u64, token: uint64) -> Token",
        "max_tokens=4096, password_hash=abc123456",
        "if token == expected1234 { token::new(1234567) }",
        "password=None token=null API_KEY=$API_KEY secret=${SECRET} token=<token1234567>",
        "token: \"{{ token }}\" password: \"\"",
        "token = parse_v2_tokens(input)",
        "authorization: required",
        "https://example.com:8080/a@b and user@host",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "AKIA is a prefix; ghp_short; eyJhbGciOiJIUzI1NiJ9",
        "ünï 日本語 🦀",
    ] {
        assert!(matches!(text(same), Cow::Borrowed(_)), "{same}");
    }
}

#[test]
fn json_is_cleaned_in_texts_and_by_the_names_of_its_fields() {
    let mut value = json!({
        "command": "curl -H 'Authorization: Bearer abc'",
        "env": {"GITHUB_TOKEN": "x", "PATH": "/bin", "pin_token": 1234, "token": null, "secret": ""},
        "client-secret": ["a", 1, true],
        "schema": {"properties": {"password": {"type": "string"}}},
        "list": [{"apiKey": "k"}, AWS, 7],
        "password": "$PASSWORD",
        GITHUB: 1,
    });
    let expected = json!({
        "command": "curl -H 'Authorization: Bearer [redacted]'",
        "env": {"GITHUB_TOKEN": MARK, "PATH": "/bin", "pin_token": MARK, "token": null, "secret": ""},
        "client-secret": [MARK, MARK, true],
        "schema": {"properties": {"password": {"type": "string"}}},
        "list": [{"apiKey": MARK}, MARK, 7],
        "password": "$PASSWORD",
        MARK: 1,
    });
    json(&mut value);
    assert_eq!(value, expected);
    json(&mut value);
    assert_eq!(value, expected, "again");
}

/// Texts that come close to every shape, with what the shapes are made of.
fn shapes() -> impl Strategy<Value = String> {
    let pieces = [
        "password",
        "token",
        "API_KEY",
        "api-key",
        "authorization",
        "secret",
        "Bearer",
        "basic",
        "sk-",
        "ghp_",
        "github_pat_",
        "AKIA",
        "eyJ",
        "abcdefghijklmnopqrstuvwxyz",
        "ABCDEFGHIJKLMNOP",
        "0123456789",
        "a1",
        "://",
        "u:p@",
        "-----BEGIN ",
        "RSA PRIVATE KEY",
        "-----",
        "-----END ",
        "=",
        ":",
        ":=",
        "=>",
        "==",
        "::",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\"",
        "'",
        "`",
        "\\",
        "\\\"",
        ",",
        "&",
        ";",
        "(",
        ")",
        "[",
        "]",
        "{",
        "{{",
        "}",
        "<",
        ">",
        "$",
        "$x",
        "$1",
        "-",
        "_",
        ".",
        "/",
        "@",
        "é",
        "日",
        "🦀",
        MARK,
        "none",
        "null",
        AWS,
        GITHUB,
        OPENAI,
        KEY,
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..24)
        .prop_map(|pieces| pieces.concat())
}

/// Values that hold such texts, as names too.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        shapes().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((shapes(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn cleaning_twice_is_cleaning_once(input in shapes()) {
        let once = text(&input).into_owned();
        prop_assert_eq!(text(&once), once.as_str());
    }

    #[test]
    fn any_text_can_be_cleaned(input in any::<String>()) {
        let once = text(&input).into_owned();
        prop_assert_eq!(text(&once), once.as_str());
    }

    #[test]
    fn what_is_planted_is_gone(before in shapes(), after in shapes(), token in prop::sample::select(vec![GITHUB, AWS, OPENAI])) {
        let input = format!("{before} {token} {after}");
        let clean = text(&input);
        // What stands there already may not be recognisable, e.g. within a longer word.
        let elsewhere = before.matches(token).count() + after.matches(token).count();
        prop_assert!(clean.matches(token).count() <= elsewhere, "{}", clean);
    }

    #[test]
    fn texts_without_a_sign_of_a_secret_stay(input in "([a-z]{1,8}|[0-9]{1,8}| |\n|[.,;(){}])*") {
        prop_assume!(!NAMES.iter().any(|name| input.contains(name)) && !input.contains("bearer"));
        prop_assert_eq!(text(&input), input.as_str());
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn cleaning_json_twice_is_cleaning_it_once(mut value in values()) {
        json(&mut value);
        let once = value.clone();
        json(&mut value);
        prop_assert_eq!(value, once);
    }
}

/// A scan that looks at its whole rest again at each of these would take minutes.
#[test]
fn long_texts_take_linear_time() {
    for piece in [
        "sk-",
        "eyJ-",
        "eyJ.",
        "token:",
        "token=$",
        "token=\"<",
        "token: '<token: \"<",
        "Bearer ",
        "://a:",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY",
        "authorization:basic ",
        "\\",
        "a",
        "é",
        "token=\\\"$",
        "ghp_",
    ] {
        let input = piece.repeat(400_000 / piece.len());
        let begun = Instant::now();
        text(&input);
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(20), "`{piece}`: {taken:?}");
    }
}
