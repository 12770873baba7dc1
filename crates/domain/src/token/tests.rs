use super::*;
use uuid::Uuid;

const NOW: Timestamp = Timestamp(1_000_000);

fn terms(role: Role) -> TokenTerms {
    TokenTerms {
        name: "ci".to_owned(),
        role,
        namespace: None,
        expires_in_seconds: None,
    }
}

fn made(terms: TokenTerms) -> AccessToken {
    terms.made(Maker {
        token_id: TokenId::new(Uuid::from_u128(1)),
        digest: TokenSecret::new([7; 32]).digest(),
        by: "local".to_owned(),
        at: NOW,
    })
}

#[test]
fn a_role_covers_itself_and_an_operator_covers_all() {
    use Role::{Client, Executor, Operator};
    for (role, covered) in [
        (Client, [true, false, false]),
        (Executor, [false, true, false]),
        (Operator, [true, true, true]),
    ] {
        let found: Vec<_> = Role::ALL
            .iter()
            .map(|needed| role.covers(*needed))
            .collect();
        assert_eq!(found, covered, "{role}");
    }
}

#[test]
fn terms_that_break_a_rule_are_named() {
    let bad = |change: fn(&mut TokenTerms), path: &str| {
        let mut terms = terms(Role::Client);
        change(&mut terms);
        let faults = terms.check().unwrap_err();
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, [path], "{faults:?}");
    };
    bad(|terms| terms.name = " ".to_owned(), "name");
    bad(|terms| terms.name = "x".repeat(201), "name");
    bad(|terms| terms.name = "a\0b".to_owned(), "name");
    bad(|terms| terms.name = "a\u{1b}[2Jb".to_owned(), "name");
    bad(|terms| terms.namespace = Some(String::new()), "namespace");
    bad(
        |terms| (terms.role, terms.namespace) = (Role::Executor, Some("default".to_owned())),
        "namespace",
    );
    bad(
        |terms| terms.expires_in_seconds = Some(0),
        "expires_in_seconds",
    );
    bad(
        |terms| terms.expires_in_seconds = Some(limits::TOKEN_SECONDS + 1),
        "expires_in_seconds",
    );
    for role in Role::ALL {
        assert_eq!(terms(*role).check(), Ok(()));
    }
    let longest = TokenTerms {
        name: "é".repeat(200),
        namespace: Some("team".to_owned()),
        expires_in_seconds: Some(limits::TOKEN_SECONDS),
        ..terms(Role::Operator)
    };
    assert_eq!(longest.check(), Ok(()));
    assert_eq!(made(longest).namespace, "team");
}

#[test]
fn a_token_is_live_until_it_expires_or_is_revoked() {
    let endless = made(terms(Role::Client));
    assert_eq!(endless.namespace, "default");
    assert_eq!(endless.principal(), "token:ci");
    assert!(endless.is_live(Timestamp(i64::MAX)));
    let brief = made(TokenTerms {
        expires_in_seconds: Some(10),
        ..terms(Role::Client)
    });
    assert_eq!(brief.expires_at, Some(NOW.plus_ms(10_000)));
    assert!(brief.is_live(NOW.plus_ms(9_999)));
    assert!(!brief.is_live(NOW.plus_ms(10_000)));
    let revoked = AccessToken {
        revoked_at: Some(NOW),
        ..endless
    };
    assert!(!revoked.is_live(NOW));
}

#[test]
fn a_name_is_one_live_tokens() {
    let token = made(TokenTerms {
        expires_in_seconds: Some(10),
        ..terms(Role::Client)
    });
    assert_eq!(admit(None, NOW), Ok(Admission::New));
    let refusal = Rejection::TokenNameTaken {
        name: "ci".to_owned(),
    };
    assert_eq!(admit(Some(&token), NOW), Err(refusal));
    let later = NOW.plus_ms(10_000);
    let replaced = Admission::Replaces(token.token_id);
    assert_eq!(admit(Some(&token), later), Ok(replaced));
}

#[test]
fn a_secret_is_known_by_its_beginning_and_not_shown() {
    let secret = TokenSecret::new([0xab; 32]);
    assert_eq!(secret.expose(), format!("tdk_{}", "ab".repeat(32)));
    assert_eq!(format!("{secret:?}"), "TokenSecret(…)");
    assert_eq!(
        secret.digest(),
        Digest::of_bytes(secret.expose().as_bytes())
    );
    let text = secret.expose().as_bytes();
    assert_eq!(TokenSecret::digest_of(text), Some(secret.digest()));
    for none in [&text[1..], &text[..67], b"", b"s3cret"] {
        assert_eq!(TokenSecret::digest_of(none), None);
    }
    assert_ne!(secret.digest(), TokenSecret::new([0xac; 32]).digest());
}
