//! A typed client of the HTTP interface over any `tower::Service`: a connector for a remote server,
//! or the server's own router in process. It retries only what can't run twice, and knows no rules.

mod call;
mod changes;
mod checkpoints;
mod connect;
mod error;
mod executor;
mod executors;
mod id;
mod interactions;
mod operations;
mod rules;
mod runs;
mod sealed;
mod secret;
mod sessions;
mod sse;
mod stream;
mod tape;
mod tokens;

pub use call::Options;
pub use connect::{BoxError, Client, RequestBody, ResponseBody};
pub use error::Error;
pub use id::{claim_request_id, command_id, instance_id};
pub use secret::{NoToken, Secret};
pub use sessions::Paging;
pub use stream::{
    FeedFollower, FeedFrame, FeedStart, Follow, FollowAll, Follower, Frame, Start, StreamEvent,
    StreamOptions,
};
pub use tape::Transcript;

/// What a call gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod script;
