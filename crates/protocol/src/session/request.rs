//! What clients may say of a session: its settings when it is created, and their changes. Nothing
//! here knows what a session is doing.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;
use tapedeck_domain::session::{ApprovalPolicy, RunTarget, SessionSettings, Workspace};
use utoipa::{IntoParams, ToSchema};

use crate::check::Faults;
use crate::run_target::{RunTargetRequest, check_path};
use crate::schema;

/// Steps of one run, at most.
pub(crate) const MAX_STEPS: u32 = 1_000_000;
/// A URL, in characters.
const URL_CHARS: usize = 2_048;

/// Body of `POST /sessions`. Everything is optional.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSessionRequest {
    /// Shown in lists.
    pub title: Option<String>,
    /// Short for a run target with a local path.
    pub repo_path: Option<String>,
    /// Where runs may execute.
    pub run_target: Option<RunTargetRequest>,
    /// Who answers questions; `interactive` by default.
    #[schema(value_type = Option<schema::ApprovalPolicy>)]
    pub approval_policy: Option<ApprovalPolicy>,
    /// Backend-specific settings.
    #[schema(value_type = Option<Object>)]
    pub agent: Option<Map<String, Value>>,
    /// The model's provider; kept as `agent.provider`.
    pub provider: Option<String>,
    /// The model; kept as `agent.model`.
    pub model: Option<String>,
    /// The provider's address; kept as `agent.base_url`.
    pub base_url: Option<String>,
    /// Steps of one run; kept as `agent.max_steps`.
    pub max_steps: Option<u32>,
    /// Where the session comes from, e.g. `cli`.
    pub origin: Option<String>,
    /// The client's own notes.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// An idempotency key, for clients that can't set the header.
    pub command_id: Option<String>,
}

impl CreateSessionRequest {
    /// Checks every field and gives the new session's settings.
    pub fn check(self) -> Result<SessionSettings, Vec<FieldError>> {
        let mut faults = Faults::default();
        let target = self.run_target.unwrap_or_default();
        if self.repo_path.is_some() && target.workspace.is_some() {
            faults.add(
                "repo_path",
                "excludes `run_target.workspace`; give one of them",
            );
        }
        let mut run_target = checked_target(&mut faults, target);
        if let Some(path) = &self.repo_path {
            check_path(&mut faults, "repo_path", path);
            run_target.workspace = Some(Workspace::local_path(path));
        }
        let mut agent = self.agent.unwrap_or_default();
        let shortcuts = AgentShortcuts {
            provider: self.provider.map_or(Change::Keep, Change::Set),
            model: self.model.map_or(Change::Keep, Change::Set),
            base_url: self.base_url.map_or(Change::Keep, Change::Set),
            max_steps: self.max_steps.map_or(Change::Keep, Change::Set),
        };
        shortcuts.merge_into(&mut agent);
        check_agent(&mut faults, &agent);
        check_texts(&mut faults, self.title.as_deref(), self.origin.as_deref());
        check_command_id(&mut faults, self.command_id.as_deref());
        let metadata = self.metadata.unwrap_or_default();
        faults.object("metadata", &metadata);
        faults.finish(SessionSettings {
            title: self.title,
            approval_policy: self.approval_policy.unwrap_or(ApprovalPolicy::Interactive),
            agent,
            run_target,
            origin: self.origin,
            metadata,
        })
    }
}

/// Body of `PATCH /sessions/{id}` and `PATCH /sessions/{id}/runtime-config`. What is omitted stays
/// as it is; `agent` and `metadata` are merged field by field, and a null field is removed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpdateSessionRequest {
    /// Shown in lists; null removes it.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<String>)]
    pub title: Change<String>,
    /// Where runs may execute; replaces the whole run target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_target: Option<RunTargetRequest>,
    /// Who answers questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::ApprovalPolicy>)]
    pub approval_policy: Option<ApprovalPolicy>,
    /// Backend-specific settings to change; null removes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub agent: Option<Map<String, Value>>,
    /// The model's provider; null removes it.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<String>)]
    pub provider: Change<String>,
    /// The model; null removes it.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<String>)]
    pub model: Change<String>,
    /// The provider's address; null removes it.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<String>)]
    pub base_url: Change<String>,
    /// Steps of one run; null removes the bound.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<u32>)]
    pub max_steps: Change<u32>,
    /// The client's own notes to change; null removes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
}

/// What a request says of one field: nothing, null, or a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Change<T> {
    /// The field is not there: keep what is set.
    #[default]
    Keep,
    /// The field is null: remove what is set.
    Remove,
    /// The field has a value: set it.
    Set(T),
}

impl<T> Change<T> {
    /// Whether the field is not there.
    pub const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

impl<T: Serialize> Serialize for Change<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Keep | Self::Remove => serializer.serialize_none(),
            Self::Set(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only called where the field is there; a missing one is the default.
        Ok(Option::deserialize(deserializer)?.map_or(Self::Remove, Self::Set))
    }
}

