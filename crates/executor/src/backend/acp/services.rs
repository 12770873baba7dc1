//! What an agent may have the executor do for it in one turn, where the executor was started to
//! offer it. It owns the requests under way; none is left open at the end of the turn.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::task::JoinSet;

use super::files::{Files, Refusal};
use super::rpc::{INTERNAL_ERROR, METHOD_NOT_FOUND, Peer};
use super::terminals::Terminals;

/// Requests at a time; more are refused.
const REQUESTS: usize = 128;

/// Files and terminals of one turn.
#[derive(Debug, Default)]
pub(super) struct Services {
    pub(super) files: Option<Files>,
    pub(super) terminals: Option<Arc<Terminals>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Services {
    pub(super) fn new(files: Option<Files>, terminals: Option<Terminals>) -> Self {
        Self {
            files,
            terminals: terminals.map(Arc::new),
            tasks: Mutex::default(),
        }
    }

    /// Answers a request in a task of its own; the agent may wait in one for another's effect.
    pub(super) async fn request(&self, peer: Peer, id: Value, method: String, params: Value) {
        let work = answer(self.files.clone(), self.terminals.clone(), method, params);
        let refused = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            if tasks.len() < REQUESTS {
                let (peer, id) = (peer.clone(), id.clone());
                tasks.spawn(async move {
                    match work.await {
                        Ok(result) => peer.answer(id, result).await,
                        Err(refusal) => peer.refuse(id, refusal.code, &refusal.text).await,
                    }
                });
                return;
            }
            "too many requests are open"
        };
        peer.refuse(id, INTERNAL_ERROR, refused).await;
    }

    /// What a terminal has put out.
    pub(super) fn shown(&self, terminal: &str) -> Option<String> {
        self.terminals.as_ref()?.shown(terminal)
    }

    /// Ends what is under way and all commands.
    pub(super) async fn close(&self) {
        if let Some(terminals) = &self.terminals {
            terminals.close().await;
        }
    }
}

async fn answer(
    files: Option<Files>,
    terminals: Option<Arc<Terminals>>,
    method: String,
    params: Value,
) -> Result<Value, Refusal> {
    let unknown = || {
        let text = format!("`{method}` is not offered by this client");
        Refusal::new(METHOD_NOT_FOUND, text)
    };
    match (method.as_str(), files, terminals) {
        ("fs/read_text_file", Some(files), _) => blocking(move || files.read(&params)).await,
        ("fs/write_text_file", Some(files), _) => blocking(move || files.write(&params)).await,
        (_, _, Some(terminals)) => {
            let answer = terminals.answer(&method, &params).await;
            answer.unwrap_or_else(|| Err(unknown()))
        }
        _ => Err(unknown()),
    }
}

async fn blocking(
    work: impl FnOnce() -> Result<Value, Refusal> + Send + 'static,
) -> Result<Value, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Refusal::new(INTERNAL_ERROR, error.to_string())))
}
