//! Events: a stream that follows the log, or a page of it as JSON; as they are stored, or as people
//! see them.

use axum::Json;
use axum::response::{IntoResponse, Response};
use tapedeck_control_plane::{EventFilter, FollowRequest, Start};
use tapedeck_domain::display::DisplayEvent;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::limits;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::display::{
    DisplayEventPage, DisplayEventRecord, EventFormat, EventsResponse,
};
use tapedeck_protocol::event::{After, EventPage, EventResponse, EventSelection, EventsQuery};

use crate::accept::Representation;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;
use crate::sse;

/// Follows a session's log from a cursor, or gives a page of it as JSON.
#[utoipa::path(
    get, path = "/sessions/{session_id}/events", tag = "events",
    params(
        ("session_id" = Uuid, Path), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Wins over `after`.")
    ),
    responses(
        (status = 200, content(
            (String = "text/event-stream"),
            (EventsResponse = "application/json")
        ))
    )
)]
pub(super) async fn of_session(
    WithQuery(call, query): WithQuery<EventsQuery>,
    Id(session_id): Id<SessionId>,
) -> Result<Response, Fault> {
    let selection = query.check(call.last_event_id()?)?;
    answer(&call, session_id, selection).await
}

/// Follows one run's events to its end, or gives a page of them as JSON. Numbers are the session's.
#[utoipa::path(
    get, path = "/runs/{run_id}/events", tag = "events",
    params(
        ("run_id" = Uuid, Path), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Wins over `after`.")
    ),
    responses(
        (status = 200, content(
            (String = "text/event-stream"),
            (EventsResponse = "application/json")
        ))
    )
)]
pub(super) async fn of_run(
    WithQuery(call, query): WithQuery<EventsQuery>,
    Id(run_id): Id<RunId>,
) -> Result<Response, Fault> {
    let selection = query.check(call.last_event_id()?)?;
    answer_of_run(&call, run_id, selection).await
}

/// The same as `/runs/{run_id}/events?format=display`.
#[utoipa::path(
    get, path = "/runs/{run_id}/display-events", tag = "events",
    params(
        ("run_id" = Uuid, Path), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Wins over `after`.")
    ),
    responses(
        (status = 200, content(
            (String = "text/event-stream"),
            (DisplayEventPage = "application/json")
        ))
    )
)]
pub(super) async fn displayed_of_run(
    WithQuery(call, mut query): WithQuery<EventsQuery>,
    Id(run_id): Id<RunId>,
) -> Result<Response, Fault> {
    if query.format.get_or_insert_with(|| "display".to_owned()) != "display" {
        return Err(Fault::malformed("format", "is `display` here"));
    }
    let selection = query.check(call.last_event_id()?)?;
    answer_of_run(&call, run_id, selection).await
}

async fn answer_of_run(
    call: &Call,
    run_id: RunId,
    mut selection: EventSelection,
) -> Result<Response, Fault> {
    if selection.run_id.is_some_and(|other| other != run_id) {
        return Err(Fault::malformed(
            "run_id",
            "differs from the run of the path",
        ));
    }
    selection.run_id = Some(run_id);
    let run = call.control().run(call.namespace(), run_id).await?;
    answer(call, run.session_id, selection).await
}

async fn answer(
    call: &Call,
    session_id: SessionId,
    selection: EventSelection,
) -> Result<Response, Fault> {
    if let Some(log_id) = selection.log_id {
        call.control().check_log(log_id)?;
    }
    if call.representation == Representation::Json {
        let page = page(call, session_id, selection).await?;
        return Ok(Json(page).into_response());
    }
    let format = selection.format;
    let follower = call.control().follow(FollowRequest {
        namespace: call.namespace().to_owned(),
        session_id,
        start: match selection.after {
            After::Seq(seq) => Start::After(seq),
            After::Head => Start::Head,
        },
        run_id: selection.run_id,
        kinds: selection.kinds,
    });
    Ok(sse::followed(call, follower.await?, format))
}

async fn page(
    call: &Call,
    session_id: SessionId,
    selection: EventSelection,
) -> Result<EventsResponse, Fault> {
    let control = call.control();
    let after = match selection.after {
        After::Seq(seq) => seq,
        After::Head => {
            let view = control.session(call.namespace(), session_id).await?;
            view.head.head_seq
        }
    };
    let filter = EventFilter {
        session_id,
        after,
        limit: selection.limit,
        max_bytes: limits::EVENT_PAGE_BYTES,
        run_id: selection.run_id,
        kinds: selection.kinds,
    };
    let page = control.events(call.namespace(), filter).await?;
    Ok(match selection.format {
        EventFormat::Raw => EventsResponse::Raw(EventPage {
            events: page.events.iter().map(EventResponse::from).collect(),
            next_cursor: page.next_cursor,
            head_seq: page.head_seq,
        }),
        // Only kinds with a display form were read, so an empty page means that nothing up to the
        // head has one: the cursor goes past all that was left out.
        EventFormat::Display => EventsResponse::Display(DisplayEventPage {
            next_cursor: if page.events.is_empty() {
                page.head_seq
            } else {
                page.next_cursor
            },
            events: shown(&page.events).collect(),
            head_seq: page.head_seq,
        }),
    })
}

fn shown(events: &[EventRecord]) -> impl Iterator<Item = DisplayEventRecord> {
    let shown = events.iter().filter_map(DisplayEvent::of);
    shown.map(DisplayEventRecord::from)
}
