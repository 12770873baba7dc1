//! The log over all sessions of the caller's namespace: a stream that follows it, or a page of it.

use axum::Json;
use axum::response::{IntoResponse, Response};
use tapedeck_control_plane::follow_all::{FeedPage, FeedStart};
use tapedeck_domain::display::DisplayEvent;
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::display::{DisplayEventRecord, EventFormat};
use tapedeck_protocol::event::EventResponse;
use tapedeck_protocol::feed::{self, DisplayFeedPage, FeedAfter, FeedQuery, FeedResponse};

use crate::accept::Representation;
use crate::extract::WithQuery;
use crate::problem::Fault;
use crate::sse;

/// Follows the log over all sessions from a cursor, or gives a page of it as JSON.
#[utoipa::path(
    get, path = "/events", tag = "events",
    params(
        FeedQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Wins over `after`.")
    ),
    responses(
        (status = 200, content(
            (String = "text/event-stream"),
            (FeedResponse = "application/json")
        ))
    )
)]
pub(super) async fn all(WithQuery(call, query): WithQuery<FeedQuery>) -> Result<Response, Fault> {
    let selection = query.check(call.last_event_id()?)?;
    let start = match selection.after {
        FeedAfter::Beginning => FeedStart::Beginning,
        FeedAfter::Head => FeedStart::Head,
        FeedAfter::Cursor(text) => FeedStart::After(text.parse().map_err(|_malformed| {
            let detail = "the cursor is none that this endpoint gave out";
            Fault::new(ErrorCode::CursorMalformed, detail)
        })?),
    };
    let (control, namespace) = (call.control(), call.namespace());
    if call.representation == Representation::Json {
        let page = control
            .feed_page(namespace, start, selection.kinds, selection.limit)
            .await?;
        let page = respond(&page, selection.format);
        return Ok(Json(page).into_response());
    }
    let follower = control.follow_all(namespace, start, selection.kinds);
    Ok(sse::followed_all(&call, follower.await?, selection.format))
}

fn respond(page: &FeedPage, format: EventFormat) -> FeedResponse {
    let records = page.events.iter().map(|(_, record)| record);
    let (next_cursor, more, log_id) = (page.next.to_string(), page.more, page.next.log_id());
    match format {
        EventFormat::Raw => FeedResponse::Raw(feed::FeedPage {
            events: records.map(EventResponse::from).collect(),
            next_cursor,
            more,
            log_id,
        }),
        // Only kinds with a display form were read.
        EventFormat::Display => FeedResponse::Display(DisplayFeedPage {
            events: records
                .filter_map(DisplayEvent::of)
                .map(DisplayEventRecord::from)
                .collect(),
            next_cursor,
            more,
            log_id,
        }),
    }
}
