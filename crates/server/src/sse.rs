//! Streams of a session's log as server-sent events (design §6). The body pulls: it holds one
//! follower and whatever that gave last, so a reader that stops costs a cursor and no queue. An
//! event's frame is encoded once in each form and shared by all who follow.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http_body::Frame;
use rand::RngExt;
use serde::Serialize;
use tapedeck_control_plane::feed::SharedEvent;
use tapedeck_control_plane::follow::EndReason;
use tapedeck_control_plane::{ControlPlane, Error, Followed, Follower, Outcome};
use tapedeck_domain::display::DisplayEvent;
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::{LogId, RunId};
use tapedeck_protocol::display::{self, EventFormat};
use tapedeck_protocol::event::sse_data;
use tapedeck_protocol::interaction::InteractionResponse;
use tapedeck_protocol::stream::{
    self, END, LIVE, OPEN, RETRY_MS, StreamEnd, StreamLive, StreamOpen,
};
use tokio::time::{Instant, Sleep, sleep};

/// Keeps a quiet connection alive and lets its reader notice a dead one.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// The answer that streams a new run as it is stored.
pub(crate) fn response(
    control: &ControlPlane,
    follower: Follower,
    on_disconnect: Option<CancelOnDisconnect>,
) -> Response {
    stream(control, follower, EventFormat::Raw, on_disconnect)
}

/// The answer that streams what a follower sees, in the form that was asked for.
pub(crate) fn followed(
    control: &ControlPlane,
    follower: Follower,
    format: EventFormat,
) -> Response {
    stream(control, follower, format, None)
}

