//! What a store must offer: transactions over rows, reads, and nothing else. No SQL and no rule
//! lives here; rows are moved, and `domain` decides.

pub mod archive;
pub mod audit;
pub mod error;
pub mod page;
pub mod read;
pub mod rows;
pub mod tx;

pub use archive::{Archive, ArchiveError, RowSink, RowSource};
pub use audit::{Audit, AuditRequest, Check, Checked, Finding};
pub use error::{Failure, StoreError, Target};
pub use page::{Page, PageRequest};
pub use read::{
    EventFilter, EventSlice, FeedFilter, FeedPosition, FeedSlice, Reader, RunFilter, SessionView,
    TapeFilter,
};
pub use tx::{Heard, Hint, Lane, Store, StoreHealth, Tx, Work};
