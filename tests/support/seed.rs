//! The seed of a random test: another one each time, printed as the test begins so that a failure
//! shows it, and taken from the environment to have the same again.

use std::fmt;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

const SEED: &str = "TAPEDECK_TEST_SEED";
const CASES: &str = "TAPEDECK_TEST_CASES";

/// A seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed(u64);

impl Seed {
    /// The one that is asked for, or a new one.
    pub(crate) fn of_this_run() -> Self {
        let seed = Self(number(SEED).unwrap_or_else(rand::random));
        eprintln!("{seed}");
        seed
    }

    /// How many cases to try: as many as are asked for.
    pub(crate) fn cases(usual: u32) -> u32 {
        number(CASES).map_or(usual, |cases| u32::try_from(cases).unwrap())
    }

    /// Another number for each of the test's parts.
    pub(crate) fn number(self, part: u64) -> u64 {
        self.0 ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Other random numbers for each of the test's parts.
    pub(crate) fn of(self, part: u64) -> StdRng {
        StdRng::seed_from_u64(self.number(part))
    }

    /// As wide as other generators want it.
    pub(crate) fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the same again: {SEED}={} cargo test …", self.0)
    }
}

/// A number that a variable holds.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} must be a number")))
}
