//! Every server time in one place, in milliseconds, so that one factor can scale them all for tests
//! (stores.md, `[timing] scale`).

/// The server's times. Starting values are those of design §6 and rules R5, R6, R9, R14.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The factor the rest was multiplied with; 1 in production.
    pub scale: f64,
    /// Lease of a claim before its first heartbeat or event.
    pub unacknowledged_lease_ms: i64,
    /// Owner lease of the deployment.
    pub owner_lease_ms: i64,
    /// Owner lease of a local process that embeds the control plane.
    pub local_owner_lease_ms: i64,
    /// Period of the sweep, before jitter.
    pub sweep_ms: i64,
    /// From a cancel request to the sweep's own settlement (R14).
    pub cancel_deadline_ms: i64,
    /// Back-off before a claim that nobody acknowledged is offered again (R10).
    pub requeue_backoff_ms: i64,
    /// An executor unseen for this long is `stale`.
    pub executor_stale_ms: i64,
    /// An executor unseen for this long is `offline`.
    pub executor_offline_ms: i64,
    /// Work that no executor seen for this long can serve is flagged.
    pub unservable_ms: i64,
    /// How long a run waits for the executor that has its session's workspace, unless the session says
    /// otherwise.
    pub affinity_ms: i64,
    /// What a run's executor has, beyond the session's `max_run_seconds`, to end it by itself.
    pub overrun_ms: i64,
    /// Idle sessions release their owner lease after this long (R4).
    pub idle_release_ms: i64,
    /// Idempotency keys are kept at least this long (R17).
    pub idempotency_ms: i64,
    /// Deltas of runs that settled this long ago are folded (rules R20); `None` folds none.
    pub keep_deltas_ms: Option<i64>,
    /// Between two comments on a quiet stream.
    pub stream_comment_ms: i64,
    /// A follower that can't be written to for this long is closed (stores §6).
    pub stalled_follower_ms: i64,
}

impl Timing {
    /// The production values.
    pub const STANDARD: Self = Self {
        scale: 1.0,
        unacknowledged_lease_ms: 15_000,
        owner_lease_ms: 60_000,
        local_owner_lease_ms: 15_000,
        sweep_ms: 5_000,
        cancel_deadline_ms: 30_000,
        requeue_backoff_ms: 1_000,
        executor_stale_ms: 30_000,
        executor_offline_ms: 120_000,
        unservable_ms: 60_000,
        affinity_ms: 15_000,
        overrun_ms: 30_000,
        idle_release_ms: 600_000,
        idempotency_ms: 7 * 24 * 3_600_000,
        keep_deltas_ms: None,
        stream_comment_ms: 10_000,
        stalled_follower_ms: 60_000,
    };

    /// The production values multiplied with `scale` (how long keys and deltas are kept excepted).
    #[must_use]
    pub fn scaled(scale: f64) -> Self {
        let standard = Self::STANDARD;
        let of = |ms: i64| scale_ms(ms, scale);
        Self {
            scale,
            unacknowledged_lease_ms: of(standard.unacknowledged_lease_ms),
            owner_lease_ms: of(standard.owner_lease_ms),
            local_owner_lease_ms: of(standard.local_owner_lease_ms),
            sweep_ms: of(standard.sweep_ms),
            cancel_deadline_ms: of(standard.cancel_deadline_ms),
            requeue_backoff_ms: of(standard.requeue_backoff_ms),
            executor_stale_ms: of(standard.executor_stale_ms),
            executor_offline_ms: of(standard.executor_offline_ms),
            unservable_ms: of(standard.unservable_ms),
            affinity_ms: of(standard.affinity_ms),
            overrun_ms: of(standard.overrun_ms),
            idle_release_ms: of(standard.idle_release_ms),
            idempotency_ms: standard.idempotency_ms,
            keep_deltas_ms: standard.keep_deltas_ms,
            stream_comment_ms: of(standard.stream_comment_ms),
            stalled_follower_ms: of(standard.stalled_follower_ms),
        }
    }

    /// A time asked for by a client, in seconds, on this server's scale.
    pub fn seconds(&self, seconds: u32) -> i64 {
        scale_ms(i64::from(seconds) * 1_000, self.scale)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::STANDARD
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "times are far below 2^52 ms and rounding to a millisecond is meant"
)]
fn scale_ms(ms: i64, scale: f64) -> i64 {
    ((ms as f64 * scale) as i64).max(1)
}

#[cfg(test)]
mod tests;
