//! Tapedeck as an agent for editors: the official client library drives the real binary over its
//! pipes. Each editor checks that nothing but the protocol came out.

mod by_hand;
mod editor;
mod local;
mod remote;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol::v1::schema::StopReason;
use serde_json::Value;

use crate::server::{ExecutorOptions, Place, Process, Server, executor};
use editor::Editor;

/// For what takes an agent, a server and an executor, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_mins(1);

/// A server with an executor for the demo agent.
struct Stage {
    place: Arc<Place>,
    server: Server,
    _executor: Process,
}

impl Stage {
    async fn new() -> Self {
        let place = Arc::new(Place::new());
        let server = Server::start(&place).await;
        let options = ExecutorOptions {
            max_runs: 4,
            ..ExecutorOptions::named("stage")
        };
        let executor = executor(&place, &server.url(), &options);
        Self {
            place,
            server,
            _executor: executor,
        }
    }

    /// An editor that has begun.
    async fn editor(&self) -> Editor {
        let url = self.server.url();
        Editor::start(&self.place, &["--server", &url]).await
    }

    async fn runs(&self, session: &str) -> Vec<Value> {
        let path = format!("/sessions/{session}/runs");
        let runs = self.server.get(&path).await.ok();
        runs["runs"].as_array().unwrap().clone()
    }
}

#[track_caller]
fn ended(reason: Result<StopReason, agent_client_protocol::Error>) {
    assert_eq!(reason.unwrap(), StopReason::EndTurn);
}
