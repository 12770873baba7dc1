//! Follows the log over all sessions of a namespace (rules R22), for dashboards and archives. Like
//! [`crate::follow`] it pulls: a cursor, a hint that anything moved, and a slow poll.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tapedeck_domain::event::EventRecord;
use tapedeck_domain::limits::{EVENT_PAGE_BYTES, EVENT_PAGE_MAX, FOLLOW_PAGE_BYTES};
use tapedeck_domain::{DeploymentId, LogId};
use tapedeck_store::{FeedFilter, FeedPosition};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ControlPlane;
use crate::error::{CursorError, Outcome};

/// Between two looks where no hint comes: on PostgreSQL an event can be read only once all older
/// transactions have ended, which nobody hints at.
const POLL: Duration = Duration::from_millis(500);

/// A page without any event is looked for no longer than this.
const SCAN: Duration = Duration::from_secs(2);

/// A place in the log over all sessions, as clients hold it: opaque to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedCursor {
    log_id: LogId,
    position: FeedPosition,
}

impl FeedCursor {
    /// The log that it is a place of.
    pub const fn log_id(&self) -> LogId {
        self.log_id
    }
}

/// A text that is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of the feed")]
pub struct MalformedCursor;

impl fmt::Display for FeedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FeedPosition { transaction, row } = self.position;
        write!(f, "{}.{transaction}.{row}", self.log_id)
    }
}

impl FromStr for FeedCursor {
    type Err = MalformedCursor;

