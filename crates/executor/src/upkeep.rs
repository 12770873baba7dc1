//! Asks the server now and then which sessions are over, and ends what lies here of those. Nobody
//! tells an executor when a session is closed: it may be away at that time.

use std::convert::Infallible;
use std::time::Duration;

use tapedeck_client::{Client, Error};
use tapedeck_domain::git::Upkeep;
use tapedeck_domain::{DeploymentId, SessionId};
use tapedeck_protocol::ErrorCode;
use tokio::time::sleep;

use crate::verdict::{told, within};
use crate::workspace::{WorkspaceError, Workspaces};

const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Why the sessions on this machine could not be looked after.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// The server could not be asked.
    #[error("the server can't be asked which sessions are over")]
    Server(#[from] Error),
    /// What lies here can't be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

/// Looks after the sessions on this machine, at once and then every `period`.
pub(crate) async fn keep_tidy(
    client: &Client,
    workspaces: &Workspaces,
    period: Duration,
) -> Infallible {
    loop {
        match end_sessions(client, workspaces, false).await {
            Ok(_) => {}
            Err(UpkeepError::Server(error)) => {
                let error = told(&error);
                tracing::debug!(error, "the server can't be asked which sessions are over");
            }
            Err(error) => tracing::warn!(%error, "worktrees can't be looked after"),
        }
        sleep(period).await;
    }
}

/// Ends what lies here of sessions that are over, and tells what became of each. `force` counts work
/// that is not committed as old enough. One that can't be ended keeps no other.
pub async fn end_sessions(
    client: &Client,
    workspaces: &Workspaces,
    force: bool,
) -> Result<Vec<(String, Upkeep)>, UpkeepError> {
    let sessions = workspaces.sessions()?;
    let mut ended = Vec::new();
    if sessions.is_empty() {
        return Ok(ended);
    }
    let here = within(CALL_LIMIT, client.capabilities()).await?;
    for session_id in sessions {
        let Ok(id) = session_id.parse() else { continue };
        if !is_over(client, workspaces, here.deployment_id, id).await? {
            continue;
        }
        match workspaces.end_session(&session_id, force).await {
            Ok(done) => ended.push((session_id, done)),
            Err(error) => tracing::warn!(session_id, %error, "a worktree could not be removed"),
        }
    }
    Ok(ended)
}

/// Whether a session is closed or deleted. One that this server doesn't know is deleted only if the
/// server is known to have had it: executors of several servers may share a state directory.
async fn is_over(
    client: &Client,
    workspaces: &Workspaces,
    here: DeploymentId,
    id: SessionId,
) -> Result<bool, UpkeepError> {
    let (session_id, here) = (id.to_string(), here.to_string());
    match within(CALL_LIMIT, client.session(id)).await {
        Ok(session) => {
            workspaces.note_deployment(&session_id, &here)?;
            Ok(session.closed_at.is_some())
        }
        Err(error) if error.code() == Some(ErrorCode::SessionNotFound) => {
            let known = workspaces.noted_deployment(&session_id)?;
            Ok(known.is_some_and(|known| known == here))
        }
        Err(error) => Err(error.into()),
    }
}
