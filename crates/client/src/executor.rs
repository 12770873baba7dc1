//! The executor protocol: claim, heartbeat, upload, ask, snapshot, artifacts, tape, release, complete, leave.
//! Every call but `release` may be made twice.

use bytes::Bytes;
use tapedeck_domain::{RunId, limits};
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::executor::{
    ApprovalRequest, ApprovalResponse, ArtifactsRequest, ArtifactsResponse, ClaimResponse,
    ClaimRunRequest, CompleteRequest, HeartbeatRequest, HeartbeatResponse, LeaveRequest,
    QuestionRequest, QuestionResponse, ReleaseRequest, SavedSnapshot, SnapshotRequest, TapeRequest,
    TapeResponse, UploadResponse,
};
use tapedeck_protocol::run::RunResponse;

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

fn of_run(id: RunId, what: &str) -> Call {
    Call::post(&["executor", "runs", &id.to_string(), what])
}

/// How long a question is held at most, in seconds.
fn held(wait_seconds: Option<u32>, timeout_seconds: Option<u32>) -> u32 {
    let (_, default) = limits::QUESTION_SECONDS;
    wait_seconds.or(timeout_seconds).unwrap_or(default)
}

impl Client {
    /// Claims a run; `None` is the definite answer that none is waiting, after which the next claim
    /// needs a new `claim_request_id`. Without such an id a lost answer is not asked for again.
    pub async fn claim(&self, request: &ClaimRunRequest) -> Result<Option<ClaimResponse>> {
        let mut call = Call::post(&["executor", "runs", "claim"])
            .held(request.wait_seconds.unwrap_or(0))
            .json(request)?;
        if request.claim_request_id.is_some() {
            call = call.harmless();
        }
        match self.call(call).await {
            Ok(claim) => Ok(Some(claim)),
            Err(error) if error.code() == Some(ErrorCode::NoRunAvailable) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Extends the lease; held while `wait_seconds` says so and nothing happens.
    pub async fn heartbeat(
        &self,
        id: RunId,
        request: &HeartbeatRequest,
    ) -> Result<HeartbeatResponse> {
        let call = of_run(id, "heartbeat").held(request.wait_seconds.unwrap_or(0));
        self.call(call.harmless().json(request)?).await
    }

    /// Uploads a sealed batch: the bytes of an upload request, the same ones at each try (R12).
    pub async fn upload(&self, id: RunId, sealed: Bytes) -> Result<UploadResponse> {
        self.call(of_run(id, "events").harmless().bytes(sealed))
            .await
    }

    /// Asks whether a tool may run, or goes on waiting for the answer to a question asked before.
    pub async fn ask(&self, id: RunId, request: &ApprovalRequest) -> Result<ApprovalResponse> {
        let held = held(request.wait_seconds, request.timeout_seconds);
        self.call(of_run(id, "approval").held(held).harmless().json(request)?)
            .await
    }

    /// Asks for a form to be filled in, or goes on waiting for it. While `status` is `pending`, ask
    /// again with the same request. `approved` comes with the `response`, which fits the form;
    /// `denied` means that the person declined; `expired` and `cancelled`, that nobody will answer.
    /// In the words of ACP these are accept, decline and cancel. A form that says more than ours may
    /// is refused with the paths of what is not taken, and nothing is asked.
    pub async fn ask_question(
        &self,
        id: RunId,
        request: &QuestionRequest,
    ) -> Result<QuestionResponse> {
        let held = held(request.wait_seconds, request.timeout_seconds);
        self.call(of_run(id, "question").held(held).harmless().json(request)?)
            .await
    }

    /// Records the provider's messages of a run; they replace those reported before.
    pub async fn save_snapshot(
        &self,
        id: RunId,
        request: &SnapshotRequest,
    ) -> Result<SavedSnapshot> {
        self.call(of_run(id, "snapshot").harmless().json(request)?)
            .await
    }

    /// Keeps artifacts of a run. The same ones again are stored already.
    pub async fn save_artifacts(
        &self,
        id: RunId,
        request: &ArtifactsRequest,
    ) -> Result<ArtifactsResponse> {
        self.call(of_run(id, "artifacts").harmless().json(request)?)
            .await
    }

    /// Appends tape entries of the executor's own. The same entries again get the same places.
    pub async fn append_tape(&self, id: RunId, request: &TapeRequest) -> Result<TapeResponse> {
        self.call(of_run(id, "tape").harmless().json(request)?)
            .await
    }

    /// Gives a run back before the agent's first output.
    pub async fn release(&self, id: RunId, request: &ReleaseRequest) -> Result<RunResponse> {
        self.call(of_run(id, "release").json(request)?).await
    }

    /// Says that the executor's process ends. An older server doesn't know that call.
    pub async fn leave(&self, request: &LeaveRequest) -> Result<()> {
        let call = Call::post(&["executor", "leave"]).harmless();
        self.send(call.json(request)?).await.map(drop)
    }

    /// Reports the end of a run; the same report again gives the same answer.
    pub async fn complete(&self, id: RunId, request: &CompleteRequest) -> Result<RunResponse> {
        self.call(of_run(id, "complete").harmless().json(request)?)
            .await
    }
}
