//! What is behind an editor on this machine: the server in the background, and an executor in a
//! process of its own for each session that gets a prompt. Both outlive the editor.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use tapedeck_acp_agent::{Host, HostError};
use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tapedeck_protocol::session::SessionResponse;
use tokio::process::Child;
use tokio::sync::Mutex;

use crate::commands::agents::Agent;
use crate::commands::local;
use crate::context::Background;

/// Between two looks at what should be running.
const PERIOD: Duration = Duration::from_secs(1);

/// The server in the background and executors of our own.
#[derive(Debug)]
pub(super) struct LocalHost {
    background: Background,
    agent: Agent,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The client, and the address that it is for.
    client: Option<(String, Client)>,
    executors: HashMap<SessionId, Child>,
}

impl LocalHost {
    pub(super) fn new(background: Background, agent: Agent) -> Self {
        Self {
            background,
            agent,
            state: Mutex::default(),
        }
    }

    /// Starts again what has died and is needed, for as long as this process lives.
    pub(super) async fn keep(&self) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.look().await {
                tracing::warn!(error = format!("{error:#}"), "acp.keep_failed");
            }
        }
    }

    async fn look(&self) -> anyhow::Result<()> {
        let mut state = self.state.lock().await;
        if state.client.is_none() {
            return Ok(());
        }
        let client = self.client(&mut state).await?;
        let mut ended = Vec::new();
        for (id, child) in &mut state.executors {
            if child.try_wait()?.is_some() {
                ended.push(*id);
            }
        }
        for id in ended {
            state.executors.remove(&id);
            // A prompt may have come in its last moment.
            let session = client.session(id).await;
            if session.is_ok_and(|session| session.active_run_id.is_some()) {
                self.start_executor(&mut state, id)?;
            }
        }
        Ok(())
    }

    async fn client(&self, state: &mut State) -> anyhow::Result<Client> {
        let holder = self.background.holder().await?;
        match &state.client {
            Some((url, client)) if *url == holder.url => Ok(client.clone()),
            Some(_) | None => {
                let client = holder.client()?;
                state.client = Some((holder.url, client.clone()));
                Ok(client)
            }
        }
    }

    fn start_executor(&self, state: &mut State, session: SessionId) -> anyhow::Result<()> {
        let id = session.to_string();
        let child = self
            .background
            .spawn(&["--role", "executor", "--session", &id])?;
        state.executors.insert(session, child);
        Ok(())
    }
}

#[async_trait]
impl Host for LocalHost {
    async fn connect(&self) -> Result<Client, HostError> {
        let mut state = self.state.lock().await;
        self.client(&mut state).await.map_err(HostError::from)
    }

    async fn created(&self, session: &SessionResponse) -> Result<(), HostError> {
        let dir = self.background.dir();
        local::remember(dir, session.session_id, &self.agent).map_err(HostError::from)
    }

    async fn prepare(&self, session: SessionId) -> Result<(), HostError> {
        let mut state = self.state.lock().await;
        self.client(&mut state).await?;
        let child = state.executors.get_mut(&session);
        if let Some(child) = child
            && child.try_wait()?.is_none()
        {
            return Ok(());
        }
        self.start_executor(&mut state, session)
            .map_err(HostError::from)
    }
}
