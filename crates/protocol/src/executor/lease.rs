//! What keeps a claim alive and what gives it back: the presented claim, heartbeat and release.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tapedeck_domain::claim::ClaimToken;
use tapedeck_domain::executor::Report;
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{RunId, Timestamp};
use utoipa::ToSchema;

use crate::check::Faults;
use crate::schema;

/// A claim as a request presents it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    /// Who says to hold the claim.
    pub executor_id: String,
    /// What it proves that with.
    pub token: ClaimToken,
}

/// The fields that every request under a claim carries.
#[derive(Debug, Clone, Default)]
pub(crate) struct PresentedFields {
    pub(crate) executor_id: Option<String>,
    pub(crate) worker_id: Option<String>,
    pub(crate) claim_token: Option<String>,
}

impl PresentedFields {
    pub(crate) fn check(self, faults: &mut Faults) -> Presented {
        let executor_id = check_executor_id(faults, self.executor_id, self.worker_id);
        let token = faults.required("claim_token", self.claim_token);
        Presented {
            executor_id,
            token: ClaimToken::presented(token),
        }
    }
}

/// The executor's name under its present or its older field.
pub(crate) fn check_executor_id(
    faults: &mut Faults,
    executor_id: Option<String>,
    worker_id: Option<String>,
) -> String {
    let id = faults.either(("executor_id", executor_id), ("worker_id", worker_id));
    let id = faults.required("executor_id", id);
    // It stands in paths, where dots lead elsewhere, and on people's screens.
    if matches!(id.as_str(), "." | "..") || id.chars().any(char::is_control) {
        faults.add(
            "executor_id",
            "can't name an executor: it is dots, or has control characters",
        );
    }
    id
}

impl Presented {
    /// Reads the claim from a body whose other fields may be broken: claim checks come before the
    /// rest of the body (api.md, Errors).
    pub fn of(body: &Value) -> Result<Self, Vec<FieldError>> {
        let mut faults = Faults::default();
        let mut text = |name: &str| match body.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                faults.add(name, "must be a text");
                None
            }
        };
        let fields = PresentedFields {
            executor_id: text("executor_id"),
            worker_id: text("worker_id"),
            claim_token: text("claim_token"),
        };
        let presented = fields.check(&mut faults);
        faults.finish(presented)
    }
}

pub(crate) fn check_lease(faults: &mut Faults, lease_seconds: Option<u32>) {
    let (least, most, _) = limits::LEASE_SECONDS;
    faults.range("lease_seconds", lease_seconds, least..=most);
}

pub(crate) fn check_wait(faults: &mut Faults, wait_seconds: Option<u32>) {
    faults.range("wait_seconds", wait_seconds, 0..=limits::WAIT_SECONDS_MAX);
}

/// Body of `POST /executor/runs/{id}/heartbeat`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
    /// Another lease from now on, 5 to 300.
    pub lease_seconds: Option<u32>,
    /// Waits this long for a cancel or an answer, 0 to 60.
    pub wait_seconds: Option<u32>,
    /// The executor's process.
    pub worker_instance_id: Option<String>,
    /// The process id on its machine.
    pub process_id: Option<i64>,
    /// What its backend can do.
    #[schema(value_type = Option<Value>)]
    pub capabilities: Option<Value>,
    /// Where its workspaces are.
    #[schema(value_type = Option<Value>)]
    pub workspace_sync: Option<Value>,
    /// What the agent needs to take this conversation up again, as soon as it is known: an executor
    /// that is killed can't report it with the run's end.
    #[schema(value_type = Option<Value>)]
    pub agent_state: Option<Value>,
}

/// Body of `POST /executor/leave`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LeaveRequest {
    /// Who leaves.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// The process that ends, as it named itself with its claims.
    pub worker_instance_id: Option<String>,
}

