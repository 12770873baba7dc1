//! The two kinds of time (rules R7): wall time is shown to people and never compared, but for
//! the end of a token (ADR 28); lease time comes from the store's clock and decides.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::fmt::temporal::Pieces;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
/// The times that RFC 3339 can write in UTC: its years have four digits.
const WRITABLE: RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

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
        // A `jiff::Timestamp` ends a day earlier than RFC 3339, to have room for any offset.
        match EPOCH.checked_add(SignedDuration::from_millis(self.0)) {
            Ok(time) if WRITABLE.contains(&self.0) => write!(f, "{time:.3}Z"),
            Ok(_) | Err(_) => write!(f, "{}", self.0),
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
        let pieces = Pieces::parse(text).map_err(|_unnamed| InvalidTimestamp)?;
        let (Some(time), Some(offset)) = (pieces.time(), pieces.to_numeric_offset()) else {
            return Err(InvalidTimestamp);
        };
        let local = pieces.date().to_datetime(time).duration_since(EPOCH);
        let utc = local - SignedDuration::from_secs(i64::from(offset.seconds()));
        let ms = i64::try_from(utc.as_millis()).map_err(|_far| InvalidTimestamp)?;
        if WRITABLE.contains(&ms) {
            Ok(Self(ms))
        } else {
            Err(InvalidTimestamp)
        }
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

    #[test]
    fn every_millisecond_that_rfc_3339_can_write_is_a_time() {
        for (text, ms) in [
            ("0000-01-01T00:00:00.000Z", *WRITABLE.start()),
            ("1969-12-31T23:59:59.999Z", -1),
            ("9999-12-31T23:59:59.999Z", *WRITABLE.end()),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp(ms)));
            assert_eq!(Timestamp(ms).to_string(), text);
        }
        for (text, ms) in [
            ("2023-11-15T00:13:20.007+02:00", 1_700_000_000_007),
            ("9999-12-31T23:59:59.999999Z", *WRITABLE.end()),
            ("9999-12-31T22:59:59.999-01:00", *WRITABLE.end()),
            ("0000-01-01T01:00:00+01:00", *WRITABLE.start()),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp(ms)), "{text}");
        }
        // What isn't a time, has no offset, or has no four digits of a year in UTC.
        for text in [
            "yesterday",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "9999-12-31T23:59:59.999-01:00",
            "0000-01-01T00:00:00+01:00",
            "+010000-01-01T00:00:00Z",
            "-000001-12-31T23:59:59Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(InvalidTimestamp), "{text}");
        }
    }
}
