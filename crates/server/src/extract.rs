//! What handlers are given: who calls and how, the query, and identifiers of the path. Every fault
//! is a problem document; nothing here looks at a body or decides a rule.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Query as AxumQuery, RawPathParams};
use http::HeaderValue;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tapedeck_control_plane::ControlPlane;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_protocol::{ErrorCode, limits};

use crate::accept::Representation;
use crate::aliases::Mount;
use crate::auth::{Permitted, Principal};
use crate::body::Body;
use crate::problem::Fault;
use crate::state::ServerState;

/// A call: who makes it, where it came in, and what its headers ask for.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) server: Arc<ServerState>,
    pub(crate) principal: Principal,
    pub(crate) mount: Mount,
    pub(crate) representation: Representation,
    idempotency_key: Option<HeaderValue>,
    last_event_id: Option<HeaderValue>,
}

impl FromRequestParts<Arc<ServerState>> for Call {
    type Rejection = Fault;

    /// A handler that takes nothing but the call takes no query either.
    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<ServerState>,
    ) -> Result<Self, Fault> {
        let NoParameters {} = query(parts)?;
        Self::of(parts, server)
    }
}

/// A call with a query that the handler takes.
#[derive(Debug)]
pub(crate) struct WithQuery<T>(pub(crate) Call, pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<ServerState>> for WithQuery<T> {
    type Rejection = Fault;

    async fn from_request_parts(
        parts: &mut Parts,
        server: &Arc<ServerState>,
    ) -> Result<Self, Fault> {
        let query = query(parts)?;
        Ok(Self(Call::of(parts, server)?, query))
    }
}

impl Call {
    fn of(parts: &Parts, server: &Arc<ServerState>) -> Result<Self, Fault> {
        if parts.extensions.get::<Permitted>().is_none() {
            return Err(Fault::internal("the endpoint stands in no group of a role"));
        }
        let principal = parts.extensions.get::<Principal>().cloned();
        let header = |name: &str| parts.headers.get(name).cloned();
        Ok(Self {
            server: Arc::clone(server),
            principal: principal
                .ok_or_else(|| Fault::internal("the call was not authenticated"))?,
            mount: parts.extensions.get().copied().unwrap_or_default(),
            representation: Representation::preferred(&parts.headers),
            idempotency_key: header("idempotency-key"),
            last_event_id: header("last-event-id"),
        })
    }

    pub(crate) fn control(&self) -> &ControlPlane {
        &self.server.control
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.principal.namespace
    }

    /// What the caller is called.
    pub(crate) fn name(&self) -> &str {
        &self.principal.name
    }

    /// The cursor of a client that reconnects.
    pub(crate) fn last_event_id(&self) -> Result<Option<&str>, Fault> {
        let text = self.last_event_id.as_ref().map(HeaderValue::to_str);
        text.transpose().map_err(|_unreadable| {
            let detail = "`Last-Event-ID` must be the `id` of a stream's event";
            Fault::new(ErrorCode::CursorMalformed, detail)
        })
    }

    /// Reads a body that may carry an idempotency key, in the header or as `command_id`. The key is
    /// bound to who calls, to the operation with its target, and to the body without the key.
    pub(crate) fn keyed<T: DeserializeOwned>(
        &self,
        body: &Body,
        operation: String,
    ) -> Result<(T, Option<IdempotencyKey>), Fault> {
        let request = body.read()?;
        let mut value = body.value()?;
        let fields = value.as_object_mut();
        let in_body = fields.and_then(|fields| fields.remove("command_id"));
        let in_body = in_body.as_ref().and_then(serde_json::Value::as_str);
        let in_header = self.idempotency_header()?;
        if let (Some(header), Some(body)) = (in_header, in_body)
            && header != body
        {
            let message = "differs from the `Idempotency-Key` header; give one of them";
            return Err(Fault::invalid(&[
                tapedeck_domain::rejection::FieldError::new("command_id", message),
            ]));
        }
        let key = in_header.or(in_body).map(|key| IdempotencyKey {
            namespace: self.namespace().to_owned(),
            principal: self.name().to_owned(),
            operation,
            key: key.to_owned(),
            body_digest: Digest::of_json("request", &value),
        });
        Ok((request, key))
    }

    fn idempotency_header(&self) -> Result<Option<&str>, Fault> {
        let Some(value) = &self.idempotency_key else {
            return Ok(None);
        };
        let is_visible = |text: &&str| text.bytes().all(|letter| letter.is_ascii_graphic());
        let text = value.to_str().ok().filter(is_visible);
        match text.filter(|text| (1..=limits::NAME_CHARS).contains(&text.len())) {
            Some(text) => Ok(Some(text)),
            None => Err(Fault::malformed(
                "Idempotency-Key",
                "must be 1 to 200 visible ASCII characters",
            )),
        }
    }
}

/// The identifier in a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Id<T>(pub(crate) T);

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for Id<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let [(name, text)] = parameters(parts, state).await?;
        parsed(&name, &text).map(Self)
    }
}

/// The two identifiers in a path, in their order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids<A, B>(pub(crate) A, pub(crate) B);

impl<S: Send + Sync, A: FromStr, B: FromStr> FromRequestParts<S> for Ids<A, B> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let [(first, one), (second, other)] = parameters(parts, state).await?;
        Ok(Self(parsed(&first, &one)?, parsed(&second, &other)?))
    }
}

fn parsed<T: FromStr>(name: &str, text: &str) -> Result<T, Fault> {
    text.parse()
        .map_err(|_unparsed| Fault::malformed(name, "must be a UUID"))
}

/// The free name in a path.
#[derive(Debug, Clone)]
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        let [(_, text)] = parameters(parts, state).await?;
        Ok(Self(text))
    }
}

/// The parameters of a path, with their names.
async fn parameters<S: Send + Sync, const N: usize>(
    parts: &mut Parts,
    state: &S,
) -> Result<[(String, String); N], Fault> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    let parameters = parameters.map_err(|error| Fault::malformed("path", &error.body_text()))?;
    let mut found = Vec::with_capacity(N);
    for (name, text) in &parameters {
        if text.contains('\0') {
            return Err(Fault::malformed(name, "holds a NUL character"));
        }
        found.push((name.to_owned(), text.to_owned()));
    }
    found
        .try_into()
        .map_err(|_others| Fault::internal("the route has other parameters"))
}

/// The query of a resource that takes none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

/// Extracted where there is no call: a query is refused.
#[derive(Debug)]
pub(crate) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let NoParameters {} = query(parts)?;
        Ok(Self)
    }
}

/// Reads the query; an unknown parameter is refused like an unknown field.
fn query<T: DeserializeOwned>(parts: &Parts) -> Result<T, Fault> {
    match AxumQuery::try_from_uri(&parts.uri) {
        Ok(AxumQuery(query)) => Ok(query),
        Err(error) => {
            let source = std::error::Error::source(&error);
            let message = source.map_or_else(|| error.to_string(), ToString::to_string);
            Err(Fault::malformed("query", &message))
        }
    }
}
