//! The one way a request is sent: headers, deadline, retries. Whether a call may be made again is
//! said by the call and by the error code, never by a caller's guess.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tapedeck_protocol::Problem;

use crate::connect::{BoxError, Client, RequestBody, ResponseBody};
use crate::error::Error;
use crate::id;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) const JSON: &str = "application/json";
/// The largest answer that is read into memory.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// What is kept of an answer that is none of the interface's.
const SHOWN_CHARS: usize = 300;

/// How calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long one try may take, besides what the server is asked to wait.
    pub deadline: Duration,
    /// Tries after the first.
    pub retries: usize,
    /// How many of them may follow a try that had no answer in time.
    pub silent_retries: usize,
    /// Before the first of them; doubles from there.
    pub min_delay: Duration,
    /// At most this between two tries. A server that asks for longer gets no further try.
    pub max_delay: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            retries: 5,
            silent_retries: 1,
            min_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(10),
        }
    }
}

/// Whether a call may be made again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A second time changes nothing: it reads, carries a key, or is idempotent by its ids.
    Harmless,
    /// Only where the failed call can't have changed anything.
    IfWithoutEffect,
}

/// A call before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    segments: Vec<String>,
    query: Vec<(&'static str, String)>,
    body: Option<Bytes>,
    accept: &'static str,
    key: Option<String>,
    last_event_id: Option<String>,
    repeat: Repeat,
    held: Duration,
}

impl Call {
    /// A call of `path`, whose parts are encoded one by one.
    pub(crate) fn new(method: Method, segments: &[&str]) -> Self {
        let reads = method == Method::GET;
        Self {
            method,
            segments: segments
                .iter()
                .map(|segment| (*segment).to_owned())
                .collect(),
            query: Vec::new(),
            body: None,
            accept: JSON,
            key: None,
            last_event_id: None,
            repeat: if reads {
                Repeat::Harmless
            } else {
                Repeat::IfWithoutEffect
            },
            held: Duration::ZERO,
        }
    }

    pub(crate) fn get(segments: &[&str]) -> Self {
        Self::new(Method::GET, segments)
    }

    pub(crate) fn post(segments: &[&str]) -> Self {
        Self::new(Method::POST, segments)
    }

    /// Adds a query parameter, where there is a value.
    pub(crate) fn query(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query
            .extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// Sends this value as JSON.
    pub(crate) fn json<T: Serialize + Sync>(self, body: &T) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Request(error.to_string()))?;
        Ok(self.bytes(Bytes::from(body)))
    }

    /// Sends these bytes of JSON, unchanged each time.
    pub(crate) fn bytes(mut self, body: Bytes) -> Self {
        self.body = Some(body);
        self
    }

    /// Makes it harmless by a key: the caller's own, which is in the body, or a new one.
    pub(crate) fn keyed(mut self, command_id: Option<&str>) -> Self {
        self.key = command_id.is_none().then(id::command_id);
        self.harmless()
    }

    /// Says that a second time changes nothing.
    pub(crate) const fn harmless(mut self) -> Self {
        self.repeat = Repeat::Harmless;
        self
    }

    /// Says that the server is asked to hold the call for this long.
    pub(crate) fn held(mut self, seconds: u32) -> Self {
        self.held = Duration::from_secs(u64::from(seconds));
        self
    }

    /// Asks for another media type.
    pub(crate) const fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// Goes on after this event.
    pub(crate) fn last_event_id(mut self, last: Option<impl ToString>) -> Self {
        self.last_event_id = last.map(|last| last.to_string());
        self
    }
}

