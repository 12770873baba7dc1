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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Answer, scripted};
    use serde_json::json;
    use tapedeck_protocol::ErrorCode;

    const ID: &str = "01890000-0000-7000-8000-000000000001";

    #[tokio::test(start_paused = true)]
    async fn every_write_keeps_one_key_over_its_retries() {
        let again = || [Answer::Lost, Answer::refused(ErrorCode::SessionBusy)];
        let answers: Vec<_> = std::iter::repeat_with(again).take(3).flatten().collect();
        let (client, log) = scripted(answers);
        let (session, checkpoint) = (ID.parse().unwrap(), ID.parse().unwrap());
        let capture = CreateCheckpointRequest::default();
        client
            .create_checkpoint(session, &capture)
            .await
            .unwrap_err();
        let restore = RestoreRequest::default();
        let restored = client.restore_session(session, checkpoint, &restore).await;
        restored.unwrap_err();
        client
            .fork_session(session, &ForkRequest::default())
            .await
            .unwrap_err();
        let log = log.lock().unwrap();
        let keys: Vec<_> = log
            .iter()
            .map(|seen| seen.header("idempotency-key").unwrap())
            .collect();
        for call in keys.chunks(2) {
            assert_eq!(call[0], call[1]);
        }
        assert!(keys[0] != keys[2] && keys[2] != keys[4], "{keys:?}");
        let path = format!("/sessions/{ID}/checkpoints/{ID}/restore");
        assert_eq!(log[2].uri.path(), path);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_whose_answer_is_lost_is_not_made_again() {
        let (client, log) = scripted([Answer::Lost]);
        let lost = client.delete_checkpoint(ID.parse().unwrap(), ID.parse().unwrap());
        assert!(lost.await.unwrap_err().is_transient());
        assert_eq!(log.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn lists_say_what_they_want() {
        let page = json!({"checkpoints": [], "next_cursor": null});
        let (client, log) = scripted([Answer::json(200, &page), Answer::json(200, &page)]);
        let (session, first) = (ID.parse().unwrap(), Paging::default());
        for all in [false, true] {
            let listed = client.checkpoints(session, all, &first).await.unwrap();
            assert_eq!(listed.checkpoints, []);
        }
        let log = log.lock().unwrap();
        let queries: Vec<_> = log.iter().map(|seen| seen.uri.query()).collect();
        assert_eq!(queries, [None, Some("include_superseded=true")]);
    }
}
