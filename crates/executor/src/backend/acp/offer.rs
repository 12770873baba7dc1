//! What an agent's session offers to choose from, for people to see: all of it in the present shape,
//! whatever shapes the agent has for it. It only reads.

use serde_json::{Value, json};

use super::choices::Choices;

/// The options of a session that the agent has opened with this answer, as they stand.
pub(super) fn offer(answer: &Value, choices: &Choices) -> Vec<Value> {
    let mut options = choices.options().to_vec();
    let chosen = choices.summary();
    for (category, name, list, id) in [
        ("mode", "Mode", &answer["modes"]["availableModes"], "id"),
        (
            "model",
            "Model",
            &answer["models"]["availableModels"],
            "modelId",
        ),
    ] {
        let is_there = options
            .iter()
            .any(|option| option["category"] == category || option["id"] == category);
        let values: Vec<Value> = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| value(item, id))
            .collect();
        // One way is no choice.
        if let (false, Some(current), true) = (is_there, chosen.get(category), values.len() > 1) {
            options.push(json!({"id": category, "name": name, "category": category,
                "type": "select", "currentValue": current, "options": values}));
        }
    }
    options
}

fn value(item: &Value, id: &str) -> Option<Value> {
    let id = item[id].as_str()?;
    let name = item["name"].as_str().unwrap_or(id);
    let mut value = json!({"value": id, "name": name});
    if let Some(description) = item["description"].as_str() {
        value["description"] = json!(description);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(answer: &Value) -> Value {
        json!(offer(answer, &Choices::of(answer)))
    }

    #[test]
    fn older_shapes_become_options_unless_there_is_one_for_them() {
        let ways = json!({"currentModeId": "ask", "availableModes": [
            {"id": "ask", "name": "Ask", "description": "always"}, {"id": "auto"}]});
        let models = json!({"currentModelId": "s", "availableModels": [
            {"modelId": "s", "name": "Small"}, {"modelId": "b", "name": "Big"}]});
        let expected = json!([
            {"id": "mode", "name": "Mode", "category": "mode", "type": "select",
                "currentValue": "ask", "options": [
                    {"value": "ask", "name": "Ask", "description": "always"},
                    {"value": "auto", "name": "auto"}]},
            {"id": "model", "name": "Model", "category": "model", "type": "select",
                "currentValue": "s", "options": [{"value": "s", "name": "Small"},
                    {"value": "b", "name": "Big"}]},
        ]);
        assert_eq!(offered(&json!({"modes": ways, "models": models})), expected);
        let option = json!({"id": "m", "category": "mode", "type": "select",
            "currentValue": "ask", "options": [{"value": "ask", "name": "Ask"}]});
        let both = json!({"modes": ways, "configOptions": [option]});
        assert_eq!(offered(&both), json!([option]));
        let one = json!({"modes": {"currentModeId": "a", "availableModes": [{"id": "a"}]}});
        assert_eq!(offered(&one), json!([]));
        assert_eq!(offered(&json!({})), json!([]));
    }
}
