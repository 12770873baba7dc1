//! The older names and the versioned mount: `/v1/…` is `/…`, `/worker/…` is `/executor/…`, and
//! answers under `/worker*` carry `worker_id` beside `executor_id`. Requests take both names in
//! `protocol`.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::Uri;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use serde_json::{Map, Value};

/// Under which prefix a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mount {
    /// At the root.
    #[default]
    Root,
    /// Under `/v1`.
    Versioned,
}

impl Mount {
    /// What a path in an answer starts with, so that it leads back to where the caller is.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Root => "",
            Self::Versioned => "/v1",
        }
    }
}

/// Gives every request its canonical path, and answers to older clients their older name.
pub(crate) async fn resolve(mut request: Request, next: Next) -> Response {
    let (mount, path) = match request.uri().path().strip_prefix("/v1") {
        Some("") => (Mount::Versioned, "/"),
        Some(rest) if rest.starts_with('/') => (Mount::Versioned, rest),
        Some(_) | None => (Mount::Root, request.uri().path()),
    };
    let renamed = path
        .strip_prefix("/worker/")
        .map(|rest| format!("/executor/{rest}"))
        .or_else(|| (path == "/workers").then(|| "/executors".to_owned()))
        .or_else(|| Some(format!("/executors/{}", path.strip_prefix("/workers/")?)));
    let is_older = renamed.is_some();
    let path = renamed.unwrap_or_else(|| path.to_owned());
    if path != request.uri().path()
        && let Some(uri) = with_path(request.uri(), &path)
    {
        *request.uri_mut() = uri;
    }
    request.extensions_mut().insert(mount);
    let response = next.run(request).await;
    if is_older {
        add_older_name(response).await
    } else {
        response
    }
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    Uri::from_parts(parts).ok()
}

async fn add_older_name(response: Response) -> Response {
    let content_type = response.headers().get(CONTENT_TYPE);
    if content_type.is_none_or(|content_type| content_type != "application/json") {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The body is our own and in memory.
    let Ok(body) = body.collect().await else {
        return Response::from_parts(parts, Body::empty());
    };
    let bytes = body.to_bytes();
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    name_both(&mut answer);
    for field in answer.values_mut() {
        for item in field.as_array_mut().into_iter().flatten() {
            if let Some(item) = item.as_object_mut() {
                name_both(item);
            }
        }
    }
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(Value::Object(answer).to_string()))
}

fn name_both(object: &mut Map<String, Value>) {
    if let Some(id) = object.get("executor_id").cloned() {
        object.insert("worker_id".to_owned(), id);
    }
}
