//! Rows in PostgreSQL, for several instances of a server at once. Each command is one transaction
//! that locks its session's head; readers take no locks. What rows mean is decided elsewhere: no
//! rule lives here.

mod archive;
mod audit;
mod clock;
mod database;
mod encode;
mod error;
mod gate;
mod hints;
mod live;
mod notify;
mod open;
mod options;
mod read;
mod record;
mod rows;
mod store;
mod transaction;
mod tx;

pub use clock::{Clock, ManualClock};
pub use database::PostgresDatabase;
pub use options::{Hints, Options};
pub use store::PostgresStore;
