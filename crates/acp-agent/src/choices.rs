//! What a person can choose in a session: who answers the agent's questions, and what its agent
//! offers to choose from. It owns how both are shown and how a choice becomes a change of the
//! session's settings.

use agent_client_protocol::Error;
use agent_client_protocol::v1::schema::{
    ConfigOptionUpdate, CurrentModeUpdate, SessionConfigKind, SessionConfigOption,
    SessionConfigOptionCategory, SessionConfigOptionValue, SessionConfigSelectOption, SessionMode,
    SessionModeState, SessionUpdate,
};
use serde_json::{Map, Value, json};
use tapedeck_domain::session::ApprovalPolicy;
use tapedeck_protocol::session::UpdateSessionRequest;

use crate::failure::invalid;

/// The option for who answers. Agents' own options keep their ids.
const APPROVALS: &str = "tapedeck.approvals";

/// The policies with what they mean to a person.
const POLICIES: [(ApprovalPolicy, &str, &str); 3] = [
    (
        ApprovalPolicy::Interactive,
        "Ask",
        "The agent asks before every tool that needs permission",
    ),
    (
        ApprovalPolicy::Auto,
        "Ask before changes",
        "What only reads passes unasked",
    ),
    (
        ApprovalPolicy::Yolo,
        "Approve everything",
        "Nothing is asked, everything is recorded",
    ),
];

/// A session's choices as they stand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choices {
    policy: ApprovalPolicy,
    /// The agent's options as it last reported them.
    options: Vec<SessionConfigOption>,
    /// What the session asks of them, which holds from the next run on.
    wished: Map<String, Value>,
    /// Whether the editor takes options that are yes or no.
    takes_booleans: bool,
}

impl Choices {
    /// Of a session; its agent hasn't said anything yet.
    pub(crate) fn new(
        policy: ApprovalPolicy,
        agent: &Map<String, Value>,
        takes_booleans: bool,
    ) -> Self {
        Self {
            policy,
            options: Vec::new(),
            wished: wishes(agent),
            takes_booleans,
        }
    }

    /// As modes, for editors that know no options.
    pub(crate) fn modes(&self) -> SessionModeState {
        let modes = POLICIES.iter().map(|(policy, name, description)| {
            SessionMode::new(policy.as_str(), *name).description((*description).to_owned())
        });
        SessionModeState::new(self.policy.as_str(), modes.collect())
    }

    /// All options.
    pub(crate) fn options(&self) -> Vec<SessionConfigOption> {
        let policies = POLICIES.iter().map(|(policy, name, description)| {
            SessionConfigSelectOption::new(policy.as_str(), *name)
                .description((*description).to_owned())
        });
        let policies: Vec<_> = policies.collect();
        let ours =
            SessionConfigOption::select(APPROVALS, "Approvals", self.policy.as_str(), policies)
                .category(SessionConfigOptionCategory::Mode);
        let mut options = vec![ours];
        let theirs = self.options.iter().filter(|option| {
            self.takes_booleans || !matches!(option.kind, SessionConfigKind::Boolean(_))
        });
        options.extend(theirs.cloned().map(|option| self.as_wished(option)));
        options
    }

    /// The agent reports its options; gives the update if anything is new.
    pub(crate) fn reported(&mut self, options: &Value) -> Option<SessionUpdate> {
        let options: Vec<SessionConfigOption> = serde_json::from_value(options.clone()).ok()?;
        if options == self.options {
            return None;
        }
        self.options = options;
        Some(self.update())
    }

    /// The session was changed by somebody; gives the updates if that is to be seen here.
    pub(crate) fn changed(
        &mut self,
        policy: ApprovalPolicy,
        agent: &Map<String, Value>,
    ) -> Vec<SessionUpdate> {
        let before = self.clone();
        self.policy = policy;
        self.wished = wishes(agent);
        let mut updates = Vec::new();
        if before.policy != self.policy {
            let mode = CurrentModeUpdate::new(policy.as_str());
            updates.push(SessionUpdate::CurrentModeUpdate(mode));
        }
        if before.options() != self.options() {
            updates.push(self.update());
        }
        updates
    }

    /// The change for a mode.
    pub(crate) fn set_mode(mode: &str) -> Result<UpdateSessionRequest, Error> {
        let policy: ApprovalPolicy = mode
            .parse()
            .map_err(|_unknown| invalid(format!("there is no mode `{mode}`")))?;
        Ok(UpdateSessionRequest {
            approval_policy: Some(policy),
            ..UpdateSessionRequest::default()
        })
    }

