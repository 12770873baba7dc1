//! What a run changes in its workspace, told to the server before the run's end. It owns the bounds
//! in time: a run is never kept from its end by this, and never fails because of it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
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
pub(crate) enum RunChanges {
    /// They are followed.
    Followed(Box<Followed>),
    /// They can't be followed, and that is nobody's fault.
    Nowhere,
    /// They should be followed and can't be; says why.
    Unknown(String),
}

/// A workspace whose changes are followed, and where they are told.
#[derive(Debug)]
pub(crate) struct Followed {
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
    ) -> Self {
        let tracking = timeout(BEGIN_LIMIT, workspaces.track(directory, session_id)).await;
        let why = match tracking {
            Ok(Ok(None)) => return Self::Nowhere,
            Ok(Ok(Some(tracking))) => {
                return Self::Followed(Box::new(Followed {
                    tracking,
                    held,
                    client,
                }));
            }
            // Without git nothing is a repository.
            Ok(Err(GitError::Start(error))) if error.kind() == ErrorKind::NotFound => {
                tracing::debug!("there is no git on this machine, so changes are not followed");
                return Self::Nowhere;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("it took more than {} seconds", BEGIN_LIMIT.as_secs()),
        };
        tracing::warn!(why, "the changes of this run can't be followed");
        Self::Unknown(why)
    }

    /// Tells the server what has changed, and gives what the run's result says of it. `brief` is for
    /// ends that somebody waits for.
    pub(crate) async fn tell(&self, brief: bool, hand_back: &CancellationToken) -> Option<Value> {
        match self {
            Self::Followed(followed) => followed.tell(brief, hand_back).await,
            Self::Nowhere => None,
            Self::Unknown(why) => Some(unknown(why)),
        }
    }
}

impl Followed {
    async fn tell(&self, brief: bool, hand_back: &CancellationToken) -> Option<Value> {
        let limit = if brief { BRIEF_LIMIT } else { END_LIMIT };
        let hurried = async {
            hand_back.cancelled().await;
            sleep(BRIEF_LIMIT).await;
        };
        tokio::select! {
            told = self.compare_and_upload() => Some(told),
            () = self.held.lost() => None,
            () = sleep(limit) => Some(too_late()),
            () = hurried => Some(too_late()),
        }
    }

    async fn compare_and_upload(&self) -> Value {
        let changes = match self.tracking.changes().await {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "what this run changed can't be told");
                return unknown(&error.to_string());
            }
        };
        let named = summary(&changes.run.table);
        let mut artifacts = artifacts(changes.run, RUN_CHANGES, RUN_PATCH);
        artifacts.extend(self::artifacts(
            changes.session,
            SESSION_CHANGES,
            SESSION_PATCH,
        ));
        self.upload(artifacts).await;
        named
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

fn too_late() -> Value {
    tracing::warn!("there was no time to tell what this run changed");
    unknown("there was no time to compare the files")
}

/// What a result says of changes that nobody knows.
fn unknown(why: &str) -> Value {
    json!({"unknown": why})
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
