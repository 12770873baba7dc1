use super::*;
use serde_json::json;
use tapedeck_domain::SessionId;

fn record(payload: &str) -> EventRecord {
    EventRecord {
        event_id: "e-1".to_owned(),
        session_id: SessionId::new("01890000-0000-7000-8000-000000000001".parse().unwrap()),
        session_seq: 7,
        run_id: None,
        kind: "StreamDelta".to_owned(),
        payload: JsonText::from_stored(payload),
        folded_from: None,
        attempt: Some(2),
        executor_id: Some("x".to_owned()),
        trace_id: None,
        created_at: Timestamp(0),
        recorded_at: Timestamp(1_700_000_000_007),
    }
}

fn parsed(data: &str) -> Value {
    assert!(!data.contains(['\n', '\r']), "one line: {data}");
    serde_json::from_str(data).unwrap()
}

#[test]
fn sse_data_is_flat_and_the_envelope_wins() {
    let data = sse_data(&record(
        r#"{"content":"a\nb","role":"x","type":"forged","run_id":1}"#,
    ));
    assert_eq!(
        parsed(&data),
        json!({
            "type": "StreamDelta",
            "session_id": "01890000-0000-7000-8000-000000000001",
            "run_id": null,
            "session_seq": 7,
            "event_id": "e-1",
            "timestamp": "2023-11-14T22:13:20.007Z",
            "content": "a\nb",
            "role": "x",
        })
    );
}

#[test]
fn only_a_fold_says_from_where_it_was_folded() {
    for payload in [
        r#"{"folded_from":1,"a":2}"#,
        "{\n\"folded_from\":1,\"a\":2}",
    ] {
        let mut record = record(payload);
        assert_eq!(parsed(&sse_data(&record))["folded_from"], Value::Null);
        record.folded_from = Some(3);
        let data = parsed(&sse_data(&record));
        assert_eq!((&data["folded_from"], &data["a"]), (&json!(3), &json!(2)));
    }
}

#[test]
fn sse_data_is_one_line_whatever_is_stored() {
    let pretty = sse_data(&record("{\n  \"a\": 1,\r\n  \"b\": [\n2]\n}"));
    assert_eq!(parsed(&pretty)["b"], json!([2]));
    assert_eq!(parsed(&sse_data(&record("[1]")))["payload"], json!([1]));
    assert_eq!(
        parsed(&sse_data(&record("{\"a\":")))["payload"],
        json!(null)
    );
}

#[test]
fn sse_data_gives_each_name_once_even_in_another_spelling() {
    let data = sse_data(&record(r#"{"t\u0079pe":"forged","a":1,"a":2}"#));
    assert_eq!(data.matches("type").count(), 1, "{data}");
    assert!(!data.contains("forged"), "{data}");
    assert_eq!(parsed(&data)["a"], json!(2));
}

#[test]
fn numbers_of_a_payload_keep_their_digits() {
    let data = sse_data(&record(
        r#"{"big":123456789012345678901234567890,"x":1.10}"#,
    ));
    assert!(data.contains("123456789012345678901234567890"), "{data}");
    assert!(data.contains("1.10"), "{data}");
}

fn check(after: Option<&str>, header: Option<&str>) -> Result<After, QueryFault> {
    let query = EventsQuery {
        after: after.map(str::to_owned),
        ..EventsQuery::default()
    };
    query.check(header).map(|selection| selection.after)
}

#[test]
fn cursors_are_read_and_the_header_wins() {
    assert_eq!(check(None, None), Ok(After::Seq(0)));
    assert_eq!(check(Some("5"), None), Ok(After::Seq(5)));
    assert_eq!(check(Some("head"), None), Ok(After::Head));
    assert_eq!(check(Some("5"), Some("9")), Ok(After::Seq(9)));
    let most = i64::MAX.to_string();
    assert_eq!(
        check(Some(&most), None),
        Ok(After::Seq(i64::MAX.unsigned_abs()))
    );
}

#[test]
fn malformed_cursors_are_refused() {
    for bad in [
        "",
        "-1",
        "+1",
        "1.0",
        "x",
        " 1",
        "9223372036854775808",
        "99999999999999999999",
    ] {
        assert!(
            matches!(check(Some(bad), None), Err(QueryFault::Cursor(_))),
            "`{bad}`"
        );
        assert!(
            matches!(check(None, Some(bad)), Err(QueryFault::Cursor(_))),
            "`{bad}`"
        );
    }
    assert!(matches!(
        check(None, Some("head")),
        Err(QueryFault::Cursor(_))
    ));
}

#[test]
fn selections_are_checked() {
    let query = |kinds: &str, run_id: &str, limit: &str| {
        EventsQuery {
            limit: Some(limit.to_owned()),
            kinds: Some(kinds.to_owned()),
            run_id: Some(run_id.to_owned()),
            ..EventsQuery::default()
        }
        .check(None)
    };
    let run_id = "01890000-0000-7000-8000-000000000002";
    let selection = query("StreamDelta, TurnEnd,", run_id, "500").unwrap();
    assert_eq!(selection.kinds, ["StreamDelta", "TurnEnd"]);
    assert_eq!(selection.limit, 500);
    assert_eq!(selection.run_id.unwrap().to_string(), run_id);
    for (kinds, run_id, limit) in [
        ("a\0", run_id, "1"),
        ("a", "x", "1"),
        ("a", run_id, "501"),
        ("a", run_id, "0"),
    ] {
        assert!(matches!(
            query(kinds, run_id, limit),
            Err(QueryFault::Parameters(_))
        ));
    }
}
