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
    /// The agent's options as it last reported them, with what the session has asked for since.
    options: Vec<SessionConfigOption>,
    /// The session's settings for the agent, which hold from the next run on.
    agent: Map<String, Value>,
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
            agent: agent.clone(),
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
        let current = self.policy.as_str();
        let ours = SessionConfigOption::select(APPROVALS, "Approvals", current, policies);
        // Editors give the mode a place and a key: an agent that has modes has the first claim.
        let has_modes = self
            .options
            .iter()
            .any(|option| setting_of(option) == Setting::Mode);
        let category = (!has_modes).then_some(SessionConfigOptionCategory::Mode);
        let ours = ours.category(category);
        let mut options = vec![ours];
        let theirs = self.options.iter().filter(|option| {
            self.takes_booleans || !matches!(option.kind, SessionConfigKind::Boolean(_))
        });
        options.extend(theirs.cloned());
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

    /// The agent reports its mode, which some do beside their options.
    pub(crate) fn mode_reported(&mut self, mode: &str) -> Option<SessionUpdate> {
        let before = self.options.clone();
        let is_mode = |option: &&mut SessionConfigOption| setting_of(option) == Setting::Mode;
        for option in self.options.iter_mut().filter(is_mode) {
            set(option, &json!(mode));
        }
        (before != self.options).then(|| self.update())
    }

    /// Shows what the session asks of its agent in place of what the agent last said.
    pub(crate) fn show_wishes(&mut self) {
        for option in &mut self.options {
            let wished = match setting_of(option) {
                Setting::Mode => self.agent.get("mode"),
                Setting::Model => self.agent.get("model"),
                Setting::Option => {
                    let options = self.agent.get("options");
                    options.and_then(|options| options.get(option.id.0.as_ref()))
                }
            };
            if let Some(wished) = wished {
                set(option, wished);
            }
        }
    }

    /// The session was changed by somebody; gives the updates if that is to be seen here.
    pub(crate) fn changed(
        &mut self,
        policy: ApprovalPolicy,
        agent: &Map<String, Value>,
    ) -> Vec<SessionUpdate> {
        let before = self.clone();
        self.policy = policy;
        if self.agent != *agent {
            self.agent.clone_from(agent);
            self.show_wishes();
        }
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
        let option = self
            .options
            .iter()
            .find(|option| option.id.0.as_ref() == id);
        let Some(option) = option else {
            return Err(invalid(format!("there is no option `{id}`")));
        };
        let (name, value) = match setting_of(option) {
            Setting::Mode => ("mode", value),
            Setting::Model => ("model", value),
            Setting::Option => {
                let options = self.agent.get("options").and_then(Value::as_object);
                let mut options = options.cloned().unwrap_or_default();
                options.insert(id.to_owned(), value);
                ("options", Value::Object(options))
            }
        };
        Ok(UpdateSessionRequest {
            agent: Some(Map::from_iter([(name.to_owned(), value)])),
            ..UpdateSessionRequest::default()
        })
    }

    fn update(&self) -> SessionUpdate {
        SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(self.options()))
    }
}

/// The setting of a session that an agent's option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Mode,
    Model,
    Option,
}

fn setting_of(option: &SessionConfigOption) -> Setting {
    match &option.category {
        Some(SessionConfigOptionCategory::Mode) => Setting::Mode,
        Some(SessionConfigOptionCategory::Model) => Setting::Model,
        Some(_) | None => Setting::Option,
    }
}

fn set(option: &mut SessionConfigOption, value: &Value) {
    match (&mut option.kind, value) {
        (SessionConfigKind::Select(select), Value::String(value)) => {
            select.current_value = value.clone().into();
        }
        (SessionConfigKind::Boolean(boolean), Value::Bool(value)) => {
            boolean.current_value = *value;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices() -> Choices {
        let mut choices = Choices::new(ApprovalPolicy::Interactive, &Map::new(), false);
        let options = json!([{"id": "effort", "name": "Effort", "type": "select",
            "currentValue": "low", "options": [{"value": "low", "name": "Low"},
            {"value": "high", "name": "High"}]},
            {"id": "web", "name": "Web", "type": "boolean", "currentValue": true},
            {"id": "m", "name": "Mode", "type": "select", "category": "mode", "currentValue": "ask",
            "options": [{"value": "ask", "name": "Ask"}, {"value": "plan", "name": "Plan"}]}]);
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
            json!({"tapedeck.approvals": "interactive", "effort": "low", "m": "ask"})
        );
        let value = SessionConfigOptionValue::value_id("high");
        let change = choices.set_option("effort", &value).unwrap();
        let agent = change.agent.unwrap();
        assert_eq!(agent.get("options"), Some(&json!({"effort": "high"})));
        let updates = choices.changed(ApprovalPolicy::Yolo, &agent);
        assert_eq!(updates.len(), 2, "{updates:?}");
        assert_eq!(
            shown(&choices),
            json!({"tapedeck.approvals": "yolo", "effort": "high", "m": "ask"})
        );
        assert!(choices.changed(ApprovalPolicy::Yolo, &agent).is_empty());
        let error = choices.set_option("speed", &value).unwrap_err();
        assert_eq!(i32::from(error.code), -32602);
    }

    #[test]
    fn the_place_for_the_mode_is_the_agents_if_it_has_any() {
        let category = |choices: &Choices| choices.options()[0].category.clone();
        let before = Choices::new(ApprovalPolicy::Auto, &Map::new(), true);
        assert_eq!(category(&before), Some(SessionConfigOptionCategory::Mode));
        assert_eq!(category(&choices()), None);
    }

    #[test]
    fn an_option_for_the_mode_is_the_sessions_mode_and_the_agents_word_counts_last() {
        let mut choices = choices();
        let value = SessionConfigOptionValue::value_id("plan");
        let agent = choices.set_option("m", &value).unwrap().agent.unwrap();
        assert_eq!(json!(agent), json!({"mode": "plan"}));
        choices.changed(ApprovalPolicy::Interactive, &agent);
        assert_eq!(shown(&choices)["m"], "plan");
        assert!(choices.mode_reported("ask").is_some());
        assert!(choices.mode_reported("ask").is_none());
        assert_eq!(shown(&choices)["m"], "ask");
        choices.show_wishes();
        assert_eq!(shown(&choices)["m"], "plan");
    }
}
