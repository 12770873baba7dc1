//! The server's interface, through the router in memory and on a real socket.

#[cfg(test)]
mod api;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod checkpoints;
#[cfg(test)]
mod display;
#[cfg(test)]
mod document;
#[cfg(test)]
mod edge;
#[cfg(test)]
mod executors;
#[cfg(test)]
mod feed;
#[cfg(test)]
mod queries;
#[cfg(test)]
mod questions;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tape;
#[cfg(test)]
mod tokens;