impl LeaveRequest {
    /// Checks every field; gives the executor's name and its process.
    pub fn check(self) -> Result<(String, Option<String>), Vec<FieldError>> {
        let mut faults = Faults::default();
        let executor_id = check_executor_id(&mut faults, self.executor_id, self.worker_id);
        check_instance(&mut faults, self.worker_instance_id.as_deref());
        faults.finish((executor_id, self.worker_instance_id))
    }
}

/// A checked heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedHeartbeat {
    /// The claim.
    pub claim: Presented,
    /// Another lease from now on, in seconds.
    pub lease_seconds: Option<u32>,
    /// How long to wait, in seconds.
    pub wait_seconds: u32,
    /// What the executor says of itself.
    pub report: Report,
    /// The agent's own state so far.
    pub agent_state: Option<Value>,
}

impl HeartbeatRequest {
    /// Checks every field.
    pub fn check(self) -> Result<CheckedHeartbeat, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        check_lease(&mut faults, self.lease_seconds);
        check_wait(&mut faults, self.wait_seconds);
        check_instance(&mut faults, self.worker_instance_id.as_deref());
        check_said(
            &mut faults,
            self.capabilities.as_ref(),
            self.workspace_sync.as_ref(),
        );
        if let Some(state) = &self.agent_state {
            faults.json("agent_state", state);
        }
        faults.finish(CheckedHeartbeat {
            claim,
            lease_seconds: self.lease_seconds,
            wait_seconds: self.wait_seconds.unwrap_or(0),
            report: Report {
                instance_id: self.worker_instance_id,
                process_id: self.process_id,
                capabilities: self.capabilities,
                workspace: self.workspace_sync,
            },
            agent_state: self.agent_state,
        })
    }
}

/// Checks the name of an executor's process.
pub(crate) fn check_instance(faults: &mut Faults, instance_id: Option<&str>) {
    if let Some(instance_id) = instance_id {
        faults.name("worker_instance_id", instance_id, limits::NAME_CHARS);
    }
}

/// Checks what an executor says of itself in free JSON.
pub(crate) fn check_said(
    faults: &mut Faults,
    capabilities: Option<&Value>,
    workspace: Option<&Value>,
) {
    for (path, value) in [
        ("capabilities", capabilities),
        ("workspace_sync", workspace),
    ] {
        let Some(value) = value else { continue };
        faults.json(path, value);
        let bytes = value.to_string().len();
        if bytes > limits::SAID_BYTES {
            let most = limits::SAID_BYTES;
            faults.add(path, format!("has {bytes} bytes; {most} are allowed"));
        }
    }
}

/// Answer of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatResponse {
    /// The run.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// Who holds it.
    pub executor_id: String,
    /// Its status.
    #[schema(value_type = schema::RunStatus)]
    pub status: RunStatus,
    /// The attempt the claim is for.
    pub attempt: u32,
    /// Whether the agent is to be stopped.
    pub cancel_requested: bool,
    /// When the lease ends.
    #[schema(value_type = String, format = DateTime)]
    pub lease_expires_at: Timestamp,
    /// How long that is from now, in milliseconds; free of any difference between clocks.
    pub lease_ttl_ms: i64,
    /// Whether the executor is to take no new work.
    pub drain: bool,
}

/// Body of `POST /executor/runs/{id}/release`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Who holds the claim.
    #[schema(required)]
    pub executor_id: Option<String>,
    /// The older name of `executor_id`.
    pub worker_id: Option<String>,
    /// What proves it.
    #[schema(required)]
    pub claim_token: Option<String>,
}

impl ReleaseRequest {
    /// Checks every field.
    pub fn check(self) -> Result<Presented, Vec<FieldError>> {
        let mut faults = Faults::default();
        let fields = PresentedFields {
            executor_id: self.executor_id,
            worker_id: self.worker_id,
            claim_token: self.claim_token,
        };
        let claim = fields.check(&mut faults);
        faults.finish(claim)
    }
}
