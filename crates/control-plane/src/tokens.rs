//! Access tokens: made, listed and revoked; and who a presented secret stands for. What was looked
//! up is remembered for a moment, so that a request costs no read and a revocation by another
//! instance is still heard soon.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tapedeck_domain::TokenId;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::token::{AccessToken, TokenSecret, TokenTerms};
use tapedeck_store::{Page, PageRequest, StoreError, Target};
use tokio::time::Instant;

use crate::ControlPlane;
use crate::commands::create_token::CreateToken;
use crate::commands::revoke_token::RevokeToken;
use crate::error::{Error, Outcome};

/// How long what was looked up is believed: so long does a token last that another instance revokes.
const BELIEVED: Duration = Duration::from_secs(1);
/// Tokens that are remembered at once.
const REMEMBERED: usize = 256;

/// A new token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedToken {
    /// The token.
    pub token: AccessToken,
    /// Its secret; `None` in the answer to a request that is sent again, because it is kept nowhere.
    pub secret: Option<TokenSecret>,
}

/// What was looked up lately.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Lookups>);

#[derive(Debug, Default)]
struct Lookups {
    /// Rises with every write of this process: a look-up that began before it is not remembered.
    writes: u64,
    tokens: HashMap<Digest, (Instant, AccessToken)>,
    /// Whether any token was live, and when that was read.
    any_live: Option<(Instant, bool)>,
}

/// What is believed of whether any token is live.
enum Believed {
    /// It was read lately.
    Fresh(bool),
    /// It has to be read.
    Stale {
        /// The writes so far.
        writes: u64,
        /// What was read last.
        last: Option<bool>,
    },
}

impl Known {
    /// Forgets everything, because a token was made or revoked here.
    fn forget(&self) {
        let mut known = self.0.lock();
        *known = Lookups {
            writes: known.writes + 1,
            ..Lookups::default()
        };
    }

    /// The token of a digest, if it was looked up lately; and the writes so far.
    fn token(&self, digest: &Digest, now: Instant) -> (u64, Option<AccessToken>) {
        let known = self.0.lock();
        let found = known.tokens.get(digest);
        let found = found.filter(|(at, _)| now.duration_since(*at) < BELIEVED);
        (known.writes, found.map(|(_, token)| token.clone()))
    }

    /// Whether any token is live, if that was read lately. Else whoever asks first reads it again,
    /// and the others believe what was read last for as long.
    fn any_live(&self, now: Instant) -> Believed {
        let mut known = self.0.lock();
        let writes = known.writes;
        match &mut known.any_live {
            Some((at, any)) if now.duration_since(*at) < BELIEVED => Believed::Fresh(*any),
            Some((at, any)) => {
                *at = now;
                let last = Some(*any);
                Believed::Stale { writes, last }
            }
            None => Believed::Stale { writes, last: None },
        }
    }

    fn remember_any(&self, writes: u64, at: Instant, any: bool) {
        let mut known = self.0.lock();
        if known.writes == writes {
            known.any_live = Some((at, any));
        }
    }

    fn remember(&self, writes: u64, at: Instant, token: &AccessToken) {
        let mut known = self.0.lock();
        if known.writes != writes {
            return;
        }
        if known.tokens.len() >= REMEMBERED {
            let is_fresh = |seen: &Instant| at.duration_since(*seen) < BELIEVED;
            known.tokens.retain(|_, (seen, _)| is_fresh(seen));
        }
        if known.tokens.len() < REMEMBERED {
            known.tokens.insert(token.digest, (at, token.clone()));
        }
    }
}

impl ControlPlane {
    /// Makes a token.
    pub async fn create_token(
        &self,
        terms: TokenTerms,
        by: &str,
        key: Option<IdempotencyKey>,
    ) -> Outcome<CreatedToken> {
        let token_id = TokenId::new(self.new_id());
        let secret = TokenSecret::new(self.inner.ids.secret());
        let command = CreateToken {
            token_id,
            digest: secret.digest(),
            terms,
            by: by.to_owned(),
            key,
        };
        let made = self.inner.execute(command).await;
        self.tokens.forget();
        let token = self.token(made?).await?;
        let is_new = token.token_id == token_id;
        Ok(CreatedToken {
            token,
            secret: is_new.then_some(secret),
        })
    }

    /// Revokes a token; once more changes nothing.
    pub async fn revoke_token(&self, id: TokenId, by: &str) -> Outcome<()> {
        let command = RevokeToken {
            token_id: id,
            by: by.to_owned(),
        };
        let revoked = self.inner.execute(command).await;
        self.tokens.forget();
        revoked
    }

    /// One token, revoked or not.
    pub async fn token(&self, id: TokenId) -> Outcome<AccessToken> {
        Self::found(self.inner.store.reader().token(id).await?, Target::Token)
    }

    /// A page of tokens; with `all` also those that are revoked.
    pub async fn tokens(&self, all: bool, page: PageRequest) -> Outcome<Page<AccessToken>> {
        Ok(self.inner.store.reader().tokens(all, page).await?)
    }

    /// The live token of a presented secret, by its digest.
    pub async fn live_token(&self, digest: &Digest) -> Outcome<Option<AccessToken>> {
        let reader = self.inner.store.reader();
        // Before the read, so that what is remembered is never younger than it says.
        let began = Instant::now();
        let (writes, known) = self.tokens.token(digest, began);
        let token = if let Some(token) = known {
            token
        } else {
            let found = reader.token_of_digest(digest).await?;
            let Some(token) = found.filter(|token| token.digest.matches(digest)) else {
                return Ok(None);
            };
            self.tokens.remember(writes, began, &token);
            token
        };
        // The clock is asked only where it decides.
        let at = match token.expires_at {
            Some(_) => reader.now().await?.wall,
            None => token.created_at,
        };
        Ok(token.is_live(at).then_some(token))
    }

    /// Whether any token is live. While the store is away this is what was read last, if anything was.
    pub async fn has_live_tokens(&self) -> Outcome<bool> {
        let began = Instant::now();
        let (writes, last) = match self.tokens.any_live(began) {
            Believed::Fresh(any) => return Ok(any),
            Believed::Stale { writes, last } => (writes, last),
        };
        let reader = self.inner.store.reader();
        let read = async {
            let now = reader.now().await?;
            reader.any_live_token(now.wall).await
        };
        let error = match tokio::time::timeout(BELIEVED, read).await {
            Ok(Ok(any)) => {
                self.tokens.remember_any(writes, began, any);
                return Ok(any);
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => StoreError::Unavailable {
                reason: "it did not say whether any token is live".to_owned(),
            },
        };
        last.ok_or(Error::Store(error))
    }

    /// Returns once a token is accepted no more. A store that is away ends nothing.
    pub async fn token_ended(&self, digest: Digest) {
        loop {
            tokio::time::sleep(BELIEVED).await;
            if let Ok(None) = self.live_token(&digest).await {
                return;
            }
        }
    }
}
