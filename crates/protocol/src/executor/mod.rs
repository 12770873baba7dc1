//! The executor protocol on the wire (design §6, §8): claim, heartbeat, upload, ask, snapshot, tape,
//! release and complete. The older name `worker_id` is read here; answers get it from the server's alias routes.

mod artifacts;
mod ask;
mod claim;
mod complete;
mod lease;
mod list;
mod tape;
mod upload;

pub use artifacts::{ArtifactUpload, ArtifactsRequest, ArtifactsResponse, SavedArtifact, content};
pub use ask::{ApprovalRequest, ApprovalResponse, CheckedAsk, QuestionRequest, QuestionResponse};
pub(crate) use claim::MAX_RUNS;
pub use claim::{CheckedClaim, ClaimResponse, ClaimRunRequest, Grant};
pub use complete::{CheckedComplete, CompleteRequest};
pub use lease::{
    CheckedHeartbeat, HeartbeatRequest, HeartbeatResponse, LeaveRequest, Presented, ReleaseRequest,
};
pub use list::{ExecutorList, ExecutorResponse, ExecutorsQuery};
pub use tape::{
    CheckedSnapshot, SavedSnapshot, SnapshotRequest, TapeEntryUpload, TapeRequest, TapeResponse,
};
pub use upload::{UploadEvent, UploadRequest, UploadResponse, UploadedEventResponse};
