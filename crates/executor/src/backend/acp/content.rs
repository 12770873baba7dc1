//! Reports about a session as a whole, and what is no text within a message. It owns their kinds of
//! event; what is too large for an event is left out and said to be, because half a picture is none.

use serde_json::{Map, Value, json};

/// Encoded data that an event carries; what is around it fits into the rest.
const DATA_LIMIT: usize = 192 * 1024;

/// The kind and payload of an event for a report that is about the session. `None` for reports that
/// are not known here.
pub(super) fn session_event(kind: &str, update: &Value) -> Option<(&'static str, Value)> {
    let event = match kind {
        "plan" if update["entries"].is_array() => {
            return Some(("Plan", json!({"entries": update["entries"]})));
        }
        "usage_update" => "Usage",
        "available_commands_update" if update["availableCommands"].is_array() => {
            return Some((
                "agent.commands",
                json!({"commands": update["availableCommands"]}),
            ));
        }
        "current_mode_update" if update["currentModeId"].is_string() => {
            return Some(("agent.mode", json!({"mode": update["currentModeId"]})));
        }
        "config_option_update" if update["configOptions"].is_array() => {
            return Some(("agent.options", json!({"options": update["configOptions"]})));
        }
        "session_info_update" => "agent.session",
        "notice" => "agent.notice",
        "compaction_update" | "compaction_summary_chunk" => "agent.compaction",
        _ => return None,
    };
    let mut payload = update.clone();
    if let Value::Object(fields) = &mut payload {
        fields.remove("sessionUpdate");
        // The protocol's spelling is its own; ours is the same in all events.
        for (theirs, ours) in [
            ("updatedAt", "updated_at"),
            ("compactionId", "compaction_id"),
        ] {
            if let Some(value) = fields.remove(theirs) {
                fields.insert(ours.to_owned(), value);
            }
        }
    }
    Some((event, payload))
}

/// The payload for a picture, a sound, a resource or a link to one. `None` for other content.
pub(super) fn content_payload(content: &Value) -> Option<Map<String, Value>> {
    let data = match content["type"].as_str()? {
        "image" | "audio" => Some("/data"),
        "resource" if content["resource"]["blob"].is_string() => Some("/resource/blob"),
        "resource" | "resource_link" => None,
        _ => return None,
    };
    let mut content = content.clone();
    let mut payload = Map::new();
    let encoded = data.and_then(|path| content.pointer_mut(path));
    if let Some(encoded) = encoded {
        let size = encoded.as_str().map_or(0, str::len);
        if size > DATA_LIMIT {
            *encoded = Value::Null;
            payload.insert("truncated".to_owned(), json!(true));
            payload.insert("original_bytes".to_owned(), json!(size));
        }
    }
    payload.insert("content".to_owned(), content);
    Some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_about_a_session_has_its_kind() {
        for (update, kind, payload) in [
            (
                json!({"sessionUpdate": "plan", "entries": [{"content": "a"}]}),
                "Plan",
                json!({"entries": [{"content": "a"}]}),
            ),
            (
                json!({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
                "Usage",
                json!({"used": 1, "size": 2}),
            ),
            (
                json!({"sessionUpdate": "available_commands_update",
                    "availableCommands": [{"name": "init", "description": "d"}]}),
                "agent.commands",
                json!({"commands": [{"name": "init", "description": "d"}]}),
            ),
            (
                json!({"sessionUpdate": "config_option_update", "configOptions": [{"id": "m"}]}),
                "agent.options",
                json!({"options": [{"id": "m"}]}),
            ),
            (
                json!({"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "now"}),
                "agent.session",
                json!({"title": "T", "updated_at": "now"}),
            ),
            (
                json!({"sessionUpdate": "notice", "severity": "warning", "title": "low"}),
                "agent.notice",
                json!({"severity": "warning", "title": "low"}),
            ),
            (
                json!({"sessionUpdate": "compaction_update", "compactionId": "c",
                    "status": "completed"}),
                "agent.compaction",
                json!({"compaction_id": "c", "status": "completed"}),
            ),
        ] {
            let word = update["sessionUpdate"].as_str().unwrap();
            assert_eq!(
                session_event(word, &update),
                Some((kind, payload)),
                "{word}"
            );
        }
        for odd in [
            json!({"sessionUpdate": "plan"}),
            json!({"sessionUpdate": "current_mode_update"}),
            json!({"sessionUpdate": "subagent_update"}),
        ] {
            let word = odd["sessionUpdate"].as_str().unwrap();
            assert_eq!(session_event(word, &odd), None, "{word}");
        }
    }

    #[test]
    fn large_data_is_left_out_and_said_to_be() {
        let size = DATA_LIMIT + 1;
        let image = json!({"type": "image", "mimeType": "image/png", "data": "x".repeat(size)});
        let payload = content_payload(&image).unwrap();
        assert_eq!(payload["truncated"], true);
        assert_eq!(payload["original_bytes"], size);
        let expected = json!({"type": "image", "mimeType": "image/png", "data": null});
        assert_eq!(payload["content"], expected);
        let blob = json!({"type": "resource",
            "resource": {"uri": "file:///a", "blob": "x".repeat(size)}});
        assert_eq!(content_payload(&blob).unwrap()["truncated"], true);
        let link = json!({"type": "resource_link", "uri": "file:///a", "name": "a"});
        let expected = Map::from_iter([("content".to_owned(), link.clone())]);
        assert_eq!(content_payload(&link), Some(expected));
        assert_eq!(content_payload(&json!({"type": "hologram"})), None);
    }
}
