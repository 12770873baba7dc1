use proptest::prelude::*;

use super::*;
use crate::fixture::cases;

fn tool_call(ids: &[&str]) -> Value {
    let calls: Vec<_> = ids
        .iter()
        .map(|id| json!({"id": id, "type": "function"}))
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn tool(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": format!("result of {id}")})
}

fn tool_use(ids: &[&str]) -> Value {
    let blocks: Vec<_> = ids
        .iter()
        .map(|id| json!({"type": "tool_use", "id": id}))
        .collect();
    json!({"role": "assistant", "content": blocks})
}

fn tool_result(ids: &[&str]) -> Value {
    let blocks: Vec<_> = ids
        .iter()
        .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "ok"}))
        .collect();
    json!({"role": "user", "content": blocks})
}

fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

#[test]
fn a_whole_conversation_passes_as_it_is() {
    for messages in [
        vec![
            said("user", "go"),
            tool_call(&["a", "b"]),
            tool("a"),
            tool("b"),
            said("assistant", "done"),
        ],
        vec![
            said("user", "go"),
            tool_use(&["a"]),
            tool_result(&["a"]),
            said("assistant", "done"),
        ],
        vec![
            json!({"parts": ["some other form"]}),
            json!("text"),
            json!(null),
        ],
    ] {
        assert_eq!(answered(&messages), messages);
    }
}

#[test]
fn a_missing_answer_is_added_where_its_form_wants_it() {
    let messages = [tool_call(&["a", "b"]), tool("a"), said("user", "go on")];
    let got = answered(&messages);
    assert_eq!(
        got[2],
        json!({"role": "tool", "tool_call_id": "b", "content": NO_RESULT})
    );
    assert_eq!(got[3], messages[2]);

    let messages = [tool_use(&["a", "b"]), tool_result(&["b"])];
    let got = answered(&messages);
    assert_eq!(got.len(), 2);
    let ids: Vec<_> = got[1]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["tool_use_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["b", "a"]);

    let got = answered(&[tool_use(&["a"]), said("user", "what now?")]);
    assert_eq!(got[1]["content"][0]["tool_use_id"], "a");
    assert_eq!(
        got[1]["content"][1],
        json!({"type": "text", "text": "what now?"})
    );

    let got = answered(&[tool_use(&["a"])]);
    assert_eq!(got[1]["content"][0]["is_error"], true);
}

#[test]
fn second_answers_and_answers_to_nothing_are_left_out() {
    let messages = [
        tool("ghost"),
        tool_call(&["a"]),
        tool("a"),
        tool("a"),
        said("user", "go"),
    ];
    let got = answered(&messages);
    assert_eq!(got, [tool_call(&["a"]), tool("a"), said("user", "go")]);

    let messages = [tool_use(&["a"]), tool_result(&["a"]), tool_result(&["a"])];
    assert_eq!(answered(&messages), messages[..2]);
}

/// How often each call is answered.
fn answers(messages: &[Value]) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            calls.push(call["id"].as_str().unwrap().to_owned());
        }
        if message["role"] == "tool" {
            results.push(message["tool_call_id"].as_str().unwrap().to_owned());
        }
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_use") => calls.push(block["id"].as_str().unwrap().to_owned()),
                Some("tool_result") => {
                    results.push(block["tool_use_id"].as_str().unwrap().to_owned());
                }
                _ => {}
            }
        }
    }
    calls.sort();
    results.sort();
    (calls, results)
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn wherever_messages_are_cut_each_call_is_answered_exactly_once(
        picks in prop::collection::vec((0..6_u8, 0..8_usize), 0..24),
        cut in 0..24_usize,
    ) {
        // Ids of calls are unique, as providers make them; answers are anything.
        let mut messages = Vec::new();
        for (index, (kind, other)) in picks.iter().enumerate() {
            let (own, other) = (format!("call-{index}"), format!("call-{other}"));
            messages.push(match kind {
                0 => said("user", "go"),
                1 => said("assistant", "hm"),
                2 => tool_call(&[&own]),
                3 => tool(&other),
                4 => tool_use(&[&own]),
                _ => tool_result(&[&other]),
            });
        }
        messages.truncate(cut);
        let got = answered(&messages);
        let (calls, results) = answers(&got);
        prop_assert_eq!(calls, results);
        prop_assert_eq!(&answered(&got), &got, "answering again changes nothing");
    }
}
