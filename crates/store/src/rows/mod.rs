//! Row traits, named after what they do to rows. No method contains a rule; each states how many
//! rows it expects and fails otherwise.

mod artifacts;
mod checkpoints;
mod deployment;
mod events;
mod executors;
mod folds;
mod heads;
mod idempotency;
mod interactions;
mod queue;
mod rules;
mod runs;
mod sessions;
mod snapshots;
mod tape;
mod tokens;

pub use artifacts::ArtifactRows;
pub use checkpoints::CheckpointRows;
pub use deployment::{Deployment, DeploymentRows};
pub use events::EventRows;
pub use executors::ExecutorRows;
pub use folds::{FoldCandidate, FoldRows, RunSpan};
pub use heads::HeadRows;
pub use idempotency::IdempotencyRows;
pub use interactions::InteractionRows;
pub use queue::{Candidate, ClaimFilter, ClaimOfRequest, QueueEntry, QueueRows, WaitingRun};
pub use rules::RuleRows;
pub use runs::{LockedRun, RunProgress, RunRows, SettledRun};
pub use sessions::{LockedSession, SessionRows};
pub use snapshots::SnapshotRows;
pub use tape::TapeRows;
pub use tokens::TokenRows;

/// What row methods give.
pub type Rows<T> = Result<T, crate::error::StoreError>;
