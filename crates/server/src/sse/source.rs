//! What a stream follows: one session's log, or the log over all sessions. A source turns what its
//! follower sees into frames; it knows nothing of connections.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use tapedeck_control_plane::feed::SharedEvent;
use tapedeck_control_plane::follow::{self, Followed, Follower};
use tapedeck_control_plane::follow_all::{FeedCursor, FeedFollower, FollowedAll};
use tapedeck_control_plane::{ControlPlane, Outcome};
use tapedeck_domain::LogId;
use tapedeck_domain::event::EventRecord;
use tapedeck_protocol::display::EventFormat;
use tapedeck_protocol::feed::{FeedLive, FeedOpen};
use tapedeck_protocol::interaction::InteractionResponse;
use tapedeck_protocol::stream::{EndReason, LIVE, StreamLive, StreamOpen};

use super::frame;

/// What comes next on a stream.
pub(super) enum Step<E> {
    /// Events, which are encoded when they are sent.
    Events(Vec<E>),
    /// A frame of the stream's own.
    Frame(Bytes),
    /// The last frame.
    Last(Bytes),
}

/// What is followed.
pub(super) trait Source: Sized + Unpin + Send + 'static {
    /// An event with its place.
    type Event: Unpin + Send;

    /// Waits while there is nothing; `None` after the end.
    fn next(&mut self) -> impl Future<Output = Outcome<Option<Step<Self::Event>>>> + Send;

    /// An event's frame; `None` where it has none in this form.
    fn encode(event: &Self::Event, format: EventFormat) -> Option<Bytes>;
}

/// One session's log.
pub(super) struct SessionLog {
    follower: Follower,
    log_id: LogId,
}

impl SessionLog {
    pub(super) fn new(control: &ControlPlane, follower: Follower) -> Self {
        Self {
            follower,
            log_id: control.log_id(),
        }
    }
}

impl Source for SessionLog {
    type Event = Arc<SharedEvent>;

    async fn next(&mut self) -> Outcome<Option<Step<Self::Event>>> {
        let Some(seen) = self.follower.next().await? else {
            return Ok(None);
        };
        Ok(Some(match seen {
            Followed::Events(events) => Step::Events(events),
            Followed::Open {
                head_seq,
                active_run_id,
                run_status,
                interactions,
            } => Step::Frame(frame::open(&StreamOpen {
                head_seq,
                active_run_id,
                run_status,
                interactions: interactions.iter().map(InteractionResponse::from).collect(),
                log_id: Some(self.log_id),
            })),
            Followed::Live { head_seq } => Step::Frame(frame::own(LIVE, &StreamLive { head_seq })),
            Followed::End(reason) => Step::Last(frame::end(match reason {
                follow::EndReason::Settled => EndReason::Settled,
                follow::EndReason::Superseded => EndReason::Superseded,
                follow::EndReason::Deleted => EndReason::Deleted,
                follow::EndReason::Shutdown => EndReason::Shutdown,
            })),
        }))
    }

    /// Encoded by the first who sends it, for all who follow.
    fn encode(event: &Self::Event, format: EventFormat) -> Option<Bytes> {
        let record = &event.record;
        let seq = record.session_seq;
        match format {
            EventFormat::Raw => {
                let encoded = event.encoded.get_or_init(|| frame::raw(seq, record));
                Some(encoded.clone())
            }
            EventFormat::Display => {
                let encoded = event.display.get_or_init(|| frame::shown(seq, record));
                encoded.clone()
            }
        }
    }
}

impl Source for FeedFollower {
    type Event = (FeedCursor, EventRecord);

    async fn next(&mut self) -> Outcome<Option<Step<Self::Event>>> {
        let Some(seen) = Self::next(self).await? else {
            return Ok(None);
        };
        Ok(Some(match seen {
            FollowedAll::Events(events) => Step::Events(events),
            FollowedAll::Open { log_id, cursor } => Step::Frame(frame::open(&FeedOpen {
                log_id,
                cursor: cursor.to_string(),
            })),
            FollowedAll::Live { cursor } => {
                let cursor = cursor.to_string();
                Step::Frame(frame::own(LIVE, &FeedLive { cursor }))
            }
            FollowedAll::Shutdown => Step::Last(frame::end(EndReason::Shutdown)),
        }))
    }

    fn encode((cursor, record): &Self::Event, format: EventFormat) -> Option<Bytes> {
        match format {
            EventFormat::Raw => Some(frame::raw(cursor, record)),
            EventFormat::Display => frame::shown(cursor, record),
        }
    }
}
