//! The SQLite store through its public face: rows, groups, locks, clocks, plans and crashes.

#[cfg(test)]
mod checkpoint_rows;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod directory;
#[cfg(test)]
mod fold_rows;
#[cfg(test)]
mod groups;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod queue_rows;
#[cfg(test)]
mod reads;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod run_rows;
#[cfg(test)]
mod snapshot_rows;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tape_rows;
