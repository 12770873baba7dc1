//! Request bodies: bounded in size and time, JSON, and read into the wire's types with the place of
//! every fault. An empty body reads as `{}`. Nothing here knows what a request means.

use std::time::Duration;

use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tapedeck_domain::rejection::FieldError;
use tapedeck_protocol::{ErrorCode, limits};
use tokio::time::Instant;

use crate::problem::Fault;

/// How long a body may take to arrive.
const READ_TIME: Duration = Duration::from_secs(30);
/// How long, and how much of, a body that is too large is read and thrown away, so that its sender
/// gets to read the answer.
const DISCARD_TIME: Duration = Duration::from_secs(3);
const DISCARD_BYTES: usize = 32 * 1024 * 1024;

/// What an endpoint takes, set by its group of routes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// A request's body: JSON as text, not parsed yet.
#[derive(Debug)]
pub(crate) struct Body(Bytes);

impl<S: Sync> FromRequest<S> for Body {
    type Rejection = Fault;

    async fn from_request(request: Request, _: &S) -> Result<Self, Fault> {
        let limit = match request.extensions().get() {
            Some(BodyLimit(limit)) => *limit,
            None => limits::BODY_BYTES,
        };
        let (parts, body) = request.into_parts();
        let bytes = collect(&parts.headers, body, limit).await?;
        if bytes.is_empty() {
            return Ok(Self(Bytes::from_static(b"{}")));
        }
        if !is_json(&parts.headers) {
            let detail = "send the body as `Content-Type: application/json`";
            return Err(Fault::new(ErrorCode::UnsupportedMediaType, detail));
        }
        Ok(Self(bytes))
    }
}

async fn collect(headers: &HeaderMap, mut body: HttpBody, limit: usize) -> Result<Bytes, Fault> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        // A sender that asks first gets its answer instead of the permission to send.
        if !headers.contains_key(EXPECT) {
            discard(body).await;
        }
        return Err(too_large(limit));
    }
    let deadline = Instant::now() + READ_TIME;
    let mut bytes = BytesMut::with_capacity(announced.unwrap_or(0));
    loop {
        let Ok(frame) = tokio::time::timeout_at(deadline, body.frame()).await else {
            let detail = "the body took too long to arrive";
            return Err(Fault::new(ErrorCode::MalformedRequest, detail));
        };
        let Some(frame) = frame else {
            return Ok(bytes.freeze());
        };
        let Ok(frame) = frame else {
            let detail = "the body broke off";
            return Err(Fault::new(ErrorCode::MalformedRequest, detail));
        };
        if let Some(chunk) = frame.data_ref() {
            if bytes.len() + chunk.len() > limit {
                drop(bytes);
                discard(body).await;
                return Err(too_large(limit));
            }
            bytes.extend_from_slice(chunk);
        }
    }
}

fn too_large(limit: usize) -> Fault {
    let detail = format!("the body is larger than {limit} bytes");
    let mut fault = Fault::new(ErrorCode::BodyTooLarge, detail);
    fault.extensions().limit = u64::try_from(limit).ok();
    fault
}

/// Answering while the sender still sends would reset the connection and lose the answer.
async fn discard(mut body: HttpBody) {
    let deadline = Instant::now() + DISCARD_TIME;
    let mut left = DISCARD_BYTES;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(deadline, body.frame()).await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(media_type)) = headers.get(CONTENT_TYPE).map(http::HeaderValue::to_str) else {
        return false;
    };
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

impl Body {
    /// Its size in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads the body as a request.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        // A list would be taken for the fields in their order.
        if !self.0.trim_ascii_start().starts_with(b"{") {
            self.value()?;
            return Err(invalid("", "the body must be an object"));
        }
        let mut parser = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
            let path = error.path().to_string();
            refusal(&path, error.inner())
        })?;
        parser.end().map_err(|error| refusal(".", &error))?;
        Ok(value)
    }

    /// The body with what older clients say in the query instead. What is said in both must be the
    /// same.
    pub(crate) fn with_query<Q: Serialize>(self, query: &Q) -> Result<Self, Fault> {
        let said = serde_json::to_value(query).unwrap_or_default();
        let Value::Object(said) = said else {
            return Ok(self);
        };
        if said.is_empty() {
            return Ok(self);
        }
        let Value::Object(mut fields) = self.value()? else {
            return Err(invalid("", "the body must be an object"));
        };
        for (name, value) in said {
            match fields.get(&name) {
                Some(other) if *other != value => {
                    return Err(invalid(&name, "differs from the query; give one of them"));
                }
                Some(_) | None => drop(fields.insert(name, value)),
            }
        }
        Ok(Self(Value::Object(fields).to_string().into()))
    }

    /// Reads the body as any JSON.
    pub(crate) fn value(&self) -> Result<Value, Fault> {
        serde_json::from_slice(&self.0).map_err(|error| refusal(".", &error))
    }
}

/// JSON that can't be parsed is a 400; JSON that breaks a rule is a 422 (api.md, Errors).
fn refusal(path: &str, error: &serde_json::Error) -> Fault {
    let message = error.to_string();
    let position = message.rfind(" at line ");
    let text = &message[..position.unwrap_or(message.len())];
    let path = if path == "." || path == "?" { "" } else { path };
    // The parser has no kinds for these; its wording is pinned by tests.
    if text.starts_with("recursion limit") {
        let message = format!("is nested deeper than {} levels", limits::JSON_DEPTH);
        return invalid("body", &message);
    }
    if text.contains("surrogate") || text.contains("end of hex escape") {
        return invalid(path, "holds a lone surrogate, which is no character");
    }
    if error.is_data() {
        return invalid(&field(path, text), text);
    }
    let detail = format!("the body is no JSON: {message}");
    Fault::new(ErrorCode::MalformedRequest, detail)
}

/// An unknown field is named itself; the parser's path ends at the object that holds it.
fn field(path: &str, text: &str) -> String {
    let unknown = text
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split('`').next());
    match unknown {
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) if path != name && !path.ends_with(&format!(".{name}")) => {
            format!("{path}.{name}")
        }
        Some(_) | None => path.to_owned(),
    }
}

fn invalid(path: &str, message: &str) -> Fault {
    Fault::invalid(&[FieldError::new(path, message)])
}
