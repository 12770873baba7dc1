//! The executor protocol: claim, heartbeat, upload, ask, snapshot, artifacts, tape, release, complete, leave. A broken request from an
//! executor that has lost its claim is told of the loss first (api.md, Errors).

use std::time::Duration;

use axum::Json;
use http::StatusCode;
use serde::de::DeserializeOwned;
use tapedeck_control_plane::commands::append_events::AppendEvents;
use tapedeck_control_plane::commands::append_tape::AppendTape;
use tapedeck_control_plane::commands::ask::Ask;
use tapedeck_control_plane::commands::claim_run::ClaimRun;
use tapedeck_control_plane::commands::heartbeat::{ClaimProof, Heartbeat};
use tapedeck_control_plane::commands::leave_executor::LeaveExecutor;
use tapedeck_control_plane::commands::release_run::ReleaseRun;
use tapedeck_control_plane::commands::save_artifacts::SaveArtifacts;
use tapedeck_control_plane::commands::save_snapshot::SaveSnapshot;
use tapedeck_control_plane::commands::settle_run::SettleRun;
use tapedeck_domain::claim::ClaimRequest;
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::settle::RunEnd;
use tapedeck_domain::{InteractionId, RunId};
use tapedeck_protocol::executor::{
    ApprovalRequest, ApprovalResponse, ArtifactsRequest, ArtifactsResponse, CheckedAsk,
    ClaimResponse, ClaimRunRequest, CompleteRequest, Grant, HeartbeatRequest, HeartbeatResponse,
    LeaveRequest, Presented, QuestionRequest, QuestionResponse, ReleaseRequest, SavedArtifact,
    SavedSnapshot, SnapshotRequest, TapeRequest, TapeResponse, UploadRequest, UploadResponse,
    UploadedEventResponse,
};
use tapedeck_protocol::run::RunResponse;
use tapedeck_protocol::tape::TapeEntryResponse;

use super::Answer;
use crate::body::Body;
use crate::extract::{Call, Id};
use crate::problem::Fault;

/// Claims a run, waiting for one if asked to.
#[utoipa::path(
    post, path = "/executor/runs/claim", tag = "executor", request_body = ClaimRunRequest,
    responses((status = 200, body = ClaimResponse))
)]
pub(super) async fn claim(call: Call, body: Body) -> Answer<ClaimResponse> {
    let checked = body.read::<ClaimRunRequest>()?.check()?;
    let timing = call.control().timing();
    let wait = wait(&call, checked.wait_seconds);
    let claim = ClaimRun {
        request: ClaimRequest {
            executor_id: checked.contact.executor_id.clone(),
            instance_id: checked.contact.instance_id.clone(),
            claim_request_id: checked.claim_request_id.unwrap_or_else(unguessable),
            lease_ms: timing.seconds(checked.lease_seconds),
        },
        contact: checked.contact,
        session_id: checked.session_id,
    };
    let executor_id = claim.request.executor_id.clone();
    let claimed = call.control().claim(claim, wait).await;
    let claimed = claimed.map_err(Fault::of_claim)?;
    let grant = Grant {
        executor_id: &executor_id,
        token: &claimed.token,
        attempt: claimed.attempt,
        lease_expires_at: claimed.lease_expires_at,
        lease_ttl_ms: claimed.lease_ttl_ms,
    };
    let (session, run, context) = (&claimed.session, &claimed.run, claimed.resume_context);
    Ok(Json(ClaimResponse::new(session, run, &grant, context)))
}

/// Says that the executor's process ends: it counts as offline at once, so that no run waits for it.
/// Where another process of its name was heard of since, nothing changes.
#[utoipa::path(
    post, path = "/executor/leave", tag = "executor", request_body = LeaveRequest,
    responses((status = 204))
)]
pub(super) async fn leave(call: Call, body: Body) -> Result<StatusCode, Fault> {
    let (executor_id, instance_id) = body.read::<LeaveRequest>()?.check()?;
    let leave = LeaveExecutor {
        executor_id,
        instance_id,
    };
    call.control().leave_executor(leave).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extends a claim's lease; with a wait it answers early when a cancel or an answer comes.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/heartbeat", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = HeartbeatRequest,
    responses((status = 200, body = HeartbeatResponse))
)]
pub(super) async fn heartbeat(
    call: Call,
    Id(id): Id<RunId>,
    body: Body,
) -> Answer<HeartbeatResponse> {
    let checked = checked(&call, id, &body, HeartbeatRequest::check).await?;
    let timing = call.control().timing();
    let executor_id = checked.claim.executor_id.clone();
    let beat = Heartbeat {
        proof: proof(id, checked.claim),
        lease_ms: checked.lease_seconds.map(|seconds| timing.seconds(seconds)),
        report: checked.report,
        agent_state: checked.agent_state,
    };
    let wait = wait(&call, checked.wait_seconds);
    let beat = call.control().heartbeat(beat, wait).await?;
    Ok(Json(HeartbeatResponse {
        run_id: beat.run_id,
        executor_id,
        status: beat.status,
        attempt: beat.attempt,
        cancel_requested: beat.cancel_requested,
        lease_expires_at: beat.lease_expires_at,
        lease_ttl_ms: beat.lease_ttl_ms,
        drain: beat.drain,
    }))
}

