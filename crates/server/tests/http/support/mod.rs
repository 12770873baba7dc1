//! Calls the router in memory. Shared by the tests of this crate; it knows no rule.

mod away;
mod frames;
mod live;

use std::future::IntoFuture;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tapedeck_control_plane::ids::TimeOrdered;
use tapedeck_control_plane::{ControlPlane, Hints, Lifecycle, Options};
use tapedeck_domain::Timing;
use tapedeck_domain::owner::Authority;
use tapedeck_server::{ServerState, router};
use tapedeck_store::Store;
use tower::ServiceExt;

pub(crate) use away::Away;
pub(crate) use frames::{Frame, Frames, ids};
pub(crate) use live::{Claim, Live};

/// Some identifier.
pub(crate) const ID: &str = "018f0000-0000-7000-8000-000000000001";

/// A server in memory.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) control: ControlPlane,
    pub(crate) state: ServerState,
    router: Router,
}

impl Api {
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self::with(store, |_| {})
    }

    pub(crate) fn with(store: Arc<dyn Store>, change: impl FnOnce(&mut ServerState)) -> Self {
        Self::timed(store, Timing::STANDARD, change)
    }

    pub(crate) fn timed(
        store: Arc<dyn Store>,
        timing: Timing,
        change: impl FnOnce(&mut ServerState),
    ) -> Self {
        let control = ControlPlane::new(Options {
            store,
            authority: Authority {
                owner_id: "server:test".to_owned(),
                epoch: None,
                lease_ms: timing.owner_lease_ms,
            },
            timing,
            ids: Arc::new(TimeOrdered),
            lifecycle: Lifecycle::new(),
            ring_events: 2,
            ring_bytes: 1024 * 1024,
            hints: Hints::Sent,
        });
        let mut state = ServerState::local(control.clone(), "0.0.0-test");
        change(&mut state);
        Self {
            control,
            router: router(state.clone()),
            state,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.call(Method::GET, path)
    }

    pub(crate) fn post(&self, path: &str) -> Call {
        self.call(Method::POST, path)
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        Call {
            router: self.router.clone(),
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Body::empty(),
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str) -> Answer {
        self.call(method, path).send().await
    }
}

/// A request being put together.
#[derive(Debug)]
pub(crate) struct Call {
    router: Router,
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Body,
}

impl Call {
    pub(crate) fn header<N: TryInto<HeaderName, Error: std::fmt::Debug>>(
        mut self,
        name: N,
        value: &str,
    ) -> Self {
        let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.headers.insert(name.try_into().unwrap(), value);
        self
    }

    pub(crate) fn accepting_json(self) -> Self {
        self.header("accept", "application/json")
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.text(body.to_string())
    }

    pub(crate) fn text(self, body: impl Into<String>) -> Self {
        let body = body.into();
        let length = body.len().to_string();
        self.typed(Some("application/json"), body)
            .header("content-length", &length)
    }

    /// A body whose length is not announced.
    pub(crate) fn chunked(mut self, body: String) -> Self {
        let chunks: Vec<_> = body
            .into_bytes()
            .chunks(4096)
            .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()))
            .collect();
        self.body = Body::from_stream(futures::stream::iter(chunks));
        self.header(CONTENT_TYPE, "application/json")
    }

    pub(crate) fn typed(mut self, media_type: Option<&str>, body: impl Into<Body>) -> Self {
        self.body = body.into();
        match media_type {
            Some(media_type) => self.header(CONTENT_TYPE, media_type),
            None => self,
        }
    }

    /// The answer with its body still to come.
    pub(crate) async fn open(self) -> Response {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().unwrap();
        *request.headers_mut() = self.headers;
        if !request.headers().contains_key(HOST) {
            request
                .headers_mut()
                .insert(HOST, http::HeaderValue::from_static("localhost:4000"));
        }
        self.router.oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(self) -> Answer {
        let response = self.open().await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            json: serde_json::from_str(&text).unwrap_or(Value::Null),
            text,
        }
    }
}

impl IntoFuture for Call {
    type Output = Answer;
    type IntoFuture = futures::future::BoxFuture<'static, Answer>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) json: Value,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header<N: http::header::AsHeaderName>(&self, name: N) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn is(&self, status: StatusCode, code: &str) {
        assert_eq!(
            (self.status, self.json["code"].as_str()),
            (status, Some(code)),
            "{}",
            self.text
        );
        assert_eq!(self.header(CONTENT_TYPE), "application/problem+json");
        assert_eq!(self.json["status"], status.as_u16());
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.text);
        self.json
    }
}

/// A body that the endpoint takes.
pub(crate) fn prompt(path: &str) -> Value {
    if path.ends_with("/prompt") {
        json!({"prompt": "go"})
    } else {
        json!({})
    }
}

/// References of an `OpenAPI` document that lead nowhere.
pub(crate) fn dangling_references(document: &Value) -> Vec<String> {
    fn walk(value: &Value, document: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    if document.pointer(pointer).is_none() {
                        found.push(reference.clone());
                    }
                }
                for field in fields.values() {
                    walk(field, document, found);
                }
            }
            Value::Array(items) => {
                for item in items {
                    walk(item, document, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    walk(document, document, &mut found);
    found.sort();
    found.dedup();
    found
}