impl Client {
    /// Makes a call and reads its answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let (_, body) = self.send(call).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.foreign(error.is_data().then_some(error)))
    }

    /// Makes a call and gives status and body of its successful answer.
    pub(crate) async fn send(&self, call: Call) -> Result<(StatusCode, Bytes), Error> {
        let options = self.target.options;
        let request_id = id::request_id();
        let backoff = ExponentialBuilder::new()
            .with_min_delay(options.min_delay)
            .with_max_delay(options.max_delay)
            .with_max_times(options.retries)
            .with_jitter();
        // A server that takes calls and is silent costs a whole deadline each time.
        let mut silences = 0;
        let attempt = || self.send_once(&call, &request_id);
        attempt
            .retry(backoff)
            .when(|error: &Error| {
                silences += usize::from(matches!(error, Error::Timeout(_)));
                error.is_retried(call.repeat) && silences <= options.silent_retries
            })
            .adjust(|error: &Error, planned| {
                let planned = planned?;
                let asked = error.retry_after().unwrap_or(Duration::ZERO);
                (asked <= options.max_delay).then(|| planned.max(asked))
            })
            .notify(|error: &Error, delay| {
                tracing::debug!(%error, ?delay, request_id, "a call is made again");
            })
            .await
    }

    async fn send_once(&self, call: &Call, request_id: &str) -> Result<(StatusCode, Bytes), Error> {
        let deadline = self.target.options.deadline + call.held;
        let exchange = async {
            let response = self.exchange(self.request(call, request_id)?).await?;
            let (head, body) = response.into_parts();
            let body = read_body(body).await?;
            if head.status.is_success() {
                Ok((head.status, body))
            } else {
                Err(refusal(head.status, &head.headers, &body))
            }
        };
        tokio::time::timeout(deadline, exchange)
            .await
            .unwrap_or(Err(Error::Timeout(deadline)))
    }

    /// Opens a stream once: gives the answer with its body still to be read.
    pub(crate) async fn open(&self, call: Call) -> Result<Response<ResponseBody>, Error> {
        let deadline = self.target.options.deadline;
        let exchange = async {
            let response = self
                .exchange(self.request(&call, &id::request_id())?)
                .await?;
            if response.status().is_success() {
                return Ok(response);
            }
            let (head, body) = response.into_parts();
            Err(refusal(head.status, &head.headers, &read_body(body).await?))
        };
        tokio::time::timeout(deadline, exchange)
            .await
            .unwrap_or(Err(Error::Timeout(deadline)))
    }

    /// Something answers, and not as a server of ours does.
    pub(crate) fn foreign(&self, source: Option<serde_json::Error>) -> Error {
        let url = self.target.base.as_str().trim_end_matches('/').into();
        Error::Foreign { url, source }
    }

    fn request(&self, call: &Call, request_id: &str) -> Result<Request<RequestBody>, Error> {
        let mut url = self.target.base.clone();
        url.path_segments_mut()
            .map_err(|()| Error::Request("the server's URL can't have a path".to_owned()))?
            .pop_if_empty()
            .extend(&call.segments);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(url.as_str())
            .header(HOST, &self.target.host)
            .header(ACCEPT, call.accept)
            .header(X_REQUEST_ID, request_id);
        if let Some(authorization) = &self.target.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(key) = &call.key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        if let Some(last) = &call.last_event_id {
            request = request.header("last-event-id", last);
        }
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, JSON);
        }
        request
            .body(Full::new(call.body.clone().unwrap_or_default()))
            .map_err(|error| Error::Request(error.to_string()))
    }
}

async fn read_body(mut body: ResponseBody) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        if whole.len() + bytes.len() > ANSWER_BYTES {
            return Err(broken("the answer is too large".into()));
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// A connection that broke while an answer was read.
pub(crate) fn broken(source: BoxError) -> Error {
    Error::Transport { source, sent: true }
}

/// What an answer without success says.
fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let Ok(mut problem) = serde_json::from_slice::<Problem>(body) else {
        // A code this client doesn't know, or no problem document at all.
        let body = String::from_utf8_lossy(body)
            .chars()
            .take(SHOWN_CHARS)
            .collect();
        return Error::Unexpected { status, body };
    };
    let header = seconds.map(|seconds| seconds.saturating_mul(1_000));
    problem.retry_after_ms = problem.retry_after_ms.or(header);
    Error::Problem(Box::new(problem))
}

#[cfg(test)]
mod tests;
