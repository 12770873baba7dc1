//! Claims: what an executor asks for, and the run it is handed with all it needs to start.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tapedeck_domain::claim::ClaimToken;
use tapedeck_domain::executor::Contact;
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::run::Run;
use tapedeck_domain::session::{ApprovalPolicy, DEFAULT_EXECUTOR_KIND, DEFAULT_POOL, Session};
use tapedeck_domain::{RunId, SessionId, TapeId, Timestamp};
use utoipa::ToSchema;

use super::lease::{check_executor_id, check_instance, check_lease, check_said, check_wait};
use crate::check::Faults;
use crate::run_target::{RunTargetResponse, WorkspaceBody};
use crate::schema;
use crate::session::AgentSettings;

/// Runs one executor takes at once, at most.
pub(crate) const MAX_RUNS: u32 = 1_000;

/// Body of `POST /executor/runs/claim`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClaimRunRequest {
    /// The executor's stable name.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// The executor's process.
    pub worker_instance_id: Option<String>,
    /// Makes the claim replayable: at least 128 random bits, new after each definite answer.
    pub claim_request_id: Option<String>,
    /// The matching label; `local_cli` by default.
    pub executor_kind: Option<String>,
    /// The pool; `default` by default.
    pub pool: Option<String>,
    /// The executor's labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Only runs of this session.
    #[schema(value_type = Option<Uuid>)]
    pub session_id: Option<SessionId>,
    /// The lease, 5 to 300; 60 by default.
    pub lease_seconds: Option<u32>,
    /// Waits this long for a run, 0 to 60.
    pub wait_seconds: Option<u32>,
    /// Runs the executor takes at once.
    pub max_runs: Option<u32>,
    /// The process id on its machine.
    pub process_id: Option<i64>,
    /// What its backend can do.
    #[schema(value_type = Option<Value>)]
    pub capabilities: Option<Value>,
    /// Where its workspaces are.
    #[schema(value_type = Option<Value>)]
    pub workspace_sync: Option<Value>,
    /// Its version.
    pub version: Option<String>,
}

/// A checked claim.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedClaim {
    /// What the executor says of itself.
    pub contact: Contact,
    /// Makes the claim replayable.
    pub claim_request_id: Option<String>,
    /// Only runs of this session.
    pub session_id: Option<SessionId>,
    /// The lease, in seconds.
    pub lease_seconds: u32,
    /// How long to wait, in seconds.
    pub wait_seconds: u32,
}

impl ClaimRunRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedClaim, Vec<FieldError>> {
        let mut faults = Faults::default();
        let executor_id = check_executor_id(&mut faults, self.executor_id, self.worker_id);
        check_instance(&mut faults, self.worker_instance_id.as_deref());
        for (path, text) in [
            ("claim_request_id", &self.claim_request_id),
            ("executor_kind", &self.executor_kind),
            ("pool", &self.pool),
            ("version", &self.version),
        ] {
            if let Some(text) = text {
                faults.name(path, text, limits::NAME_CHARS);
            }
        }
        let labels = self.labels.unwrap_or_default();
        faults.labels("labels", labels.iter());
        check_lease(&mut faults, self.lease_seconds);
        check_wait(&mut faults, self.wait_seconds);
        faults.range("max_runs", self.max_runs, 1..=MAX_RUNS);
        check_said(
            &mut faults,
            self.capabilities.as_ref(),
            self.workspace_sync.as_ref(),
        );
        let (_, _, default_lease) = limits::LEASE_SECONDS;
        let or_default =
            |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        faults.finish(CheckedClaim {
            contact: Contact {
                executor_id,
                instance_id: self.worker_instance_id,
                executor_kind: or_default(self.executor_kind, DEFAULT_EXECUTOR_KIND),
                pool: or_default(self.pool, DEFAULT_POOL),
                labels,
                process_id: self.process_id,
                version: self.version,
                capabilities: self.capabilities,
                workspace: self.workspace_sync,
                max_runs: self.max_runs,
            },
            claim_request_id: self.claim_request_id,
            session_id: self.session_id,
            lease_seconds: self.lease_seconds.unwrap_or(default_lease),
            wait_seconds: self.wait_seconds.unwrap_or(0),
        })
    }
}

