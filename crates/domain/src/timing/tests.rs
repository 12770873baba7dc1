use super::*;

#[test]
fn one_factor_scales_every_server_time_and_none_becomes_zero() {
    let tests = Timing::scaled(0.05);
    assert_eq!(
        (tests.unacknowledged_lease_ms, tests.cancel_deadline_ms),
        (750, 1_500)
    );
    assert_eq!((tests.owner_lease_ms, tests.sweep_ms), (3_000, 250));
    assert_eq!(tests.seconds(60), 3_000);
    assert_eq!(tests.idempotency_ms, Timing::STANDARD.idempotency_ms);
    assert_eq!(Timing::scaled(0.000_001).sweep_ms, 1);
    assert_eq!(Timing::scaled(1.0), Timing::STANDARD);
}
