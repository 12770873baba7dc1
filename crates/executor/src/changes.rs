//! What a run changes in its workspace, told to the server before the run's end. It owns the bounds
//! in time: a run is never kept from its end by this, and never fails because of it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tapedeck_client::Client;
use tapedeck_protocol::changes::{
    CHANGES_TYPE, PATCH_TYPE, RUN_CHANGES, RUN_PATCH, SESSION_CHANGES, SESSION_PATCH,
};
use tapedeck_protocol::executor::{ArtifactUpload, ArtifactsRequest};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::held::Held;
use crate::insist::{Refusal, insist};
use crate::verdict::told;
use crate::workspace::{Difference, GitError, Tracking, Workspaces, summary};

/// Noting the files before the run.
const BEGIN_LIMIT: Duration = Duration::from_mins(2);
/// Comparing and uploading after a run that ended by itself.
const END_LIMIT: Duration = Duration::from_mins(3);
/// The same for a run that is cancelled or handed back: somebody waits for its end.
const BRIEF_LIMIT: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(30);
const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// The changes of one run.
#[derive(Debug)]
pub(crate) struct RunChanges {
    tracking: Tracking,
    held: Arc<Held>,
    client: Client,
}

impl RunChanges {
    /// Begins to follow a workspace, where that can be done.
    pub(crate) async fn begin(
        workspaces: &Workspaces,
        (directory, session_id): (&Path, &str),
        held: Arc<Held>,
        client: Client,
    ) -> Option<Self> {
        let tracking = timeout(BEGIN_LIMIT, workspaces.track(directory, session_id)).await;
        let why = match tracking {
            Ok(Ok(tracking)) => {
                return tracking.map(|tracking| Self {
                    tracking,
                    held,
                    client,
                });
            }
            // Without git nothing is a repository.
            Ok(Err(GitError::Start(error))) if error.kind() == ErrorKind::NotFound => {
                tracing::debug!("there is no git on this machine, so changes are not followed");
                return None;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("it took more than {} seconds", BEGIN_LIMIT.as_secs()),
        };
        tracing::warn!(why, "the changes of this run can't be followed");
        None
    }

    /// Tells the server what has changed, and gives what the run's result says of it. `brief` is for
    /// ends that somebody waits for.
    pub(crate) async fn tell(&self, brief: bool, hand_back: &CancellationToken) -> Option<Value> {
        let limit = if brief { BRIEF_LIMIT } else { END_LIMIT };
        let hurried = async {
            hand_back.cancelled().await;
            sleep(BRIEF_LIMIT).await;
        };
        tokio::select! {
            told = self.compare_and_upload() => told,
            () = self.held.lost() => None,
            () = sleep(limit) => too_late(),
            () = hurried => too_late(),
        }
    }

    async fn compare_and_upload(&self) -> Option<Value> {
        let changes = match self.tracking.changes().await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "what this run changed can't be told");
                return None;
            }
        };
        let named = summary(&changes.run.table);
        let mut artifacts = artifacts(changes.run, RUN_CHANGES, RUN_PATCH);
        if let Some(session) = changes.session {
            artifacts.extend(self::artifacts(session, SESSION_CHANGES, SESSION_PATCH));
        }
        self.upload(artifacts).await;
        Some(named)
    }

    async fn upload(&self, artifacts: Vec<ArtifactUpload>) {
        let request = ArtifactsRequest {
            executor_id: Some(self.held.executor_id.clone()),
            claim_token: Some(self.held.token.expose().to_owned()),
            artifacts,
            ..ArtifactsRequest::default()
        };
        let call = || self.client.save_artifacts(self.held.run_id, &request);
        let answer = insist(&self.held, CALL_LIMIT, PAUSE_LIMIT, call).await;
        if let Err(Refusal::Never(error)) = answer {
            let error = told(&error);
            tracing::warn!(error, "the server refused what this run changed");
        }
    }
}

fn too_late() -> Option<Value> {
    tracing::warn!("there was no time to tell what this run changed");
    None
}

fn artifacts(difference: Difference, table: &str, patch: &str) -> Vec<ArtifactUpload> {
    // A table is made of texts and numbers, which always serialise.
    let listed = serde_json::to_vec(&difference.table).unwrap_or_default();
    vec![
        ArtifactUpload::new(table, CHANGES_TYPE, listed),
        ArtifactUpload::new(patch, PATCH_TYPE, difference.patch),
    ]
}

/// A result that says something more, if it is an object or nothing.
pub(crate) fn with(result: Option<Value>, name: &str, value: Value) -> Value {
    match result {
        None | Some(Value::Null) => serde_json::json!({name: value}),
        Some(Value::Object(mut fields)) => {
            fields.insert(name.to_owned(), value);
            Value::Object(fields)
        }
        Some(other) => other,
    }
}
