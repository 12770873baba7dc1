//! Clients of the time before: requests in the shape that they send them, played from a record. Each
//! line of it is a request with what it must lead to; `{name}` stands for what an earlier answer had.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::api;
use crate::http::Request;
use crate::server::{Place, Server};

const RECORD: &str = include_str!("older.jsonl");

on_both_stores! {
    what_older_clients_send_is_understood,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    note: String,
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    status: u16,
    /// Fields of the answer, and what they are.
    #[serde(default)]
    expect: BTreeMap<String, Value>,
    /// Names for fields of the answer.
    #[serde(default)]
    keep: BTreeMap<String, String>,
}

fn filled(text: &str, kept: &BTreeMap<String, String>) -> String {
    kept.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

async fn what_older_clients_send_is_understood(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let mut kept = BTreeMap::new();
    for line in RECORD.lines() {
        let sent: Sent = serde_json::from_str(&filled(line, &kept)).unwrap();
        let method = if sent.method == "GET" { "GET" } else { "POST" };
        let mut request = Request::new(method, &sent.path);
        for (name, value) in sent.headers {
            request = request.header(&name, value);
        }
        if let Some(body) = &sent.body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let answer = request.send(server.address).await;
        let (note, text) = (&sent.note, answer.text());
        assert_eq!(answer.status, sent.status, "{note}: {text}");
        let answer = answer.json();
        for (name, expected) in &sent.expect {
            assert_eq!(&answer[name], expected, "{note}: {text}");
        }
        for (name, field) in sent.keep {
            kept.insert(name, api::text(&answer, &field));
        }
    }
    let (session, run) = (&kept["session"], &kept["run"]);
    let log = api::log(server.address, session).await;
    api::assert_dense(&log);
    // The end that the client uploaded is not the run's.
    let ends = log
        .iter()
        .filter(|event| event["kind"] == "TurnEnd" && event["run_id"] == run.as_str());
    let ends: Vec<_> = ends.map(|event| &event["event_id"]).collect();
    assert_eq!(ends.len(), 1);
    assert_ne!(ends[0], "z");
    let tape = api::tape(server.address, session).await;
    let said = |entry: &&Value| entry["payload"]["text"] == "hello, from the worker";
    assert_eq!(tape.iter().filter(said).count(), 1, "{tape:?}");
}
