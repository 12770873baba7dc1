//! Which representation a caller prefers where an endpoint has two: a stream, or one JSON document.

use axum::http::HeaderMap;
use http::header::ACCEPT;

/// How an answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    /// Server-sent events; the default.
    Stream,
    /// One JSON document.
    Json,
}

impl Representation {
    /// Reads `Accept`: JSON only where it is asked for and preferred to a stream.
    pub(crate) fn preferred(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter();
        let ranges = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        let (mut json, mut stream) = (0.0_f32, 0.0_f32);
        for range in ranges {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
            match media_type.as_str() {
                "application/json" | "application/*" => json = json.max(quality),
                "text/event-stream" | "text/*" => stream = stream.max(quality),
                _ => {}
            }
        }
        if json > stream {
            Self::Json
        } else {
            Self::Stream
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_given_only_where_it_is_preferred() {
        let of = |accept: &str| {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            Representation::preferred(&headers)
        };
        for stream in [
            "*/*",
            "text/event-stream",
            "text/html, */*",
            "application/json;q=0.5, text/event-stream",
            "application/json, text/event-stream",
        ] {
            assert_eq!(of(stream), Representation::Stream, "{stream}");
        }
        for json in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json, text/event-stream;q=0.9",
            "application/json, */*",
        ] {
            assert_eq!(of(json), Representation::Json, "{json}");
        }
        assert_eq!(
            Representation::preferred(&HeaderMap::new()),
            Representation::Stream
        );
    }
}
