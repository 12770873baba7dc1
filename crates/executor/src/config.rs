//! What an executor is told at its start. It owns the bounds of the options; it reads nothing from
//! the environment.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tapedeck_domain::rejection::sentences;
use tapedeck_domain::session::{DEFAULT_EXECUTOR_KIND, DEFAULT_POOL};
use tapedeck_protocol::executor::{ClaimResponse, ClaimRunRequest};

use crate::backend::Backend;
use crate::workspace::{GitOptions, WorkspaceError};

/// Shorter leases leave no time for killing an agent before their end (rules R13).
const LEASE_SECONDS: std::ops::RangeInclusive<u32> = 10..=300;

/// Makes the backend for a run.
#[async_trait]
pub trait Backends: Debug + Send + Sync {
    /// The backend for this claim, or why it can't be run here.
    fn backend(&self, claim: &ClaimResponse) -> Result<Arc<dyn Backend>, String>;

    /// Ends what backends keep between runs.
    async fn close(&self) {}
}

/// One backend for all runs.
#[derive(Debug, Clone)]
pub struct EveryRun(pub Arc<dyn Backend>);

#[async_trait]
impl Backends for EveryRun {
    fn backend(&self, _claim: &ClaimResponse) -> Result<Arc<dyn Backend>, String> {
        Ok(Arc::clone(&self.0))
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// What an executor is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Speaks to the server for claims, uploads and questions.
    pub client: Client,
    /// The same with connections of its own, which are used on the heartbeats' thread only.
    pub heartbeat_client: Client,
    /// The executor's stable name.
    pub executor_id: String,
    /// This process, see [`tapedeck_client::instance_id`]; the launcher marks agents with it.
    pub instance_id: String,
    /// The pool.
    pub pool: String,
    /// The matching label.
    pub executor_kind: String,
    /// Further labels.
    pub labels: BTreeMap<String, String>,
    /// Only runs of this session.
    pub session_id: Option<SessionId>,
    /// Local workspaces are allowed inside these directories.
    pub workspace_roots: Vec<PathBuf>,
    /// Where spool, scratch directories and locks lie; executors may share it.
    pub state_dir: PathBuf,
    /// Runs at a time.
    pub max_runs: u32,
    /// The lease to ask for, 10 to 300.
    pub lease_seconds: u32,
    /// Makes backends.
    pub backends: Arc<dyn Backends>,
    /// The executor's version.
    pub version: String,
    /// What its backend can do, for operators.
    pub capabilities: Option<Value>,
    /// How long runs may go on after the shutdown began.
    pub drain_grace: Duration,
    /// How long an agent may be silent, unless its session says otherwise.
    pub idle_timeout: Option<Duration>,
    /// How long a run may take, unless its session says otherwise.
    pub run_timeout: Option<Duration>,
    /// How long a question stays open; the server's default if not given.
    pub question_seconds: Option<u32>,
    /// How git is used for workspaces and their changes.
    pub git: GitOptions,
    /// Bytes of events a run may keep while the server is away; then its agent has to wait.
    pub spool_bytes: u64,
}

impl Options {
    /// The usual options; `client` is also used for heartbeats, which only suits a service in this
    /// process, see [`Self::heartbeat_client`].
    pub fn new(
        client: Client,
        executor_id: impl Into<String>,
        state_dir: impl Into<PathBuf>,
        backends: Arc<dyn Backends>,
    ) -> Self {
        Self {
            heartbeat_client: client.clone(),
            client,
            executor_id: executor_id.into(),
            instance_id: tapedeck_client::instance_id(),
            pool: DEFAULT_POOL.to_owned(),
            executor_kind: DEFAULT_EXECUTOR_KIND.to_owned(),
            labels: BTreeMap::new(),
            session_id: None,
            workspace_roots: Vec::new(),
            state_dir: state_dir.into(),
            max_runs: 1,
            lease_seconds: 60,
            backends,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: None,
            drain_grace: Duration::from_secs(30),
            idle_timeout: Some(Duration::from_mins(10)),
            run_timeout: None,
            question_seconds: None,
            git: GitOptions::default(),
            spool_bytes: 64 * 1024 * 1024,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ExecutorError> {
        if !LEASE_SECONDS.contains(&self.lease_seconds) {
            return Err(ExecutorError::Option(format!(
                "`lease_seconds` must be {} to {}, not {}",
                LEASE_SECONDS.start(),
                LEASE_SECONDS.end(),
                self.lease_seconds
            )));
        }
        if self.idle_timeout.is_some_and(|limit| limit.is_zero()) {
            let text = "`idle_timeout` must be at least a second";
            return Err(ExecutorError::Option(text.to_owned()));
        }
        // As the server does it, so that a refusal is known before anything starts.
        match self.claim_request().check() {
            Ok(_) => Ok(()),
            Err(errors) => Err(ExecutorError::Option(sentences(&errors))),
        }
    }

    /// What is asked for with each claim.
    pub(crate) fn claim_request(&self) -> ClaimRunRequest {
        let roots = &self.workspace_roots;
        ClaimRunRequest {
            executor_id: Some(self.executor_id.clone()),
            worker_instance_id: Some(self.instance_id.clone()),
            executor_kind: Some(self.executor_kind.clone()),
            pool: Some(self.pool.clone()),
            labels: Some(self.labels.clone()),
            session_id: self.session_id,
            lease_seconds: Some(self.lease_seconds),
            max_runs: Some(self.max_runs),
            process_id: Some(std::process::id().into()),
            capabilities: self.capabilities.clone(),
            workspace_sync: Some(serde_json::json!({"roots": roots})),
            version: Some(self.version.clone()),
            ..ClaimRunRequest::default()
        }
    }
}

/// Why an executor can't work.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// An option breaks a rule.
    #[error("{0}")]
    Option(String),
    /// A workspace root can't be used.
    #[error("workspace root: {0}")]
    Root(#[from] WorkspaceError),
    /// The state directory can't be used.
    #[error("state directory `{path}` can't be used: {source}")]
    State {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The heartbeats' thread could not be started.
    #[error("the heartbeats' thread could not be started: {0}")]
    Thread(std::io::Error),
    /// The server takes no claims from this executor.
    #[error("the server refuses this executor: {0}")]
    Refused(String),
}
