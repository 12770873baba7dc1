//! Access tokens on the wire.

use serde::{Deserialize, Serialize};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::token::{AccessToken, Role, TokenSecret, TokenTerms};
use tapedeck_domain::{Timestamp, TokenId};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::page::{Page, PageQuery, QueryFault};
use crate::schema;

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenResponse {
    /// The identifier.
    #[schema(value_type = Uuid)]
    pub token_id: TokenId,
    /// What people call it.
    pub name: String,
    /// What it lets its holder do.
    #[schema(value_type = schema::Role)]
    pub role: Role,
    /// Whose sessions it sees; null for an executor's, which serves every namespace.
    #[schema(required)]
    pub namespace: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who made it.
    pub created_by: String,
    /// When it ends by itself.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub revoked_at: Option<Timestamp>,
    /// Who revoked it.
    #[schema(required)]
    pub revoked_by: Option<String>,
}

impl From<&AccessToken> for TokenResponse {
    fn from(token: &AccessToken) -> Self {
        Self {
            token_id: token.token_id,
            name: token.name.clone(),
            role: token.role,
            namespace: match token.role {
                Role::Client | Role::Operator => Some(token.namespace.clone()),
                Role::Executor => None,
            },
            created_at: token.created_at,
            created_by: token.created_by.clone(),
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
            revoked_by: token.revoked_by.clone(),
        }
    }
}

/// Answer of `POST /tokens`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedTokenResponse {
    /// The secret to send as `Authorization: Bearer …`, here and never again; null where the request
    /// was sent again under its idempotency key.
    #[schema(required)]
    pub token: Option<String>,
    /// The token.
    #[serde(flatten)]
    pub about: TokenResponse,
}

impl std::fmt::Debug for CreatedTokenResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedTokenResponse")
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

impl CreatedTokenResponse {
    /// A token with its secret, if that can still be told.
    pub fn new(token: &AccessToken, secret: Option<&TokenSecret>) -> Self {
        Self {
            token: secret.map(|secret| secret.expose().to_owned()),
            about: TokenResponse::from(token),
        }
    }
}

/// Answer of `GET /tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Newest first.
    pub tokens: Vec<TokenResponse>,
    /// The next page; null at the end.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Query of `GET /tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TokensQuery {
    /// `true` also shows those that were revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<bool>)]
    pub all: Option<String>,
    /// Items of one page, 1 to 200; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl TokensQuery {
    /// Checks every parameter; gives whether revoked ones are asked for, and the page.
    pub fn check(self) -> Result<(bool, Page<TokenId>), QueryFault> {
        let all = match self.all.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(QueryFault::parameter("all", "must be true or false")),
        };
        let page = PageQuery {
            limit: self.limit,
            cursor: self.cursor,
        };
        Ok((all, page.check()?))
    }
}

/// Body of `POST /tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateTokenRequest {
    /// What people call it, and what answers and cancellations name as `token:NAME`. No two live
    /// tokens are called the same.
    #[schema(required)]
    pub name: Option<String>,
    /// What it lets its holder do.
    #[schema(value_type = schema::Role, required)]
    pub role: Option<Role>,
    /// Whose sessions it sees; `default` unless given. An executor serves every namespace.
    pub namespace: Option<String>,
    /// How long it holds, in seconds; without it until it is revoked.
    pub expires_in_seconds: Option<u64>,
    /// The older place of an idempotency key.
    pub command_id: Option<String>,
}

impl CreateTokenRequest {
    /// Checks every field.
    pub fn check(self) -> Result<TokenTerms, Vec<FieldError>> {
        let mut faults = Faults::default();
        if self.name.is_none() {
            faults.add("name", "must be given");
        }
        if self.role.is_none() {
            faults.add("role", "must be `client`, `executor` or `operator`");
        }
        let (Some(name), Some(role)) = (self.name, self.role) else {
            return Err(faults.into_errors());
        };
        let terms = TokenTerms {
            name,
            role,
            namespace: self.namespace,
            expires_in_seconds: self.expires_in_seconds,
        };
        terms.check()?;
        Ok(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_named_in_one_answer() {
        let faults = CreateTokenRequest::default().check().unwrap_err();
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["name", "role"]);
        let unknown = json!({"name": "ci", "role": "root"});
        assert!(serde_json::from_value::<CreateTokenRequest>(unknown).is_err());
    }

    #[test]
    fn the_answer_does_not_show_its_secret_in_a_log() {
        let created: CreatedTokenResponse = serde_json::from_value(json!({
            "token": "tdk_secret",
            "token_id": "018f0000-0000-7000-8000-000000000001",
            "name": "ci",
            "role": "executor",
            "namespace": null,
            "created_at": "2023-11-14T22:13:20.007Z",
            "created_by": "local",
            "expires_at": null,
            "revoked_at": null,
            "revoked_by": null,
        }))
        .unwrap();
        assert_eq!(created.token.as_deref(), Some("tdk_secret"));
        assert!(!format!("{created:?}").contains("tdk_secret"));
    }
}
