use super::*;
use tapedeck_domain::JsonText;
use tapedeck_domain::event::EventRecord;

use crate::event::EventsQuery;

fn shown(kind: &str, payload: &str) -> DisplayEvent {
    DisplayEvent::of(&EventRecord {
        event_id: "e-1".to_owned(),
        session_id: SessionId::new("01890000-0000-7000-8000-000000000001".parse().unwrap()),
        session_seq: 7,
        run_id: None,
        kind: kind.to_owned(),
        payload: JsonText::from_stored(payload),
        folded_from: None,
        attempt: Some(2),
        executor_id: Some("x".to_owned()),
        trace_id: None,
        created_at: Timestamp(0),
        recorded_at: Timestamp(1_700_000_000_007),
    })
    .unwrap()
}

#[test]
fn a_record_keeps_its_payload_apart_and_sse_data_is_flat() {
    let event = || shown("StreamDelta", r#"{"content":"a\nb","type":"forged"}"#);
    let record = DisplayEventRecord::from(event());
    assert_eq!(
        serde_json::to_value(&record).unwrap(),
        json!({
            "event_id": "e-1",
            "session_id": "01890000-0000-7000-8000-000000000001",
            "session_seq": 7,
            "run_id": null,
            "kind": "assistant_message",
            "payload": {"text": "a\nb", "message_id": null},
            "created_at": "1970-01-01T00:00:00.000Z",
            "recorded_at": "2023-11-14T22:13:20.007Z",
        })
    );
    let data = sse_data(event());
    assert!(!data.contains(['\n', '\r']), "one line: {data}");
    assert_eq!(
        serde_json::from_str::<Value>(&data).unwrap(),
        json!({
            "type": "assistant_message",
            "session_id": "01890000-0000-7000-8000-000000000001",
            "run_id": null,
            "session_seq": 7,
            "event_id": "e-1",
            "timestamp": "2023-11-14T22:13:20.007Z",
            "text": "a\nb",
            "message_id": null,
        })
    );
}

/// Flat data would lose a field of the payload that is called like one of the envelope's.
#[test]
fn no_payload_has_a_name_of_the_envelope() {
    for kind in display::stored_kinds() {
        let payload = shown(kind, "{}").payload;
        for name in [
            "event_id",
            "run_id",
            "session_id",
            "session_seq",
            "timestamp",
            "type",
        ] {
            assert_eq!(payload.get(name), None, "{kind}");
        }
    }
}

fn kinds(format: Option<&str>, kinds: Option<&str>) -> Result<Vec<String>, QueryFault> {
    let query = EventsQuery {
        format: format.map(str::to_owned),
        kinds: kinds.map(str::to_owned),
        ..EventsQuery::default()
    };
    query.check(None).map(|selection| selection.kinds)
}

#[test]
fn kinds_are_named_as_they_are_shown_or_stored() {
    let display = Some("display");
    assert_eq!(
        kinds(display, Some("tool_result,StreamDelta,approval")).unwrap(),
        [
            "ToolResultDelta",
            "StreamDelta",
            "ApprovalRequest",
            "ApprovalResponse"
        ]
    );
    let all = kinds(display, None).unwrap();
    assert!(all.contains(&"TurnEnd".to_owned()) && !all.contains(&"Usage".to_owned()));
    for none in ["Usage", "plan,nonsense"] {
        assert!(
            matches!(kinds(display, Some(none)), Err(QueryFault::Parameters(_))),
            "{none}"
        );
    }
    assert_eq!(
        kinds(None, Some("plan")).unwrap(),
        ["plan"],
        "any kind is stored"
    );
}

#[test]
fn a_format_is_raw_or_display() {
    let check = |format: Option<&str>| EventFormat::check(format);
    assert_eq!(check(None), Ok(EventFormat::Raw));
    assert_eq!(check(Some("raw")), Ok(EventFormat::Raw));
    assert_eq!(check(Some("display")), Ok(EventFormat::Display));
    for bad in ["", "Display", "json", "raw,display"] {
        assert!(
            matches!(check(Some(bad)), Err(QueryFault::Parameters(_))),
            "{bad}"
        );
    }
}