/// Uploads a batch of events; the same events again get the same numbers.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/events", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = UploadRequest,
    responses((status = 200, body = UploadResponse))
)]
pub(super) async fn upload(call: Call, Id(id): Id<RunId>, body: Body) -> Answer<UploadResponse> {
    let (claim, batch) = checked(&call, id, &body, UploadRequest::check).await?;
    let control = call.control();
    let sent = batch.clone();
    let proof = proof(id, claim);
    let recorded = control.append_events(AppendEvents { proof, batch }).await?;
    let answers = sent.iter().zip(&recorded.events).map(|(event, record)| {
        record.as_ref().map_or_else(
            || UploadedEventResponse::ignored(event, recorded.session_id, id),
            UploadedEventResponse::from,
        )
    });
    Ok(Json(UploadResponse {
        run_id: id,
        events: answers.collect(),
    }))
}

/// Asks a person and waits for the answer; asking again with the same id goes on waiting.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/approval", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = ApprovalRequest,
    responses(
        (status = 200, description = "Answered or ended", body = ApprovalResponse),
        (status = 202, description = "Still pending", body = ApprovalResponse)
    )
)]
pub(super) async fn ask(
    call: Call,
    Id(id): Id<RunId>,
    body: Body,
) -> Result<(StatusCode, Json<ApprovalResponse>), Fault> {
    let checked = checked(&call, id, &body, ApprovalRequest::check).await?;
    let (status, interaction) = asked(&call, id, checked).await?;
    Ok((status, Json(ApprovalResponse::from(&interaction))))
}

/// Asks a person to fill in a form and waits for the answer; asking again with the same id goes on
/// waiting. No policy and no rule answers a form.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/question", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = QuestionRequest,
    responses(
        (status = 200, description = "Answered or ended", body = QuestionResponse),
        (status = 202, description = "Still pending", body = QuestionResponse)
    )
)]
pub(super) async fn ask_question(
    call: Call,
    Id(id): Id<RunId>,
    body: Body,
) -> Result<(StatusCode, Json<QuestionResponse>), Fault> {
    let checked = checked(&call, id, &body, QuestionRequest::check).await?;
    let (status, interaction) = asked(&call, id, checked).await?;
    Ok((status, Json(QuestionResponse::from(&interaction))))
}

async fn asked(
    call: &Call,
    id: RunId,
    checked: CheckedAsk,
) -> Result<(StatusCode, Interaction), Fault> {
    let wait = match checked.wait_seconds {
        Some(seconds) => wait(call, seconds),
        // As long as the question is open, and until the sweep has ended it.
        None => wait(call, checked.question.timeout_seconds) + sweeps(call),
    };
    let ask = Ask {
        proof: proof(id, checked.claim),
        interaction_id: InteractionId::new(call.control().new_id()),
        question: checked.question,
    };
    let interaction = call.control().ask(ask, wait).await?;
    let status = match interaction.status {
        InteractionStatus::Pending => StatusCode::ACCEPTED,
        InteractionStatus::Approved
        | InteractionStatus::Denied
        | InteractionStatus::Expired
        | InteractionStatus::Cancelled => StatusCode::OK,
    };
    Ok((status, interaction))
}

/// Gives a run back before its agent has put anything out.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/release", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = ReleaseRequest,
    responses((status = 200, body = RunResponse))
)]
pub(super) async fn release(call: Call, Id(id): Id<RunId>, body: Body) -> Answer<RunResponse> {
    let claim = checked(&call, id, &body, ReleaseRequest::check).await?;
    let proof = proof(id, claim);
    let run = call.control().release_run(ReleaseRun { proof }).await?;
    Ok(Json(RunResponse::from(&run)))
}