    /// The change for an option.
    pub(crate) fn set_option(
        &self,
        id: &str,
        value: &SessionConfigOptionValue,
    ) -> Result<UpdateSessionRequest, Error> {
        let value = match value {
            SessionConfigOptionValue::ValueId { value } => json!(value),
            SessionConfigOptionValue::Boolean { value } => json!(value),
            _ => return Err(invalid("the value is of an unknown kind")),
        };
        if id == APPROVALS {
            return Self::set_mode(value.as_str().unwrap_or_default());
        }
        if !self.options.iter().any(|option| option.id.0.as_ref() == id) {
            return Err(invalid(format!("there is no option `{id}`")));
        }
        let mut wished = self.wished.clone();
        wished.insert(id.to_owned(), value);
        Ok(UpdateSessionRequest {
            agent: Some(Map::from_iter([("options".to_owned(), wished.into())])),
            ..UpdateSessionRequest::default()
        })
    }

    fn update(&self) -> SessionUpdate {
        SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(self.options()))
    }

    fn as_wished(&self, mut option: SessionConfigOption) -> SessionConfigOption {
        let wished = self.wished.get(option.id.0.as_ref());
        match (&mut option.kind, wished) {
            (SessionConfigKind::Select(select), Some(Value::String(value))) => {
                select.current_value = value.clone().into();
            }
            (SessionConfigKind::Boolean(boolean), Some(Value::Bool(value))) => {
                boolean.current_value = *value;
            }
            _ => {}
        }
        option
    }
}

fn wishes(agent: &Map<String, Value>) -> Map<String, Value> {
    let options = agent.get("options").and_then(Value::as_object);
    options.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices() -> Choices {
        let mut choices = Choices::new(ApprovalPolicy::Interactive, &Map::new(), false);
        let options = json!([{"id": "effort", "name": "Effort", "type": "select",
            "currentValue": "low", "options": [{"value": "low", "name": "Low"},
            {"value": "high", "name": "High"}]},
            {"id": "web", "name": "Web", "type": "boolean", "currentValue": true}]);
        assert!(choices.reported(&options).is_some());
        assert!(choices.reported(&options).is_none());
        choices
    }

    fn shown(choices: &Choices) -> Value {
        let options = choices.options();
        let pairs = options.iter().map(|option| {
            let option = serde_json::to_value(option).unwrap();
            (
                option["id"].as_str().unwrap().to_owned(),
                option["currentValue"].clone(),
            )
        });
        Value::Object(pairs.collect())
    }

    #[test]
    fn every_policy_is_a_mode_with_its_own_word() {
        let modes = serde_json::to_value(choices().modes()).unwrap();
        let ids: Vec<_> = modes["availableModes"].as_array().unwrap().iter().collect();
        let ids: Vec<_> = ids
            .iter()
            .map(|mode| mode["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["interactive", "auto", "yolo"]);
        for id in ids {
            let change = Choices::set_mode(id).unwrap();
            assert_eq!(change.approval_policy.map(ApprovalPolicy::as_str), Some(id));
        }
        assert_eq!(i32::from(Choices::set_mode("x").unwrap_err().code), -32602);
    }

    #[test]
    fn a_choice_among_the_agents_options_is_a_setting_that_is_shown_at_once() {
        let mut choices = choices();
        assert_eq!(
            shown(&choices),
            json!({"tapedeck.approvals": "interactive", "effort": "low"})
        );
        let value = SessionConfigOptionValue::value_id("high");
        let change = choices.set_option("effort", &value).unwrap();
        let agent = change.agent.unwrap();
        assert_eq!(agent.get("options"), Some(&json!({"effort": "high"})));
        let updates = choices.changed(ApprovalPolicy::Yolo, &agent);
        assert_eq!(updates.len(), 2, "{updates:?}");
        assert_eq!(
            shown(&choices),
            json!({"tapedeck.approvals": "yolo", "effort": "high"})
        );
        assert!(choices.changed(ApprovalPolicy::Yolo, &agent).is_empty());
        let error = choices.set_option("speed", &value).unwrap_err();
        assert_eq!(i32::from(error.code), -32602);
    }
}
