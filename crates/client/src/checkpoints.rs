//! Checkpoints, restores and forks. Each of them may be made again under its key.

use http::Method;
use tapedeck_domain::{CheckpointId, SessionId};
use tapedeck_protocol::checkpoint::{
    CheckpointList, CheckpointResponse, CreateCheckpointRequest, ForkRequest, RestoreRequest,
};
use tapedeck_protocol::session::SessionResponse;

use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::sessions::Paging;

impl Client {
    /// Captures a checkpoint of an idle session. Made again by itself under one idempotency key.
    pub async fn create_checkpoint(
        &self,
        id: SessionId,
        request: &CreateCheckpointRequest,
    ) -> Result<CheckpointResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "checkpoints"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// One page of a session's checkpoints, newest first; with `all` also those that were deleted
    /// or put aside.
    pub async fn checkpoints(
        &self,
        id: SessionId,
        all: bool,
        paging: &Paging,
    ) -> Result<CheckpointList> {
        let call = Call::get(&["sessions", &id.to_string(), "checkpoints"])
            .query("include_superseded", all.then_some(true))
            .page(paging);
        self.call(call).await
    }

    /// Drops a checkpoint from the active list.
    pub async fn delete_checkpoint(&self, id: SessionId, checkpoint: CheckpointId) -> Result<()> {
        let (id, checkpoint) = (id.to_string(), checkpoint.to_string());
        let call = Call::new(
            Method::DELETE,
            &["sessions", &id, "checkpoints", &checkpoint],
        );
        self.send(call).await.map(drop)
    }

    /// Puts an idle session back to a checkpoint. Made again by itself under one idempotency key.
    pub async fn restore_session(
        &self,
        id: SessionId,
        checkpoint: CheckpointId,
        request: &RestoreRequest,
    ) -> Result<SessionResponse> {
        let (id, checkpoint) = (id.to_string(), checkpoint.to_string());
        let call = Call::post(&["sessions", &id, "checkpoints", &checkpoint, "restore"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// Makes a new session from a place of this one. Made again by itself under one idempotency key.
    pub async fn fork_session(
        &self,
        id: SessionId,
        request: &ForkRequest,
    ) -> Result<SessionResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "fork"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }
}