fn stream(
    control: &ControlPlane,
    follower: Follower,
    format: EventFormat,
    on_disconnect: Option<CancelOnDisconnect>,
) -> Response {
    let millis =
        u64::try_from(control.timing().stream_comment_ms).unwrap_or(stream::COMMENT_INTERVAL_MS);
    let period = Duration::from_millis(millis);
    let body = EventStream {
        next: Next::Pending(pull(follower)),
        events: Vec::new().into_iter(),
        format,
        comment: Box::pin(sleep(period)),
        period,
        log_id: control.store().reader().identity().log_id,
        on_disconnect,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

/// Cancels a run when its stream is dropped before its end.
#[derive(Debug)]
pub(crate) struct CancelOnDisconnect {
    control: ControlPlane,
    namespace: &'static str,
    run_id: RunId,
    is_armed: bool,
}

impl CancelOnDisconnect {
    pub(crate) const fn new(control: ControlPlane, namespace: &'static str, run_id: RunId) -> Self {
        Self {
            control,
            namespace,
            run_id,
            is_armed: true,
        }
    }
}

impl Drop for CancelOnDisconnect {
    fn drop(&mut self) {
        let lifecycle = self.control.lifecycle().clone();
        // A draining server breaks streams itself; its clients have not left.
        if !self.is_armed
            || lifecycle.is_draining()
            || tokio::runtime::Handle::try_current().is_err()
        {
            return;
        }
        let (control, namespace, run_id) = (self.control.clone(), self.namespace, self.run_id);
        lifecycle.spawn(async move {
            let cancelled = control.cancel_run(namespace, run_id, "client_disconnected");
            if let Err(error) = cancelled.await {
                tracing::warn!(%error, %run_id, "stream.cancel_failed");
            }
        });
    }
}

type Pull = Pin<Box<dyn Future<Output = (Follower, Outcome<Option<Followed>>)> + Send>>;

fn pull(mut follower: Follower) -> Pull {
    Box::pin(async move {
        let outcome = follower.next().await;
        (follower, outcome)
    })
}

enum Next {
    Pending(Pull),
    Over,
}

/// The body of a stream.
struct EventStream {
    next: Next,
    events: std::vec::IntoIter<Arc<SharedEvent>>,
    format: EventFormat,
    comment: Pin<Box<Sleep>>,
    period: Duration,
    log_id: LogId,
    on_disconnect: Option<CancelOnDisconnect>,
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            if let Some(event) = self.events.next() {
                // What has no display form moves the follower's cursor and nothing else.
                let Some(bytes) = self.encoded(&event) else {
                    continue;
                };
                return self.send(bytes);
            }
            let Next::Pending(pending) = &mut self.next else {
                return Poll::Ready(None);
            };
            let Poll::Ready((follower, outcome)) = pending.as_mut().poll(cx) else {
                return match self.comment.as_mut().poll(cx) {
                    Poll::Ready(()) => self.send(COMMENT),
                    Poll::Pending => Poll::Pending,
                };
            };
            match outcome {
                Ok(Some(seen)) => {
                    self.next = Next::Pending(pull(follower));
                    if let Some(bytes) = self.take(seen) {
                        return self.send(bytes);
                    }
                }
                Ok(None) => self.finish(),
                Err(error) => {
                    // The reader sees a close without `stream.end`, and reconnects.
                    self.finish();
                    tracing::warn!(%error, "stream.failed");
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl EventStream {
    /// An event's frame, encoded by the first who sends it.
    fn encoded(&self, event: &SharedEvent) -> Option<Bytes> {
        let record = &event.record;
        match self.format {
            EventFormat::Raw => Some(event.encoded.get_or_init(|| event_frame(record)).clone()),
            EventFormat::Display => event.display.get_or_init(|| display_frame(record)).clone(),
        }
    }

    /// Takes events over, or gives the frame of anything else.
    fn take(&mut self, seen: Followed) -> Option<Bytes> {
        match seen {
            Followed::Events(events) => {
                self.events = events.into_iter();
                None
            }
            Followed::Open {
                head_seq,
                active_run_id,
                run_status,
                interactions,
            } => {
                let open = StreamOpen {
                    head_seq,
                    active_run_id,
                    run_status,
                    interactions: interactions.iter().map(InteractionResponse::from).collect(),
                    log_id: Some(self.log_id),
                };
                let open = frame(OPEN, &open);
                Some(Bytes::from(format!("retry: {RETRY_MS}\n\n{open}")))
            }
            Followed::Live { head_seq } => Some(Bytes::from(frame(LIVE, &StreamLive { head_seq }))),
            Followed::End(reason) => {
                self.finish();
                Some(Bytes::from(end_frame(reason)))
            }
        }
    }

    fn finish(&mut self) {
        self.next = Next::Over;
        if let Some(mut guard) = self.on_disconnect.take() {
            guard.is_armed = false;
        }
    }

    fn send(&mut self, bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let due = Instant::now() + self.period;
        self.comment.as_mut().reset(due);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// The frame of an event. A kind is free text; a line break in it would end its field.
fn event_frame(record: &EventRecord) -> Bytes {
    let kind = record.kind.replace(['\r', '\n'], " ");
    let data = sse_data(record);
    let seq = record.session_seq;
    Bytes::from(format!("id: {seq}\nevent: {kind}\ndata: {data}\n\n"))
}

/// The frame of an event as people see it, under the number of the stored one.
fn display_frame(record: &EventRecord) -> Option<Bytes> {
    let event = DisplayEvent::of(record)?;
    let (seq, kind) = (event.session_seq, event.kind);
    let data = display::sse_data(event);
    Some(Bytes::from(format!(
        "id: {seq}\nevent: {kind}\ndata: {data}\n\n"
    )))
}

fn frame<T: Serialize>(event: &str, data: &T) -> String {
    // Frames are made of texts and numbers, which always serialise.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {event}\ndata: {data}\n\n")
}

fn end_frame(reason: EndReason) -> String {
    let (reason, retry) = match reason {
        EndReason::Settled => (stream::EndReason::Settled, None),
        EndReason::Superseded => (stream::EndReason::Superseded, None),
        EndReason::Deleted => (stream::EndReason::Deleted, None),
        // All followers of a server that goes down must not come back in the same moment.
        EndReason::Shutdown => {
            let jittered = rand::rng().random_range(RETRY_MS..=2 * RETRY_MS);
            (stream::EndReason::Shutdown, Some(jittered))
        }
    };
    let end = frame(END, &StreamEnd { reason });
    match retry {
        Some(ms) => format!("retry: {ms}\n{end}"),
        None => end,
    }
}