/// Answer of a claim: the run with all that is needed to execute it.
#[derive(Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClaimResponse {
    /// The run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// The session.
    #[schema(value_type = Uuid)]
    pub session_id: SessionId,
    /// Who holds it now.
    pub executor_id: String,
    /// Proves the claim; a secret.
    pub claim_token: String,
    /// Which claim of the run this is.
    pub attempt: u32,
    /// What to ask the agent: for a resumed run with the context it needs.
    pub prompt: String,
    /// The run it continues.
    #[schema(value_type = Option<Uuid>, required)]
    pub parent_run_id: Option<RunId>,
    /// The client's notes on the run.
    #[schema(value_type = Object)]
    pub metadata: Map<String, Value>,
    /// The tape.
    #[schema(value_type = Uuid)]
    pub tape_id: TapeId,
    /// Who answers questions.
    #[schema(value_type = schema::ApprovalPolicy)]
    pub approval_policy: ApprovalPolicy,
    /// `agent.provider`.
    #[schema(required)]
    pub provider_name: Option<String>,
    /// `agent.model`.
    #[schema(required)]
    pub model_name: Option<String>,
    /// `agent.base_url`.
    #[schema(required)]
    pub base_url: Option<String>,
    /// `agent.max_steps`.
    #[schema(required)]
    pub max_steps: Option<u32>,
    /// `run_target.workspace`; null is a scratch directory.
    #[schema(required)]
    pub workspace: Option<WorkspaceBody>,
    /// Where the run may execute, with its bounds.
    pub run_target: RunTargetResponse,
    /// Backend-specific settings.
    #[schema(value_type = Object)]
    pub agent: Map<String, Value>,
    /// For a resumed run: the raw prompt and what happened before, structured.
    #[schema(value_type = Option<Object>, required)]
    pub resume_context: Option<Value>,
    /// When the lease ends.
    #[schema(value_type = String, format = DateTime)]
    pub lease_expires_at: Timestamp,
    /// How long that is from now, in milliseconds; free of any difference between clocks.
    pub lease_ttl_ms: i64,
    /// The trace that the run belongs to.
    #[schema(required)]
    pub traceparent: Option<String>,
}

impl fmt::Debug for ClaimResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimResponse")
            .field("run_id", &self.run_id)
            .field("session_id", &self.session_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// The claim itself, as it was granted.
#[derive(Debug, Clone)]
pub struct Grant<'a> {
    /// Who holds it.
    pub executor_id: &'a str,
    /// Proves it.
    pub token: &'a ClaimToken,
    /// Which claim of the run it is.
    pub attempt: u32,
    /// When the lease ends.
    pub lease_expires_at: Timestamp,
    /// How long that is from now, in milliseconds.
    pub lease_ttl_ms: i64,
}

impl ClaimResponse {
    /// Composes the answer. The prompt of a resumed run is the context's composed one.
    pub fn new(
        session: &Session,
        run: &Run,
        grant: &Grant<'_>,
        resume_context: Option<Value>,
    ) -> Self {
        let settings = &session.settings;
        let agent = AgentSettings::of(&settings.agent);
        let run_target = RunTargetResponse::from(&settings.run_target);
        let composed = resume_context
            .as_ref()
            .and_then(|context| context.get("composed_prompt"))
            .and_then(Value::as_str)
            .map(str::to_owned);
        Self {
            run_id: run.run_id,
            session_id: session.session_id,
            executor_id: grant.executor_id.to_owned(),
            claim_token: grant.token.secret().to_owned(),
            attempt: grant.attempt,
            prompt: composed.unwrap_or_else(|| run.prompt.clone()),
            parent_run_id: run.parent_run_id,
            metadata: run.metadata.clone(),
            tape_id: session.tape_id,
            approval_policy: settings.approval_policy,
            provider_name: agent.provider,
            model_name: agent.model,
            base_url: agent.base_url,
            max_steps: agent.max_steps,
            workspace: run_target.workspace.clone(),
            run_target,
            agent: settings.agent.clone(),
            resume_context,
            lease_expires_at: grant.lease_expires_at,
            lease_ttl_ms: grant.lease_ttl_ms,
            traceparent: None,
        }
    }
}
