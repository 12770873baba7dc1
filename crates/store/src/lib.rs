//! What a store must offer: transactions over rows, reads, and nothing else. No SQL and no rule
//! lives here; rows are moved, and `domain` decides.

pub mod error;
pub mod page;
pub mod read;
pub mod rows;
pub mod tx;

pub use error::{Failure, StoreError, Target};
pub use page::{Page, PageRequest};
pub use read::{EventFilter, EventSlice, Reader, SessionView};
pub use tx::{Lane, Store, StoreHealth, Tx, Work};
