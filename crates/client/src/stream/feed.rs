//! Follows the log over all sessions, and reads pages of it. Its cursors are texts that only the
//! server can read, so what follows what is the server's word; each is kept with its event.

use std::fmt;

use futures::Stream;
use tapedeck_protocol::feed::{FeedLive, FeedOpen, FeedPage, FeedQuery};
use tapedeck_protocol::stream::{END, EndReason, LIVE, OPEN, StreamEnd};

use super::frame::{StreamEvent, StreamOptions};
use super::{Broken, Resuming, Source, Taken, parse};
use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::error::Error;
use crate::sse::RawFrame;

/// Where to start in the log over all sessions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FeedStart {
    /// With the oldest event.
    #[default]
    Beginning,
    /// After this cursor.
    After(String),
    /// At the end: only what is new.
    Head,
}

/// What to follow of the log over all sessions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowAll {
    /// Where to start.
    pub start: FeedStart,
    /// Only these kinds; empty is every kind.
    pub kinds: Vec<String>,
}

/// What a stream over all sessions yields.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedFrame {
    /// A connection begins, the first or a later one.
    Open(FeedOpen),
    /// An event.
    Event {
        /// Its place: whoever has dealt with the event goes on from here.
        cursor: String,
        /// The event.
        event: StreamEvent,
    },
    /// The stream has caught up.
    Live(FeedLive),
}

/// A stream over all sessions that reconnects by itself and never ends but with an error. `next` may
/// be dropped at any time without losing anything.
pub struct FeedFollower {
    stream: Resuming<WholeLog>,
    /// The place after what was yielded.
    cursor: Option<String>,
}

/// The place in the log over all sessions.
struct WholeLog {
    follow: FollowAll,
    /// The place after what was yielded or is ready; `None` before the server has named one.
    last: Option<String>,
}

impl fmt::Debug for FeedFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedFollower")
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// One page of the log over all sessions. A page without `more` is the end.
    pub async fn feed(&self, query: &FeedQuery) -> Result<FeedPage> {
        let call = Call::get(&["events"])
            .query("after", query.after.as_ref())
            .query("limit", query.limit.as_ref())
            .query("kinds", query.kinds.as_ref());
        self.call(call).await
    }

    /// Follows the log over all sessions. The stream ends with 409 `log_changed` where another log was
    /// put in this one's place: its events have to be read from the beginning.
    pub fn follow_all(&self, follow: FollowAll, options: StreamOptions) -> FeedFollower {
        let last = match &follow.start {
            FeedStart::Beginning | FeedStart::Head => None,
            FeedStart::After(cursor) => Some(cursor.clone()),
        };
        FeedFollower {
            cursor: last.clone(),
            stream: Resuming::new(self, WholeLog { follow, last }, options),
        }
    }
}

impl FeedFollower {
    /// The next frame. After an error there is none.
    pub async fn next(&mut self) -> Option<Result<FeedFrame, Error>> {
        let next = self.stream.next().await;
        if let Some(Ok(frame)) = &next {
            let cursor = match frame {
                FeedFrame::Open(open) => self.cursor.as_ref().unwrap_or(&open.cursor),
                FeedFrame::Event { cursor, .. } => cursor,
                FeedFrame::Live(live) => &live.cursor,
            };
            self.cursor = Some(cursor.clone());
        }
        next
    }

    /// The cursor after which a new follower would go on; `None` before the first frame.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// The same as a `Stream`.
    pub fn into_stream(self) -> impl Stream<Item = Result<FeedFrame, Error>> + Send {
        futures::stream::unfold(self, |mut follower| async move {
            let item = follower.next().await?;
            Some((item, follower))
        })
    }
}

impl Source for WholeLog {
    type Frame = FeedFrame;

    fn call(&self) -> Call {
        let kinds = (!self.follow.kinds.is_empty()).then(|| self.follow.kinds.join(","));
        let at_head = self.last.is_none() && self.follow.start == FeedStart::Head;
        Call::get(&["events"])
            .query("after", at_head.then_some("head"))
            .query("kinds", kinds)
            .last_event_id(self.last.as_ref())
    }

    fn place(&self) -> String {
        format!("all sessions {:?}", self.last)
    }

    fn take(&mut self, raw: &RawFrame) -> Result<Taken<FeedFrame>, Broken> {
        match raw.event.as_str() {
            // Only events have an id; a frame of the stream's own never does.
            _ if raw.id.is_some() => self.take_event(raw),
            OPEN => {
                let open: FeedOpen = parse(raw)?;
                self.last.get_or_insert_with(|| open.cursor.clone());
                Ok(Taken::Open(FeedFrame::Open(open)))
            }
            LIVE => {
                let live: FeedLive = parse(raw)?;
                // What the filter left out need not be looked at again.
                self.last = Some(live.cursor.clone());
                Ok(Taken::Beside(FeedFrame::Live(live)))
            }
            END => {
                let end: StreamEnd = parse(raw)?;
                Err(match end.reason {
                    EndReason::Shutdown => Broken::Lost("the server shuts down".to_owned()),
                    // The next request is told so, unless another token has come meanwhile.
                    EndReason::TokenEnded => Broken::Lost("the token has ended".to_owned()),
                    reason @ (EndReason::Settled | EndReason::Superseded | EndReason::Deleted) => {
                        let why = format!("a stream over all sessions ends with {reason:?}");
                        Broken::Fault(why)
                    }
                })
            }
            // Frames of a later version.
            other if other.starts_with("stream.") => Ok(Taken::Nothing),
            _ => self.take_event(raw),
        }
    }
}

impl WholeLog {
    fn take_event(&mut self, raw: &RawFrame) -> Result<Taken<FeedFrame>, Broken> {
        let Some(cursor) = raw.id.clone().filter(|id| !id.is_empty()) else {
            return Err(Broken::Fault("an event has no id".to_owned()));
        };
        if self.last.as_ref() == Some(&cursor) {
            tracing::debug!(cursor, "a stream repeats an event");
            return Ok(Taken::Nothing);
        }
        let (event, _) = StreamEvent::read(parse(raw)?)?;
        self.last = Some(cursor.clone());
        Ok(Taken::Event(FeedFrame::Event { cursor, event }))
    }
}

#[cfg(test)]
mod tests;
