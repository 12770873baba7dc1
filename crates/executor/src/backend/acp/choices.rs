//! What a session of the agent offers to choose from, in the three shapes that agents have for it,
//! and how a wish becomes a request. It owns the current choice as the agent tells it; it is pure,
//! and it must never take a choice that is not offered for granted.

use serde_json::{Map, Value, json};

use crate::backend::{AgentSettings, FailureCode};

/// What is offered and what is chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Choices {
    /// `configOptions`, the present shape, which may hold modes and models too.
    options: Vec<Value>,
    modes: Named,
    /// The shape for models before there were options.
    models: Named,
}

/// A choice among names.
#[derive(Debug, Clone, Default, PartialEq)]
struct Named {
    current: Option<String>,
    offered: Vec<String>,
}

impl Named {
    fn of(state: &Value, current: &str, list: &str, id: &str) -> Self {
        Self {
            current: state[current].as_str().map(str::to_owned),
            offered: names(&state[list], id),
        }
    }

    fn has(&self, wanted: &str) -> bool {
        self.offered.iter().any(|name| name == wanted)
    }
}

/// What a session is to be set to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wish<'a> {
    Mode(&'a str),
    Model(&'a str),
    Option(&'a str, &'a Value),
}

/// The request that fulfils a wish.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) params: Value,
    place: Place,
    value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Option(usize),
    Modes,
    Models,
}

/// A wish that the agent doesn't offer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Missing {
    pub(super) code: FailureCode,
    pub(super) text: String,
}

/// The wishes in the order in which they are applied: the model first, because options depend on
/// it, and the mode last, because it decides what the agent may do unasked.
pub(super) fn wishes<'a>(settings: &'a AgentSettings, mode: Option<&'a str>) -> Vec<Wish<'a>> {
    let mut wishes: Vec<Wish<'a>> = settings
        .model
        .iter()
        .map(|name| Wish::Model(name))
        .collect();
    let options = settings.options.iter();
    wishes.extend(options.map(|(id, value)| Wish::Option(id, value)));
    wishes.extend(settings.mode.as_deref().or(mode).map(Wish::Mode));
    wishes
}

impl Wish<'_> {
    fn value(self) -> Value {
        match self {
            Self::Mode(name) | Self::Model(name) => json!(name),
            Self::Option(_, value) => value.clone(),
        }
    }
}

impl std::fmt::Display for Wish<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(name) => write!(formatter, "mode `{name}`"),
            Self::Model(name) => write!(formatter, "model `{name}`"),
            Self::Option(id, Value::String(value)) => {
                write!(formatter, "option `{id}` = `{value}`")
            }
            Self::Option(id, value) => write!(formatter, "option `{id}` = {value}"),
        }
    }
}

