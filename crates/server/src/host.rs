//! Against DNS rebinding and web pages that drive a local server: without a token only loopback
//! names are answered, in `Host` and in `Origin` (design §10, faults 24).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use tapedeck_protocol::ErrorCode;

use crate::auth::TokenAsked;
use crate::problem::Fault;
use crate::state::ServerState;

/// Which hosts and origins are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPolicy {
    /// Only names and addresses of the loopback interface, as long as no token is asked for: a web
    /// page can't know one.
    Loopback,
    /// All: the router is called in process.
    Any,
}

/// Refuses a request that a web page of another site may have caused.
pub(crate) async fn check(
    State(server): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_asked = match server.asks_for_token().await {
        Ok(is_asked) => is_asked,
        Err(fault) => return fault.into_response(),
    };
    request.extensions_mut().insert(TokenAsked(is_asked));
    if server.hosts == HostPolicy::Loopback && !is_asked {
        if !host_is_loopback(&request) {
            let detail = "without a token this server answers to loopback names only";
            return Fault::new(ErrorCode::HostForbidden, detail).into_response();
        }
        if !origin_is_loopback(&request) {
            let detail = "without a token this server answers to pages of loopback names only";
            return Fault::new(ErrorCode::OriginForbidden, detail).into_response();
        }
    }
    next.run(request).await
}

fn host_is_loopback(request: &Request) -> bool {
    // An absolute request target wins over the header (RFC 9112 §3.2.2), so both must be good.
    let target = request.uri().authority();
    let mut headers = request.headers().get_all(HOST).iter().peekable();
    if headers.peek().is_none() && target.is_none() {
        return false;
    }
    let header_is_loopback = |value: &http::HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.parse().is_ok_and(|host| is_loopback(&host))
    };
    target.is_none_or(is_loopback) && headers.all(header_is_loopback)
}

fn origin_is_loopback(request: &Request) -> bool {
    request.headers().get_all(ORIGIN).iter().all(|value| {
        let text = value.to_str().unwrap_or_default();
        let host = text
            .strip_prefix("http://")
            .or_else(|| text.strip_prefix("https://"));
        host.and_then(|host| host.parse().ok())
            .is_some_and(|host| is_loopback(&host))
    })
}

fn is_loopback(authority: &Authority) -> bool {
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host();
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    address
        .parse::<IpAddr>()
        .is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(host: Option<&str>, origin: Option<&str>) -> Request {
        let mut request = http::Request::builder().uri("/sessions");
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn only_loopback_hosts_pass() {
        for good in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:7",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(host_is_loopback(&request(Some(good), None)), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "10.0.0.1",
            "localhost@evil.example",
            "127.0.0.1:80@evil.example",
            "",
            "[::2]",
            "0.0.0.0",
        ] {
            assert!(!host_is_loopback(&request(Some(bad), None)), "{bad}");
        }
        assert!(!host_is_loopback(&request(None, None)));
        let mut absolute = request(Some("localhost"), None);
        *absolute.uri_mut() = "http://evil.example/sessions".parse().unwrap();
        assert!(!host_is_loopback(&absolute));
    }

    #[test]
    fn only_loopback_origins_pass() {
        for good in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://[::1]:1",
        ] {
            assert!(origin_is_loopback(&request(None, Some(good))), "{good}");
        }
        for bad in [
            "null",
            "http://evil.example",
            "file://",
            "http://localhost.evil.example",
            "localhost",
        ] {
            assert!(!origin_is_loopback(&request(None, Some(bad))), "{bad}");
        }
        assert!(origin_is_loopback(&request(None, None)));
    }
}
