//! What the repository promises about its own shape, as plain tests: crate arrows, file sizes,
//! mirrored and numbered files, and documents that name everything there is. A check reads the real
//! source of truth (the manifests, the binary, the types), never a list that could go stale beside it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code outside of test functions"
)]

mod containers;
mod crates;
mod documents;
mod gate;
mod layout;
mod mutants;
mod proofs;
mod source;
mod suites;
mod wording;