impl Choices {
    /// As the answer to `session/new`, `session/load` or `session/resume` tells.
    pub(super) fn of(answer: &Value) -> Self {
        Self {
            options: answer["configOptions"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
            modes: Named::of(&answer["modes"], "currentModeId", "availableModes", "id"),
            models: Named::of(
                &answer["models"],
                "currentModelId",
                "availableModels",
                "modelId",
            ),
        }
    }

    /// Takes note of a change that the agent reports, or of the answer to a request.
    pub(super) fn note(&mut self, message: &Value) {
        if let Some(options) = message["configOptions"].as_array() {
            self.options.clone_from(options);
        }
        if let Some(mode) = message["currentModeId"].as_str() {
            self.modes.current = Some(mode.to_owned());
        }
    }

    /// Takes note of an answer without content: the agent did what it was asked.
    pub(super) fn fulfilled(&mut self, call: &Call) {
        let named = match call.place {
            Place::Option(at) => {
                if let Some(Value::Object(option)) = self.options.get_mut(at) {
                    option.insert("currentValue".to_owned(), call.value.clone());
                }
                return;
            }
            Place::Modes => &mut self.modes,
            Place::Models => &mut self.models,
        };
        named.current = call.value.as_str().map(str::to_owned);
    }

    /// Whether the wish is what is chosen.
    pub(super) fn holds(&self, wish: Wish<'_>) -> bool {
        let Ok(place) = self.place(wish) else {
            return false;
        };
        let wanted = wish.value();
        match place {
            Place::Option(at) => self.options[at]["currentValue"] == wanted,
            Place::Modes => self.modes.current.as_deref() == wanted.as_str(),
            Place::Models => self.models.current.as_deref() == wanted.as_str(),
        }
    }

    /// The request for a wish.
    pub(super) fn call(&self, wish: Wish<'_>, session_id: &str) -> Result<Call, Missing> {
        let place = self.place(wish)?;
        let value = wish.value();
        let (method, params) = match place {
            Place::Option(at) => {
                let id = &self.options[at]["id"];
                let mut params = json!({"sessionId": session_id, "configId": id, "value": value});
                if value.is_boolean() {
                    params["type"] = json!("boolean");
                }
                ("session/set_config_option", params)
            }
            Place::Modes => (
                "session/set_mode",
                json!({"sessionId": session_id, "modeId": value}),
            ),
            Place::Models => (
                "session/set_model",
                json!({"sessionId": session_id, "modelId": value}),
            ),
        };
        Ok(Call {
            method,
            params,
            place,
            value,
        })
    }

    /// The options in the present shape, as they stand.
    pub(super) fn options(&self) -> &[Value] {
        &self.options
    }

    /// Mode, model and options as they stand, for the run's result.
    pub(super) fn summary(&self) -> Map<String, Value> {
        let mut summary = Map::new();
        for (category, named) in [("mode", &self.modes), ("model", &self.models)] {
            let option = self.of_category(category).next();
            let current = option.map(|at| self.options[at]["currentValue"].clone());
            let current = current.or_else(|| named.current.clone().map(Value::from));
            summary.extend(current.map(|value| (category.to_owned(), value)));
        }
        let options: Map<String, Value> = self
            .options
            .iter()
            .filter_map(|option| {
                let id = option["id"].as_str()?.to_owned();
                Some((id, option["currentValue"].clone()))
            })
            .collect();
        if !options.is_empty() {
            summary.insert("options".to_owned(), Value::Object(options));
        }
        summary
    }

    /// Agents may offer one thing in two shapes; options are the present one.
    fn place(&self, wish: Wish<'_>) -> Result<Place, Missing> {
        match wish {
            Wish::Mode(name) => self.named(name, "mode", &self.modes, Place::Modes),
            Wish::Model(name) => self.named(name, "model", &self.models, Place::Models),
            Wish::Option(id, value) => self.option(id, value),
        }
    }

    fn named(
        &self,
        name: &str,
        category: &str,
        other: &Named,
        place: Place,
    ) -> Result<Place, Missing> {
        let mut options = self.of_category(category);
        if let Some(at) = options.find(|at| values(&self.options[*at]).iter().any(|v| v == name)) {
            return Ok(Place::Option(at));
        }
        if other.has(name) {
            return Ok(place);
        }
        let offered = self.of_category(category);
        let mut offered: Vec<String> = offered.flat_map(|at| values(&self.options[at])).collect();
        offered.extend(
            other
                .offered
                .iter()
                .filter(|name| !offered.contains(name))
                .cloned()
                .collect::<Vec<_>>(),
        );
        let code = match place {
            Place::Modes => FailureCode::AgentModeMissing,
            Place::Models => FailureCode::AgentModelMissing,
            Place::Option(_) => FailureCode::AgentOptionMissing,
        };
        let text = format!(
            "the agent has no {category} `{name}` (it offers {})",
            list(&offered)
        );
        Err(Missing { code, text })
    }

    fn option(&self, id: &str, value: &Value) -> Result<Place, Missing> {
        let missing = |text: String| Missing {
            code: FailureCode::AgentOptionMissing,
            text,
        };
        let Some(at) = self.options.iter().position(|option| option["id"] == id) else {
            let offered = names(&Value::Array(self.options.clone()), "id");
            let offered = list(&offered);
            return Err(missing(format!(
                "the agent has no option `{id}` (it offers {offered})"
            )));
        };
        let option = &self.options[at];
        let offered = if option["type"] == "boolean" {
            vec!["true".to_owned(), "false".to_owned()]
        } else {
            values(option)
        };
        let fits = match value {
            Value::Bool(_) => option["type"] == "boolean",
            Value::String(value) => option["type"] != "boolean" && offered.contains(value),
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
        };
        if fits {
            return Ok(Place::Option(at));
        }
        Err(missing(format!(
            "the agent's option `{id}` can't be {value} (it offers {})",
            list(&offered)
        )))
    }

    fn of_category(&self, category: &str) -> impl Iterator<Item = usize> {
        let fits = move |option: &Value| option["category"] == category || option["id"] == category;
        let options = self.options.iter().enumerate();
        options
            .filter(move |(_, option)| fits(option))
            .map(|(at, _)| at)
    }
}

fn list(offered: &[String]) -> String {
    if offered.is_empty() {
        "none".to_owned()
    } else {
        offered.join(", ")
    }
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item[field].as_str().map(str::to_owned))
        .collect()
}