/// A checked change of settings. `None` leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SettingsChange {
    /// The title.
    pub title: Change<String>,
    /// The whole run target.
    pub run_target: Option<RunTarget>,
    /// Who answers questions.
    pub approval_policy: Option<ApprovalPolicy>,
    /// Agent settings to set; null removes one.
    pub agent: Map<String, Value>,
    /// Notes to set; null removes one.
    pub metadata: Map<String, Value>,
}

impl SettingsChange {
    /// The settings after the change.
    #[must_use]
    pub fn apply(self, mut settings: SessionSettings) -> SessionSettings {
        match self.title {
            Change::Keep => {}
            Change::Remove => settings.title = None,
            Change::Set(title) => settings.title = Some(title),
        }
        if let Some(run_target) = self.run_target {
            settings.run_target = run_target;
        }
        if let Some(policy) = self.approval_policy {
            settings.approval_policy = policy;
        }
        merge(&mut settings.agent, self.agent);
        merge(&mut settings.metadata, self.metadata);
        settings
    }

    /// Whether anything that a run depends on changes; refused while one is active.
    pub fn touches_runs(&self) -> bool {
        self.run_target.is_some() || self.approval_policy.is_some() || !self.agent.is_empty()
    }
}

fn merge(target: &mut Map<String, Value>, change: Map<String, Value>) {
    for (name, value) in change {
        if value.is_null() {
            target.remove(&name);
        } else {
            target.insert(name, value);
        }
    }
}

impl UpdateSessionRequest {
    /// Checks every field and gives the change.
    pub fn check(self) -> Result<SettingsChange, Vec<FieldError>> {
        let mut faults = Faults::default();
        let run_target = self
            .run_target
            .map(|target| checked_target(&mut faults, target));
        let mut agent = self.agent.unwrap_or_default();
        let shortcuts = AgentShortcuts {
            provider: self.provider,
            model: self.model,
            base_url: self.base_url,
            max_steps: self.max_steps,
        };
        shortcuts.merge_into(&mut agent);
        check_agent(&mut faults, &agent);
        if let Change::Set(title) = &self.title {
            check_texts(&mut faults, Some(title), None);
        }
        let metadata = self.metadata.unwrap_or_default();
        faults.object("metadata", &metadata);
        faults.finish(SettingsChange {
            title: self.title,
            run_target,
            approval_policy: self.approval_policy,
            agent,
            metadata,
        })
    }
}

/// The agent settings that a client may also give at the top level.
struct AgentShortcuts {
    provider: Change<String>,
    model: Change<String>,
    base_url: Change<String>,
    max_steps: Change<u32>,
}

impl AgentShortcuts {
    fn merge_into(self, agent: &mut Map<String, Value>) {
        let given = [
            ("provider", json_change(self.provider)),
            ("model", json_change(self.model)),
            ("base_url", json_change(self.base_url)),
            ("max_steps", json_change(self.max_steps)),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                agent.insert(name.to_owned(), value);
            }
        }
    }
}

/// A change as a merge patch has it: null removes.
fn json_change<T: Into<Value>>(change: Change<T>) -> Option<Value> {
    match change {
        Change::Keep => None,
        Change::Remove => Some(Value::Null),
        Change::Set(value) => Some(value.into()),
    }
}

/// Checks the settings the server itself reads; the rest only has to be storable.
fn check_agent(faults: &mut Faults, agent: &Map<String, Value>) {
    let bounds = [
        ("provider", limits::NAME_CHARS),
        ("model", limits::NAME_CHARS),
        ("base_url", URL_CHARS),
    ];
    for (name, max_chars) in bounds {
        match agent.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => faults.name(name, text, max_chars),
            Some(_) => faults.add(name, "must be a text"),
        }
    }
    match agent.get("max_steps") {
        None | Some(Value::Null) => {}
        Some(value) => {
            let steps = value.as_u64().and_then(|steps| u32::try_from(steps).ok());
            if !steps.is_some_and(|steps| (1..=MAX_STEPS).contains(&steps)) {
                faults.add("max_steps", format!("must be 1 to {MAX_STEPS}"));
            }
        }
    }
    faults.object("agent", agent);
}

fn check_texts(faults: &mut Faults, title: Option<&str>, origin: Option<&str>) {
    for (path, text) in [("title", title), ("origin", origin)] {
        if let Some(text) = text {
            faults.text(path, text, limits::NAME_CHARS);
        }
    }
}

/// Checks a `command_id`, which is an idempotency key.
pub(crate) fn check_command_id(faults: &mut Faults, command_id: Option<&str>) {
    if let Some(command_id) = command_id {
        faults.name("command_id", command_id, limits::NAME_CHARS);
    }
}

fn checked_target(faults: &mut Faults, target: RunTargetRequest) -> RunTarget {
    target.check("run_target").unwrap_or_else(|errors| {
        faults.extend(errors);
        RunTarget::default()
    })
}

/// Query of `DELETE /sessions/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteSessionQuery {
    /// Cancels an active run first instead of refusing.
    pub force: bool,
}
