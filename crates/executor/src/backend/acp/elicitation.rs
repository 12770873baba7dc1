//! Forms that the agent wants a person to fill in. It owns the protocol's words for them.

use serde_json::{Value, json};

use crate::backend::{AgentEvent, FormAnswer, naming};
use crate::process::Redactor;

/// A form as the agent asks it.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) call_id: Option<String>,
    pub(super) message: String,
    pub(super) schema: Value,
}

impl Asked {
    /// Reads the request; an error says what can't be asked.
    pub(super) fn of(params: &Value, redactor: &Redactor) -> Result<Self, &'static str> {
        if params.get("mode").is_some_and(|mode| mode != "form") {
            return Err("only forms are offered by this client");
        }
        if !params["requestedSchema"].is_object() {
            return Err("`requestedSchema` is missing");
        }
        let Some(message) = params["message"].as_str() else {
            return Err("`message` is missing");
        };
        // What a person is asked goes the same way as an event: bounded and without secrets.
        let payload = json!({"message": message, "schema": params["requestedSchema"]});
        let mut payload = AgentEvent::new("", payload, redactor).payload;
        if payload["truncated"] == true {
            return Err("the form is too large");
        }
        Ok(Self {
            call_id: params["toolCallId"]
                .as_str()
                .map(|id| naming::call_id(id, redactor)),
            message: payload["message"].as_str().unwrap_or_default().to_owned(),
            schema: payload["schema"].take(),
        })
    }
}

/// The answer in the protocol's words.
pub(super) fn outcome(answer: FormAnswer) -> Value {
    match answer {
        FormAnswer::Accepted(content) => json!({"action": "accept", "content": content}),
        FormAnswer::Declined => json!({"action": "decline"}),
        FormAnswer::Cancelled | FormAnswer::Unasked(_) => json!({"action": "cancel"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_and_what_is_none_is_refused() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "string"}}});
        let read = |params: Value| Asked::of(&params, &Redactor::default());
        let form = json!({"sessionId": "s", "toolCallId": "t", "mode": "form", "message": "name?",
            "requestedSchema": schema});
        let expected = Asked {
            call_id: Some("t".to_owned()),
            message: "name?".to_owned(),
            schema: schema.clone(),
        };
        assert_eq!(read(form), Ok(expected));
        let long = "x".repeat(1 << 20);
        for odd in [
            json!({"mode": "url", "message": "m", "url": "u"}),
            json!({"mode": "form", "message": "m"}),
            json!({"mode": "form", "requestedSchema": schema}),
            json!({"mode": "form", "message": long, "requestedSchema": schema}),
        ] {
            read(odd).unwrap_err();
        }
    }
}