/// The values of a choice; they may stand in groups.
fn values(option: &Value) -> Vec<String> {
    let mut found = names(&option["options"], "value");
    for group in option["options"].as_array().into_iter().flatten() {
        found.extend(names(&group["options"], "value"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Choices {
        Choices::of(&json!({
            "modes": {"currentModeId": "auto",
                "availableModes": [{"id": "auto", "name": "A"}, {"id": "ask", "name": "B"}]},
            "models": {"currentModelId": "small",
                "availableModels": [{"modelId": "small", "name": "S"}, {"modelId": "big"}]},
            "configOptions": [
                {"id": "m", "category": "mode", "type": "select", "currentValue": "auto",
                    "options": [{"value": "plan", "name": "P"}]},
                {"id": "effort", "type": "select", "currentValue": "low", "options": [
                    {"group": "g", "name": "G", "options": [{"value": "low"}, {"value": "high"}]}]},
                {"id": "web", "type": "boolean", "currentValue": false},
            ]
        }))
    }

    #[test]
    fn a_wish_becomes_the_request_of_the_shape_that_offers_it() {
        let (yes, high) = (json!(true), json!("high"));
        for (wish, method, params) in [
            (
                Wish::Mode("plan"),
                "session/set_config_option",
                json!({"sessionId": "s", "configId": "m", "value": "plan"}),
            ),
            (
                Wish::Mode("ask"),
                "session/set_mode",
                json!({"sessionId": "s", "modeId": "ask"}),
            ),
            (
                Wish::Model("big"),
                "session/set_model",
                json!({"sessionId": "s", "modelId": "big"}),
            ),
            (
                Wish::Option("effort", &high),
                "session/set_config_option",
                json!({"sessionId": "s", "configId": "effort", "value": "high"}),
            ),
            (
                Wish::Option("web", &yes),
                "session/set_config_option",
                json!({"sessionId": "s", "configId": "web", "value": true, "type": "boolean"}),
            ),
        ] {
            let mut choices = offered();
            assert!(!choices.holds(wish), "{wish}");
            let call = choices.call(wish, "s").unwrap();
            assert_eq!((call.method, &call.params), (method, &params), "{wish}");
            choices.fulfilled(&call);
            assert!(choices.holds(wish), "{wish}");
        }
    }

    #[test]
    fn what_is_not_offered_is_told_with_what_is() {
        let (word, yes) = (json!("x"), json!(true));
        for (wish, code, text) in [
            (
                Wish::Mode("x"),
                FailureCode::AgentModeMissing,
                "no mode `x` (it offers plan, auto, ask)",
            ),
            (
                Wish::Model("x"),
                FailureCode::AgentModelMissing,
                "no model `x` (it offers small, big)",
            ),
            (
                Wish::Option("x", &word),
                FailureCode::AgentOptionMissing,
                "no option `x` (it offers m, effort, web)",
            ),
            (
                Wish::Option("effort", &yes),
                FailureCode::AgentOptionMissing,
                "`effort` can't be true (it offers low, high)",
            ),
            (
                Wish::Option("web", &word),
                FailureCode::AgentOptionMissing,
                "`web` can't be \"x\" (it offers true, false)",
            ),
        ] {
            let missing = offered().call(wish, "s").unwrap_err();
            assert_eq!(missing.code, code);
            assert!(missing.text.contains(text), "{}", missing.text);
        }
        let nothing = Choices::of(&Value::Null);
        let missing = nothing.call(Wish::Mode("x"), "s").unwrap_err();
        assert!(missing.text.contains("(it offers none)"));
    }

    #[test]
    fn what_the_agent_reports_replaces_what_was_known() {
        let mut choices = offered();
        choices.note(&json!({"currentModeId": "ask"}));
        assert!(choices.holds(Wish::Mode("ask")));
        choices.note(&json!({"configOptions": [
            {"id": "web", "type": "boolean", "currentValue": true}]}));
        assert!(choices.holds(Wish::Option("web", &json!(true))));
        assert!(choices.call(Wish::Mode("plan"), "s").is_err());
        let expected = json!({"mode": "ask", "model": "small", "options": {"web": true}});
        assert_eq!(Value::Object(choices.summary()), expected);
    }

    #[test]
    fn the_mode_comes_last_and_the_sessions_own_before_the_executors() {
        let settings = AgentSettings {
            mode: Some("own".to_owned()),
            model: Some("big".to_owned()),
            options: Map::from_iter([("web".to_owned(), json!(true))]),
            ..AgentSettings::default()
        };
        let expected = [
            Wish::Model("big"),
            Wish::Option("web", &json!(true)),
            Wish::Mode("own"),
        ];
        assert_eq!(wishes(&settings, Some("other")), expected);
        let none = AgentSettings::default();
        assert_eq!(wishes(&none, Some("other")), [Wish::Mode("other")]);
    }
}
