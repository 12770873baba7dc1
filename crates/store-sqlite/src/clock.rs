//! The store's two clocks (rules R7). Leases are compared on a clock that runs while the machine
//! sleeps and that all processes of one boot share; wall time is for display and never compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use nix::time::{ClockId, clock_gettime};
use tapedeck_domain::digest::hex;
use tapedeck_domain::{LeaseInstant, Now, Timestamp};

#[cfg(any(target_os = "linux", target_os = "android"))]
const LEASE_CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const LEASE_CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Both clocks of one boot.
#[derive(Debug, Clone)]
pub struct Clock {
    boot_id: Arc<str>,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(ManualClock),
}

impl Clock {
    /// The machine's clocks.
    pub fn system() -> Self {
        // Without a boot id every start counts as another boot: live leases are then credited with
        // the time since the last sign of life, which harms nobody.
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
            |_absent| hex(&rand::random::<[u8; 16]>()),
            |text| text.trim().to_owned(),
        );
        Self {
            boot_id: boot_id.into(),
            source: Source::System,
        }
    }

    /// Clocks that a test sets, on a boot that it names.
    pub fn manual(clock: ManualClock, boot_id: &str) -> Self {
        Self {
            boot_id: boot_id.into(),
            source: Source::Manual(clock),
        }
    }

    pub(crate) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The lease clock.
    pub(crate) fn lease(&self) -> LeaseInstant {
        match &self.source {
            Source::System => LeaseInstant(lease_ms()),
            Source::Manual(clock) => LeaseInstant(clock.times.lease.load(Ordering::SeqCst)),
        }
    }

    /// The wall clock.
    pub(crate) fn wall(&self) -> Timestamp {
        match &self.source {
            Source::System => Timestamp(wall_ms()),
            Source::Manual(clock) => Timestamp(clock.times.wall.load(Ordering::SeqCst)),
        }
    }

    /// Both clocks for a command that arrived at `arrived`.
    pub(crate) fn now(&self, arrived: LeaseInstant) -> Now {
        Now {
            wall: self.wall(),
            lease: self.lease(),
            judged: arrived,
        }
    }
}

fn lease_ms() -> i64 {
    // The clock exists on every supported system; at 0 no lease would ever end, which is the safe
    // side of a failure.
    clock_gettime(LEASE_CLOCK).map_or(0, |time| {
        time.tv_sec()
            .saturating_mul(1_000)
            .saturating_add(time.tv_nsec() / 1_000_000)
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the store's clock (rules R7)"
)]
fn wall_ms() -> i64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

/// Times that a test sets, shared by everybody who holds a clone.
#[derive(Debug, Clone)]
pub struct ManualClock {
    times: Arc<Times>,
}

#[derive(Debug)]
struct Times {
    wall: AtomicI64,
    lease: AtomicI64,
}

impl ManualClock {
    /// Clocks that stand at these times.
    pub fn new(wall: Timestamp, lease: LeaseInstant) -> Self {
        Self {
            times: Arc::new(Times {
                wall: AtomicI64::new(wall.0),
                lease: AtomicI64::new(lease.0),
            }),
        }
    }

    /// Moves both clocks by `ms`.
    pub fn advance(&self, ms: i64) {
        self.times.wall.fetch_add(ms, Ordering::SeqCst);
        self.times.lease.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock alone, as an operator or a time server may.
    pub fn set_wall(&self, wall: Timestamp) {
        self.times.wall.store(wall.0, Ordering::SeqCst);
    }

    /// Sets the lease clock alone, as a reboot does.
    pub fn set_lease(&self, lease: LeaseInstant) {
        self.times.lease.store(lease.0, Ordering::SeqCst);
    }
}
