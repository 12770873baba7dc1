//! Streams of events as server-sent events (design §6). The body pulls: it holds one follower and
//! whatever that gave last, so a reader that stops costs a cursor and no queue. What is followed
//! makes no difference here.

mod frame;
mod source;

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
use tapedeck_control_plane::follow_all::FeedFollower;
use tapedeck_control_plane::{ControlPlane, Error, Follower, Outcome};
use tapedeck_domain::RunId;
use tapedeck_domain::digest::Digest;
use tapedeck_protocol::display::EventFormat;
use tapedeck_protocol::stream::{self, EndReason};
use tokio::time::{Instant, Sleep, sleep};

use crate::extract::Call;
use source::{SessionLog, Source, Step};

/// The answer that streams a new run as it is stored.
pub(crate) fn response(
    call: &Call,
    follower: Follower,
    on_disconnect: Option<CancelOnDisconnect>,
) -> Response {
    let source = SessionLog::new(call.control(), follower);
    stream(call, source, EventFormat::Raw, on_disconnect)
}

/// The answer that streams what a follower sees, in the form that was asked for.
pub(crate) fn followed(call: &Call, follower: Follower, format: EventFormat) -> Response {
    let source = SessionLog::new(call.control(), follower);
    stream(call, source, format, None)
}

/// The same over all sessions.
pub(crate) fn followed_all(call: &Call, follower: FeedFollower, format: EventFormat) -> Response {
    stream(call, follower, format, None)
}

fn stream<S: Source>(
    call: &Call,
    source: S,
    format: EventFormat,
    on_disconnect: Option<CancelOnDisconnect>,
) -> Response {
    let control = call.control();
    let millis =
        u64::try_from(control.timing().stream_comment_ms).unwrap_or(stream::COMMENT_INTERVAL_MS);
    let period = Duration::from_millis(millis);
    let body = EventStream {
        next: Next::Pending(pull(source)),
        events: Vec::new().into_iter(),
        format,
        comment: Box::pin(sleep(period)),
        period,
        on_disconnect,
        token_ended: token_ended(control.clone(), call.principal.token),
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

/// Returns once the caller's token has ended; never where the caller needs none.
fn token_ended(control: ControlPlane, token: Option<Digest>) -> TokenEnded {
    Box::pin(async move {
        match token {
            Some(digest) => control.token_ended(digest).await,
            None => std::future::pending().await,
        }
    })
}

/// Cancels a run when its stream is dropped before its end.
#[derive(Debug)]
pub(crate) struct CancelOnDisconnect {
    control: ControlPlane,
    namespace: Arc<str>,
    run_id: RunId,
    is_armed: bool,
}

impl CancelOnDisconnect {
    pub(crate) fn new(call: &Call, run_id: RunId) -> Self {
        Self {
            control: call.control().clone(),
            namespace: Arc::clone(&call.principal.namespace),
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
        let (control, run_id) = (self.control.clone(), self.run_id);
        let namespace = Arc::clone(&self.namespace);
        lifecycle.spawn(async move {
            let cancelled = control.cancel_run(&namespace, run_id, "client_disconnected");
            if let Err(error) = cancelled.await {
                tracing::warn!(%error, %run_id, "stream.cancel_failed");
            }
        });
    }
}

type Pulled<S> = (S, Outcome<Option<Step<<S as Source>::Event>>>);
type TokenEnded = Pin<Box<dyn Future<Output = ()> + Send>>;
type Pull<S> = Pin<Box<dyn Future<Output = Pulled<S>> + Send>>;

fn pull<S: Source>(mut source: S) -> Pull<S> {
    Box::pin(async move {
        let outcome = source.next().await;
        (source, outcome)
    })
}

enum Next<S: Source> {
    Pending(Pull<S>),
    Over,
}

/// The body of a stream.
struct EventStream<S: Source> {
    next: Next<S>,
    events: std::vec::IntoIter<S::Event>,
    format: EventFormat,
    comment: Pin<Box<Sleep>>,
    period: Duration,
    on_disconnect: Option<CancelOnDisconnect>,
    token_ended: TokenEnded,
}

impl<S: Source> http_body::Body for EventStream<S> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if matches!(self.next, Next::Pending(_)) && self.token_ended.as_mut().poll(cx).is_ready() {
            self.events = Vec::new().into_iter();
            self.finish();
            return self.send(frame::end(EndReason::TokenEnded));
        }
        loop {
            if let Some(event) = self.events.next() {
                // What has no display form moves the follower's cursor and nothing else.
                let Some(bytes) = S::encode(&event, self.format) else {
                    continue;
                };
                return self.send(bytes);
            }
            let Next::Pending(pending) = &mut self.next else {
                return Poll::Ready(None);
            };
            let Poll::Ready((source, outcome)) = pending.as_mut().poll(cx) else {
                return match self.comment.as_mut().poll(cx) {
                    Poll::Ready(()) => self.send(frame::COMMENT),
                    Poll::Pending => Poll::Pending,
                };
            };
            match outcome {
                Ok(Some(step)) => {
                    self.next = Next::Pending(pull(source));
                    match step {
                        Step::Events(events) => self.events = events.into_iter(),
                        Step::Frame(bytes) => return self.send(bytes),
                        Step::Last(bytes) => {
                            self.finish();
                            return self.send(bytes);
                        }
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

impl<S: Source> EventStream<S> {
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