    fn from_str(text: &str) -> Result<Self, MalformedCursor> {
        let mut parts = text.split('.');
        let (Some(log_id), Some(transaction), Some(row), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(MalformedCursor);
        };
        let row: i64 = row.parse().map_err(|_number| MalformedCursor)?;
        let cursor = Self {
            log_id: log_id.parse().map_err(|_id| MalformedCursor)?,
            position: FeedPosition {
                transaction: transaction.parse().map_err(|_number| MalformedCursor)?,
                row,
            },
        };
        // One place has one text, so that cursors can be compared.
        if row < 0 || cursor.to_string() != text {
            return Err(MalformedCursor);
        }
        Ok(cursor)
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedStart {
    /// At the oldest event.
    Beginning,
    /// After this place.
    After(FeedCursor),
    /// After everything there is.
    Head,
}

/// A page of the log over all sessions.
#[derive(Debug, Clone)]
pub struct FeedPage {
    /// In order, each with its place.
    pub events: Vec<(FeedCursor, EventRecord)>,
    /// Where the next page continues.
    pub next: FeedCursor,
    /// Whether more may follow at once.
    pub more: bool,
}

/// What a follower of all sessions sees.
#[derive(Debug, Clone)]
pub enum FollowedAll {
    /// Comes first.
    Open {
        /// The log.
        log_id: LogId,
        /// Where the stream begins.
        cursor: FeedCursor,
    },
    /// Events in order, each with its place.
    Events(Vec<(FeedCursor, EventRecord)>),
    /// Caught up.
    Live {
        /// So far.
        cursor: FeedCursor,
    },
    /// The process goes down; reconnect.
    Shutdown,
}

impl ControlPlane {
    /// The log's identity; a cursor of another one is refused.
    pub fn log_id(&self) -> LogId {
        self.inner.store.reader().identity().log_id
    }

    /// The deployment's identity: all processes on one database are one.
    pub fn deployment_id(&self) -> DeploymentId {
        self.inner.store.reader().identity().deployment_id
    }

    /// Refuses cursors of another log.
    pub fn check_log(&self, cursor_log_id: LogId) -> Outcome<()> {
        let log_id = self.log_id();
        if cursor_log_id == log_id {
            return Ok(());
        }
        Err(CursorError::LogChanged {
            cursor_log_id,
            log_id,
        }
        .into())
    }

    async fn feed_position(&self, start: FeedStart) -> Outcome<FeedPosition> {
        let reader = self.inner.store.reader();
        match start {
            FeedStart::Beginning => Ok(FeedPosition::default()),
            FeedStart::Head => Ok(reader.feed_end().await?),
            FeedStart::After(cursor) => {
                self.check_log(cursor.log_id)?;
                if cursor.position > reader.feed_end().await? {
                    return Err(CursorError::FeedFuture.into());
                }
                Ok(cursor.position)
            }
        }
    }

    /// A page of the log over all sessions of a namespace. An empty one is the end, unless nothing
    /// passed for so long that the caller had better ask again: then there is `more`.
    pub async fn feed_page(
        &self,
        namespace: &str,
        start: FeedStart,
        kinds: Vec<String>,
        limit: u32,
    ) -> Outcome<FeedPage> {
        let after = self.feed_position(start).await?;
        let mut filter = FeedFilter {
            namespace: namespace.to_owned(),
            after,
            limit,
            max_bytes: EVENT_PAGE_BYTES,
            kinds,
        };
        let until = Instant::now() + SCAN;
        let mut page = self.read_feed(&filter).await?;
        filter.limit = limit.max(EVENT_PAGE_MAX);
        while page.events.is_empty() && page.more && Instant::now() < until {
            filter.after = page.next.position;
            page = self.read_feed(&filter).await?;
        }
        // The limit counts what is given; the store's counts what is looked at.
        if page.events.len() > limit as usize {
            page.events.truncate(limit as usize);
            page.more = true;
            page.next = page.events.last().map_or(page.next, |(cursor, _)| *cursor);
        }
        Ok(page)
    }

    async fn read_feed(&self, filter: &FeedFilter) -> Outcome<FeedPage> {
        let slice = self.inner.store.reader().feed(filter).await?;
        let log_id = self.log_id();
        let cursor = |position| FeedCursor { log_id, position };
        Ok(FeedPage {
            events: slice
                .events
                .into_iter()
                .map(|(position, record)| (cursor(position), record))
                .collect(),
            next: cursor(slice.through),
            more: slice.bounded,
        })
    }

    /// Opens a follower of all sessions of a namespace. Every error of the cursor comes before the
    /// first frame.
    pub async fn follow_all(
        &self,
        namespace: &str,
        start: FeedStart,
        kinds: Vec<String>,
    ) -> Outcome<FeedFollower> {
        let hint = self.inner.feed.any();
        let after = self.feed_position(start).await?;
        Ok(FeedFollower {
            control: self.clone(),
            filter: FeedFilter {
                namespace: namespace.to_owned(),
                after,
                limit: EVENT_PAGE_MAX,
                max_bytes: FOLLOW_PAGE_BYTES,
                kinds,
            },
            hint,
            phase: Phase::Opening,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Replay,
    Live,
    Done,
}

/// A cursor over the log of all sessions.
#[derive(Debug)]
pub struct FeedFollower {
    control: ControlPlane,
    filter: FeedFilter,
    hint: watch::Receiver<u64>,
    phase: Phase,
}

impl FeedFollower {
    fn cursor(&self) -> FeedCursor {
        FeedCursor {
            log_id: self.control.log_id(),
            position: self.filter.after,
        }
    }

    /// The next thing to send; `None` after the end. Waits while there is nothing.
    pub async fn next(&mut self) -> Outcome<Option<FollowedAll>> {
        match self.phase {
            Phase::Opening => {
                self.phase = Phase::Replay;
                return Ok(Some(FollowedAll::Open {
                    log_id: self.control.log_id(),
                    cursor: self.cursor(),
                }));
            }
            Phase::Done => return Ok(None),
            Phase::Replay | Phase::Live => {}
        }
        let soft = self.control.inner.lifecycle.soft().clone();
        loop {
            if soft.is_cancelled() {
                self.phase = Phase::Done;
                return Ok(Some(FollowedAll::Shutdown));
            }
            self.hint.borrow_and_update();
            let page = self.control.read_feed(&self.filter).await?;
            self.filter.after = page.next.position;
            if !page.events.is_empty() {
                return Ok(Some(FollowedAll::Events(page.events)));
            }
            if page.more {
                continue;
            }
            if self.phase == Phase::Replay {
                self.phase = Phase::Live;
                return Ok(Some(FollowedAll::Live {
                    cursor: self.cursor(),
                }));
            }
            tokio::select! {
                _moved = tokio::time::timeout(POLL, self.hint.changed()) => {}
                () = soft.cancelled() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_has_one_text_and_nothing_else_is_one() {
        let text = "00000000-0000-0000-0000-000000000007.12.345";
        let cursor: FeedCursor = text.parse().unwrap();
        assert_eq!(cursor.to_string(), text);
        for broken in [
            "",
            "12",
            "a.b.c",
            "00000000-0000-0000-0000-000000000007.12",
            "00000000-0000-0000-0000-000000000007.12.-1",
            "00000000-0000-0000-0000-000000000007.012.345",
            "00000000-0000-0000-0000-000000000007.12.345.6",
            "{00000000-0000-0000-0000-000000000007}.12.345",
        ] {
            assert_eq!(
                broken.parse::<FeedCursor>(),
                Err(MalformedCursor),
                "{broken}"
            );
        }
    }
}
