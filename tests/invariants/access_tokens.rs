//! Access tokens: made, looked up by their secret's digest, listed and revoked (design §10).

use tapedeck_control_plane::tokens::CreatedToken;
use tapedeck_control_plane::{Error, Outcome, PageRequest};
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::token::{AccessToken, Role, TokenTerms};
use tapedeck_domain::{Rejection, TokenId};
use tapedeck_store::Target;

use crate::control::{NAMESPACE, TestControl};

on_every_store! {
    a_token_is_found_by_its_secret_and_kept_by_its_digest,
    a_revoked_token_is_refused_at_once_and_stays_to_be_read,
    a_token_ends_by_itself,
    a_name_is_one_live_tokens_also_between_two_at_once,
    a_token_is_made_once_under_its_key,
    tokens_are_listed_newest_first,
}

fn terms(name: &str) -> TokenTerms {
    TokenTerms {
        name: name.to_owned(),
        role: Role::Client,
        namespace: Some("team".to_owned()),
        expires_in_seconds: None,
    }
}

async fn create(t: &TestControl, terms: TokenTerms) -> Outcome<CreatedToken> {
    t.control.create_token(terms, "ann", None).await
}

async fn make(t: &TestControl, name: &str) -> (AccessToken, Digest) {
    let made = create(t, terms(name)).await.unwrap();
    let digest = made.secret.unwrap().digest();
    (made.token, digest)
}

async fn live(t: &TestControl, digest: &Digest) -> Option<AccessToken> {
    t.control.live_token(digest).await.unwrap()
}

async fn a_token_is_found_by_its_secret_and_kept_by_its_digest(t: TestControl) {
    assert!(!t.control.has_live_tokens().await.unwrap());
    let made = create(&t, terms("ci")).await.unwrap();
    let (token, secret) = (made.token, made.secret.unwrap());
    assert_eq!(
        (token.role, token.namespace.as_str()),
        (Role::Client, "team")
    );
    assert_eq!(token.created_by, "ann");
    let rows = t.store.dump().await.join("\n");
    assert!(!rows.contains(secret.expose()));
    assert!(!rows.contains(secret.expose().trim_start_matches("tdk_")));
    let t = t.restarted().await;
    assert!(t.control.has_live_tokens().await.unwrap());
    assert_eq!(live(&t, &secret.digest()).await, Some(token.clone()));
    assert_eq!(live(&t, &Digest::of_bytes(b"tdk_")).await, None);
    assert_eq!(t.control.token(token.token_id).await.unwrap(), token);
    let unknown = t.control.token(TokenId::new(t.control.new_id())).await;
    assert!(matches!(unknown, Err(Error::NotFound(Target::Token))));
}

async fn a_revoked_token_is_refused_at_once_and_stays_to_be_read(t: TestControl) {
    let (token, digest) = make(&t, "ci").await;
    assert!(live(&t, &digest).await.is_some());
    for by in ["bob", "eve"] {
        t.control.revoke_token(token.token_id, by).await.unwrap();
    }
    assert_eq!(live(&t, &digest).await, None);
    assert!(!t.control.has_live_tokens().await.unwrap());
    let kept = t.control.token(token.token_id).await.unwrap();
    assert_eq!(kept.revoked_by.as_deref(), Some("bob"));
    let unknown = TokenId::new(t.control.new_id());
    let gone = t.control.revoke_token(unknown, "bob").await;
    assert!(matches!(gone, Err(Error::NotFound(Target::Token))));
}

async fn a_token_ends_by_itself(t: TestControl) {
    let brief = TokenTerms {
        expires_in_seconds: Some(3_600),
        ..terms("ci")
    };
    let made = create(&t, brief.clone()).await.unwrap();
    let digest = made.secret.unwrap().digest();
    let end = made.token.expires_at.unwrap();
    let reader = t.control.store().reader();
    assert!(reader.any_live_token(end.plus_ms(-1)).await.unwrap());
    assert!(!reader.any_live_token(end).await.unwrap());
    let found = reader.token_of_digest(&digest).await.unwrap().unwrap();
    assert!(found.is_live(end.plus_ms(-1)) && !found.is_live(end));
}

async fn a_name_is_one_live_tokens_also_between_two_at_once(t: TestControl) {
    let (first, second) = tokio::join!(create(&t, terms("ci")), create(&t, terms("ci")));
    let made: Vec<_> = [&first, &second].into_iter().flatten().collect();
    assert_eq!(made.len(), 1, "{first:?} {second:?}");
    let token_id = made[0].token.token_id;
    let refused = if first.is_ok() { second } else { first };
    assert_rejected!(
        refused,
        Rejection::TokenNameTaken { ref name } if name == "ci"
    );
    t.control.revoke_token(token_id, "ann").await.unwrap();
    make(&t, "ci").await;
    assert_rejected!(create(&t, terms(" ")).await, Rejection::Invalid(_));
}

async fn a_token_is_made_once_under_its_key(t: TestControl) {
    let key = || IdempotencyKey {
        namespace: NAMESPACE.to_owned(),
        principal: "ann".to_owned(),
        operation: "token".to_owned(),
        key: "k".to_owned(),
        body_digest: Digest::of_bytes(b"body"),
    };
    let create = async || {
        let made = t.control.create_token(terms("ci"), "ann", Some(key()));
        made.await.unwrap()
    };
    let first = create().await;
    let again = create().await;
    assert_eq!(first.token, again.token);
    assert!(first.secret.is_some());
    assert_eq!(again.secret, None, "it is kept nowhere");
}

async fn tokens_are_listed_newest_first(t: TestControl) {
    let (oldest, _) = make(&t, "a").await;
    let (revoked, _) = make(&t, "b").await;
    let (newest, _) = make(&t, "c").await;
    t.control
        .revoke_token(revoked.token_id, "ann")
        .await
        .unwrap();
    let listed = async |all, before: Option<TokenId>| {
        let page = PageRequest {
            before: before.map(TokenId::uuid),
            limit: 2,
        };
        let page = t.control.tokens(all, page).await.unwrap();
        let ids: Vec<_> = page.items.iter().map(|token| token.token_id).collect();
        (ids, page.next.is_some())
    };
    let (oldest, revoked, newest) = (oldest.token_id, revoked.token_id, newest.token_id);
    assert_eq!(listed(false, None).await, (vec![newest, oldest], false));
    assert_eq!(listed(true, None).await, (vec![newest, revoked], true));
    assert_eq!(listed(true, Some(revoked)).await, (vec![oldest], false));
}
