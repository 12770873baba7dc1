//! What is behind an editor on this machine: the server in the background, and an executor in a
//! process of its own for each session that gets a prompt. Both outlive the editor.

use std::collections::HashMap;
use std::path::Path;
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
use crate::config;
use crate::context::{Background, ExecutorLock};

/// Between two looks at what should be running.
const PERIOD: Duration = Duration::from_secs(1);
/// Executors of a session that fail one after the other before it is said to be no use.
const MOST_FAILURES: u32 = 3;

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
    executors: HashMap<SessionId, Executing>,
}

/// Who executes a session.
#[derive(Debug, Default)]
struct Executing {
    /// A process of ours. Without one it is another's, who holds the session's lock.
    child: Option<Child>,
    /// Processes that have failed one after the other.
    failures: u32,
}

impl Executing {
    /// Whether somebody is there. Failures are counted when they are seen.
    fn is_alive(&mut self, dir: &Path, session: SessionId) -> anyhow::Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(ExecutorLock::take(dir, session)?.is_none());
        };
        let Some(ended) = child.try_wait()? else {
            return Ok(true);
        };
        self.child = None;
        self.failures = if ended.success() {
            0
        } else {
            self.failures + 1
        };
        Ok(false)
    }

    /// Whether one more would fail like those before.
    const fn is_hopeless(&self) -> bool {
        self.failures >= MOST_FAILURES
    }
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
        for (id, executing) in &mut state.executors {
            if !executing.is_hopeless() && !executing.is_alive(self.background.dir(), *id)? {
                ended.push(*id);
            }
        }
        for id in ended {
            // A prompt may have come in its last moment.
            let session = client.session(id).await;
            if session.is_ok_and(|session| session.active_run_id.is_some()) {
                self.start_executor(&mut state, id)?;
            } else {
                state.executors.remove(&id);
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

    /// Starts an executor unless there were too many that failed.
    fn start_executor(&self, state: &mut State, session: SessionId) -> anyhow::Result<()> {
        let executing = state.executors.entry(session).or_default();
        if executing.is_hopeless() {
            return Ok(());
        }
        let id = session.to_string();
        let arguments = ["--role", "executor", "--session", &id];
        executing.child = Some(self.background.spawn(&arguments)?);
        Ok(())
    }
}

#[async_trait]
impl Host for LocalHost {
    async fn connect(&self) -> Result<Client, HostError> {
        let mut state = self.state.lock().await;
        self.client(&mut state).await.map_err(HostError::from)
    }

    fn admits(&self, directory: &Path) -> Result<(), String> {
        let at = directory.display();
        match directory.metadata() {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(format!("`{at}` is no directory")),
            Err(error) => Err(format!("`{at}` can't be used: {error}")),
        }
    }

    async fn created(&self, session: &SessionResponse) -> Result<(), HostError> {
        let dir = self.background.dir();
        local::remember(dir, session.session_id, &self.agent).map_err(HostError::from)
    }

    async fn prepare(&self, session: SessionId) -> Result<(), HostError> {
        let mut state = self.state.lock().await;
        let client = self.client(&mut state).await?;
        let executing = state.executors.entry(session).or_default();
        if executing.is_alive(self.background.dir(), session)? {
            return Ok(());
        }
        // The person may have mended what was wrong.
        executing.failures = 0;
        let known = client.session(session).await?;
        if let Some(path) = local::local_path(&known) {
            self.admits(&config::expand(&path)?)
                .map_err(|reason| format!("the session's directory isn't there: {reason}"))?;
        }
        self.start_executor(&mut state, session)
            .map_err(HostError::from)
    }

    async fn trouble(&self, session: SessionId) -> Option<String> {
        let state = self.state.lock().await;
        let executing = state.executors.get(&session)?;
        executing.is_hopeless().then(|| {
            format!(
                "the session's executor can't start; the end of `{}` says why",
                self.background.log().display()
            )
        })
    }
}
