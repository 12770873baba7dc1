//! The two kinds of time (rules R7): wall time is shown to people and never compared; lease time
//! comes from the store's clock and decides.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Wall time in milliseconds since the Unix epoch, shown as RFC 3339 with milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This time moved by `ms` milliseconds.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{}", self.0),
        }
    }
}

/// A text that is no RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub struct InvalidTimestamp;

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        jiff::Timestamp::from_str(text)
            .map(|time| Self(time.as_millisecond()))
            .map_err(|_unnamed| InvalidTimestamp)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A moment on the store's lease clock, in milliseconds. Only comparable within one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseInstant(pub i64);

impl LeaseInstant {
    /// This moment moved by `ms` milliseconds.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; negative if it lies before.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One reading of both clocks, taken once for each transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For display.
    pub wall: Timestamp,
    /// For decisions about what comes next: new leases start here.
    pub lease: LeaseInstant,
    /// The moment at which leases are judged: when the command arrived at the store, so that
    /// waiting in its queue costs nobody a lease (rules R6).
    pub judged: LeaseInstant,
}

impl Now {
    /// The wall time that corresponds to a lease moment, for display.
    pub const fn wall_of(self, at: LeaseInstant) -> Timestamp {
        self.wall.plus_ms(at.since(self.lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_shown_with_milliseconds_and_read_back() {
        let shown = Timestamp(1_700_000_000_007).to_string();
        assert_eq!(shown, "2023-11-14T22:13:20.007Z");
        assert_eq!(shown.parse(), Ok(Timestamp(1_700_000_000_007)));
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
    }
}
