//! The log over all sessions of a namespace: its query, its pages, and the frames of its streams
//! that are no events. A cursor is a text that only the server can read.

use serde::{Deserialize, Serialize};
use tapedeck_domain::{LogId, limits};
use utoipa::{IntoParams, ToSchema};

use crate::display::{DisplayEventRecord, EventFormat};
use crate::event::{self, EventResponse, HEAD};
use crate::page::{self, QueryFault};

/// Query of `GET /events`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FeedQuery {
    /// Only events after this cursor: a `next_cursor`, or the `id` of a stream's event; `head`
    /// starts at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Events of one page, 1 to 500; 200 by default. Streams have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>)]
    pub limit: Option<String>,
    /// Only these kinds, separated by commas. With `format=display` they may be display kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
    /// `raw` (default): events as they are stored; `display`: as people see them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// Where to start in the log over all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedAfter {
    /// With the oldest event.
    Beginning,
    /// After this cursor, which has not been read yet.
    Cursor(String),
    /// At the end.
    Head,
}

/// A checked selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSelection {
    /// Where to start.
    pub after: FeedAfter,
    /// Events of one page.
    pub limit: u32,
    /// Only these stored kinds; empty is every kind.
    pub kinds: Vec<String>,
    /// The form to give them in.
    pub format: EventFormat,
}

impl FeedQuery {
    /// Checks every parameter. `last_event_id` is the header, which wins over `after`.
    pub fn check(&self, last_event_id: Option<&str>) -> Result<FeedSelection, QueryFault> {
        let after = match last_event_id.or(self.after.as_deref()) {
            None => FeedAfter::Beginning,
            Some(HEAD) if last_event_id.is_none() => FeedAfter::Head,
            Some(text) => FeedAfter::Cursor(text.to_owned()),
        };
        let most = limits::EVENT_PAGE_MAX;
        let limit = page::limit(self.limit.as_deref(), limits::PAGE_MAX, most)?;
        let format = EventFormat::check(self.format.as_deref())?;
        let kinds = event::kinds(self.kinds.as_deref(), format)?;
        Ok(FeedSelection {
            after,
            limit,
            kinds,
            format,
        })
    }
}

/// Answer of `GET /events` as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedPage {
    /// In the log's order; each session's events in the order of their numbers.
    pub events: Vec<EventResponse>,
    /// Where the next page starts; never null.
    pub next_cursor: String,
    /// Whether the next page is worth asking for at once. A page without it is the end.
    pub more: bool,
    /// The log that the cursor belongs to.
    #[schema(value_type = Uuid)]
    pub log_id: LogId,
}

/// Answer of `GET /events` as JSON with `format=display`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DisplayFeedPage {
    /// In the log's order.
    pub events: Vec<DisplayEventRecord>,
    /// Where the next page starts; never null.
    pub next_cursor: String,
    /// Whether the next page is worth asking for at once. A page without it is the end.
    pub more: bool,
    /// The log that the cursor belongs to.
    #[schema(value_type = Uuid)]
    pub log_id: LogId,
}

/// Answer of `GET /events` as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum FeedResponse {
    /// With `format=raw`, the default.
    Raw(FeedPage),
    /// With `format=display`.
    Display(DisplayFeedPage),
}

/// The data of `stream.open` on a stream over all sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedOpen {
    /// The identity of the log; another one after a backup was restored.
    #[schema(value_type = Uuid)]
    pub log_id: LogId,
    /// Where the stream begins.
    pub cursor: String,
}

/// The data of `stream.live` on a stream over all sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedLive {
    /// Nothing was left out up to here.
    pub cursor: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_wins_and_only_the_parameter_may_say_head() {
        let query = |after: &str| FeedQuery {
            after: Some(after.to_owned()),
            ..FeedQuery::default()
        };
        let after = |query: &FeedQuery, header| query.check(header).unwrap().after;
        assert_eq!(after(&FeedQuery::default(), None), FeedAfter::Beginning);
        assert_eq!(after(&query("head"), None), FeedAfter::Head);
        let cursor = FeedAfter::Cursor("c".to_owned());
        assert_eq!(after(&query("head"), Some("c")), cursor);
        assert_eq!(after(&query("c"), None), cursor);
        let head = FeedAfter::Cursor("head".to_owned());
        assert_eq!(after(&query("c"), Some("head")), head);
    }

    #[test]
    fn limits_formats_and_kinds_are_checked() {
        let refused = |query: FeedQuery| {
            let fault = query.check(None).unwrap_err();
            assert!(matches!(fault, QueryFault::Parameters(_)), "{fault:?}");
        };
        for limit in ["0", "501", "x"] {
            refused(FeedQuery {
                limit: Some(limit.to_owned()),
                ..FeedQuery::default()
            });
        }
        refused(FeedQuery {
            format: Some("pretty".to_owned()),
            ..FeedQuery::default()
        });
        refused(FeedQuery {
            format: Some("display".to_owned()),
            kinds: Some("Usage".to_owned()),
            ..FeedQuery::default()
        });
        let shown = FeedQuery {
            format: Some("display".to_owned()),
            kinds: Some("result, StreamDelta".to_owned()),
            ..FeedQuery::default()
        };
        let shown = shown.check(None).unwrap();
        assert_eq!(shown.format, EventFormat::Display);
        assert!(shown.kinds.contains(&"TurnEnd".to_owned()), "{shown:?}");
        assert!(shown.kinds.contains(&"StreamDelta".to_owned()), "{shown:?}");
    }
}
