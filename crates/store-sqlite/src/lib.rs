//! Rows in one SQLite file. All writes pass one writer that commits them in groups; readers can't
//! write. What rows mean is decided elsewhere: no rule lives here.

mod archive;
mod audit;
mod backup;
mod clock;
mod encode;
mod error;
mod file;
mod group;
mod live;
mod lock;
mod open;
mod options;
mod queue;
mod read;
mod record;
mod rows;
mod store;
mod tx;
mod watch;
mod writer;

pub use backup::Backup;
pub use clock::{Clock, ManualClock};
pub use file::SqliteFile;
pub use options::{Durability, Mode, Options};
pub use store::SqliteStore;
