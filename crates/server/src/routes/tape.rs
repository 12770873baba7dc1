//! The tape: a page of it, or all of it as a transcript. A transcript is read and sent page by page,
//! so that a long one costs no more memory than a short one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tapedeck_control_plane::{ControlPlane, Error, TapeFilter};
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::transcript::{Transcript, TranscriptFormat};
use tapedeck_domain::{SessionId, limits};
use tapedeck_protocol::tape::{TapeEntryResponse, TapePage, TranscriptResponse};
use tapedeck_protocol::views::{TapeQuery, TranscriptQuery, media_type};

use super::Answer;
use crate::extract::{Call, Id, WithQuery};
use crate::problem::Fault;

/// Shows a page of a session's tape.
#[utoipa::path(
    get, path = "/sessions/{session_id}/tape", tag = "sessions", operation_id = "tape",
    params(("session_id" = Uuid, Path), TapeQuery), responses((status = 200, body = TapePage))
)]
pub(super) async fn show(
    WithQuery(call, query): WithQuery<TapeQuery>,
    Id(session_id): Id<SessionId>,
) -> Answer<TapePage> {
    let selection = query.check()?;
    let filter = TapeFilter {
        session_id,
        after: selection.after,
        limit: selection.limit,
        max_bytes: limits::EVENT_PAGE_BYTES,
        include_superseded: selection.include_superseded,
    };
    let entries = call.control().tape(call.namespace(), filter).await?;
    let next_cursor = next_position(&call, filter, &entries).await?;
    Ok(Json(TapePage {
        entries: entries.iter().map(TapeEntryResponse::from).collect(),
        next_cursor: next_cursor.map(|position| position.to_string()),
    }))
}

/// Where the next page continues. A page may end early by its bytes, so only a look says whether
/// more follows.
async fn next_position(
    call: &Call,
    filter: TapeFilter,
    entries: &[TapeEntry],
) -> Result<Option<u64>, Fault> {
    let Some(last) = entries.last() else {
        return Ok(None);
    };
    let next = TapeFilter {
        after: last.position,
        limit: 1,
        ..filter
    };
    let more = call.control().tape(call.namespace(), next).await?;
    Ok((!more.is_empty()).then_some(last.position))
}

/// Gives a session's tape as a document for people or programs, without secrets of known shapes.
#[utoipa::path(
    get, path = "/sessions/{session_id}/transcript", tag = "sessions",
    params(("session_id" = Uuid, Path), TranscriptQuery),
    responses((status = 200, content(
        (String = "text/markdown"), (TranscriptResponse = "application/json"),
        (String = "application/x-ndjson")
    )))
)]
pub(super) async fn transcript(
    WithQuery(call, query): WithQuery<TranscriptQuery>,
    Id(id): Id<SessionId>,
) -> Result<Response, Fault> {
    let format = query.check()?;
    let session = call.control().session(call.namespace(), id).await?.session;
    let mut pages = Pages::new(&call, id, format);
    // A refusal has to come before the first byte.
    let first = pages.next().await?.unwrap_or_default();
    let title = session.settings.title.as_deref();
    let head = pages.transcript.begin(id, title) + &first;
    let body = stream::try_unfold((Some(head), pages), |(head, mut pages)| async move {
        let text = match head {
            Some(head) => Some(head),
            None => pages.next().await?,
        };
        Ok::<_, Error>(text.map(|text| (Bytes::from(text), (None, pages))))
    });
    let mut response = Response::new(Body::from_stream(body));
    let media_type = HeaderValue::from_static(media_type(format));
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    Ok(response)
}

/// A transcript as far as it has been read.
struct Pages {
    control: ControlPlane,
    namespace: Arc<str>,
    /// The next page; `None` after the last.
    filter: Option<TapeFilter>,
    transcript: Transcript,
}

impl Pages {
    fn new(call: &Call, session_id: SessionId, format: TranscriptFormat) -> Self {
        Self {
            control: call.control().clone(),
            namespace: Arc::clone(&call.principal.namespace),
            filter: Some(TapeFilter {
                session_id,
                after: 0,
                limit: limits::PAGE_MAX,
                max_bytes: limits::FOLLOW_PAGE_BYTES,
                include_superseded: false,
            }),
            transcript: Transcript::new(format),
        }
    }

    /// The next page as text, the end of the document for the last; `None` after it.
    async fn next(&mut self) -> Result<Option<String>, Error> {
        let Some(filter) = self.filter.take() else {
            return Ok(None);
        };
        let entries = self.control.tape(&self.namespace, filter).await?;
        let Some(last) = entries.last() else {
            return Ok(Some(self.transcript.end().to_owned()));
        };
        self.filter = Some(TapeFilter {
            after: last.position,
            ..filter
        });
        let texts = entries.iter().map(|entry| self.transcript.entry(entry));
        Ok(Some(texts.collect()))
    }
}
