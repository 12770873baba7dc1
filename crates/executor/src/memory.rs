//! What an agent needs to take its conversation up again, reported as soon as it is known: an executor
//! that is killed can't report it with the run's end. It must never hold a turn up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_protocol::executor::HeartbeatRequest;
use tokio::time::timeout;

use crate::backend::Memory;
use crate::held::Held;
use crate::insist::{Refusal, insist};
use crate::verdict::told;

/// A server that is away for longer hears of it with the run's end.
const LIMIT: Duration = Duration::from_secs(2);

const PAUSE_LIMIT: Duration = Duration::from_millis(500);

/// Reports under one claim.
#[derive(Debug)]
pub(crate) struct RunMemory {
    pub(crate) held: Arc<Held>,
    pub(crate) client: Client,
}

#[async_trait]
impl Memory for RunMemory {
    async fn keep(&self, agent_state: Value) {
        tokio::select! {
            biased;
            () = self.held.kill.cancelled() => {}
            _in_time = timeout(LIMIT, self.report(agent_state)) => {}
        }
    }
}

impl RunMemory {
    async fn report(&self, agent_state: Value) {
        let request = HeartbeatRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            agent_state: Some(agent_state),
            ..HeartbeatRequest::default()
        };
        let call = || self.client.heartbeat(self.held.run_id, &request);
        let answer = insist(&self.held, LIMIT, PAUSE_LIMIT, call).await;
        if let Err(Refusal::Never(error)) = answer {
            let error = told(&error);
            tracing::warn!(run.id = %self.held.run_id, error, "agent state refused");
        }
    }
}