/// Records the provider's messages as they stand; they replace those reported before.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/snapshot", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = SnapshotRequest,
    responses((status = 200, body = SavedSnapshot))
)]
pub(super) async fn snapshot(call: Call, Id(id): Id<RunId>, body: Body) -> Answer<SavedSnapshot> {
    let checked = checked(&call, id, &body, SnapshotRequest::check).await?;
    let snapshot = SaveSnapshot {
        proof: proof(id, checked.claim),
        messages: checked.messages,
        metadata: checked.metadata,
        weight: body.len(),
    };
    let facts = call.control().save_snapshot(snapshot).await?;
    Ok(Json(SavedSnapshot::from(&facts)))
}

/// Keeps artifacts of a run, such as the patch of what it changed; the same ones again are stored
/// already.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/artifacts", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = ArtifactsRequest,
    responses((status = 200, body = ArtifactsResponse))
)]
pub(super) async fn artifacts(
    call: Call,
    Id(id): Id<RunId>,
    body: Body,
) -> Answer<ArtifactsResponse> {
    let (claim, artifacts) = checked(&call, id, &body, ArtifactsRequest::check).await?;
    let saved = artifacts.iter().map(|artifact| SavedArtifact {
        name: artifact.name.clone(),
        bytes: artifact.bytes,
    });
    let answer = ArtifactsResponse {
        run_id: id,
        artifacts: saved.collect(),
    };
    let proof = proof(id, claim);
    let save = SaveArtifacts { proof, artifacts };
    call.control().save_artifacts(save).await?;
    Ok(Json(answer))
}

/// Appends tape entries of the executor's own, instead of those made from the run's events; the
/// same entries again get the same places.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/tape", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = TapeRequest,
    responses((status = 200, body = TapeResponse))
)]
pub(super) async fn append_tape(call: Call, Id(id): Id<RunId>, body: Body) -> Answer<TapeResponse> {
    let check = |request: TapeRequest| request.check(id);
    let (claim, batch) = checked(&call, id, &body, check).await?;
    let append = AppendTape {
        proof: proof(id, claim),
        batch,
        weight: body.len(),
    };
    let entries = call.control().append_tape(append).await?;
    Ok(Json(TapeResponse {
        tape_entries: entries.iter().map(TapeEntryResponse::from).collect(),
    }))
}

/// Settles a run; the same report again gets the same answer.
#[utoipa::path(
    post, path = "/executor/runs/{run_id}/complete", tag = "executor",
    params(("run_id" = Uuid, Path)), request_body = CompleteRequest,
    responses((status = 200, body = RunResponse))
)]
pub(super) async fn complete(call: Call, Id(id): Id<RunId>, body: Body) -> Answer<RunResponse> {
    let check = |request: CompleteRequest| request.check(id);
    let checked = checked(&call, id, &body, check).await?;
    let settle = SettleRun {
        proof: proof(id, checked.claim),
        end: RunEnd {
            ending: checked.ending,
            result: checked.result,
            error: checked.error,
            recovery_reason: None,
            body_digest: Some(checked.digest),
        },
        event_count: checked.event_count,
        agent_state: checked.agent_state,
        tape_id: checked.tape_id,
        tape: checked.tape,
    };
    let run = call.control().settle_run(settle).await?;
    Ok(Json(RunResponse::from(&run)))
}

/// Reads and checks a request under a claim. If it is broken, the claim is judged first.
async fn checked<R: DeserializeOwned, T>(
    call: &Call,
    run_id: RunId,
    body: &Body,
    check: impl FnOnce(R) -> Result<T, Vec<FieldError>>,
) -> Result<T, Fault> {
    let fault = match body.read::<R>() {
        Ok(request) => match check(request) {
            Ok(checked) => return Ok(checked),
            Err(errors) => Fault::from(errors),
        },
        Err(fault) => fault,
    };
    if let Ok(value) = body.value()
        && let Ok(claim) = Presented::of(&value)
    {
        call.control().check_claim(proof(run_id, claim)).await?;
    }
    Err(fault)
}

fn proof(run_id: RunId, claim: Presented) -> ClaimProof {
    ClaimProof {
        run_id,
        session_id: None,
        executor_id: claim.executor_id,
        token: claim.token,
    }
}

/// How long to hold a request, on the server's scale.
fn wait(call: &Call, seconds: u32) -> Duration {
    if seconds == 0 {
        return Duration::ZERO;
    }
    let ms = call.control().timing().seconds(seconds);
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn sweeps(call: &Call) -> Duration {
    let ms = call.control().timing().sweep_ms;
    Duration::from_millis(u64::try_from(ms).unwrap_or(0)) * 2
}

/// An id for a claim whose executor sent none: it can't replay, and its token can't be guessed.
fn unguessable() -> String {
    let [high, low] = rand::random::<[u128; 2]>();
    format!("{high:032x}{low:032x}")
}
