//! Pages of lists: newest first by id, continued after the last id seen.

use uuid::Uuid;

/// Which page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// The last id of the page before; `None` starts at the newest.
    pub before: Option<Uuid>,
    /// At most this many.
    pub limit: u32,
}

/// One page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page continues; `None` at the end.
    pub next: Option<Uuid>,
}
