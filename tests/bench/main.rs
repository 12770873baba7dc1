//! Measurements.
#[test]
fn x() {}
