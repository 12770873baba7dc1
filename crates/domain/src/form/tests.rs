use proptest::prelude::*;
use serde_json::json;

use super::*;

fn schema() -> Value {
    json!({
        "type": "object",
        "title": "Release",
        "properties": {
            "kind": {"type": "string", "oneOf": [{"const": "minor", "title": "Minor"}, {"const": "major", "title": "Major"}], "default": "minor"},
            "targets": {"type": "array", "items": {"type": "string", "enum": ["linux", "mac"]}, "minItems": 1},
            "count": {"type": "integer", "minimum": 1, "maximum": 3},
            "ratio": {"type": "number", "minimum": 0.5},
            "notes": {"type": "string", "maxLength": 5, "pattern": "^[a-z]*$"},
            "mail": {"type": "string", "format": "email"},
            "on": {"type": "string", "format": "date"},
            "sign": {"type": "boolean"},
            "colour": {"type": "string", "enum": ["red", "green"]},
        },
        "required": ["kind"],
    })
}

fn form() -> Form {
    Form::of_schema(&schema()).unwrap()
}

#[test]
fn a_filled_in_form_is_taken_field_by_field() {
    let cases = [
        (json!({"kind": "major"}), None),
        (json!({"kind": "Major"}), Some("response.kind")),
        (json!({}), Some("response.kind")),
        (json!({"kind": null}), Some("response.kind")),
        (json!({"kind": "minor", "targets": ["mac", "linux"]}), None),
        (
            json!({"kind": "minor", "targets": []}),
            Some("response.targets"),
        ),
        (
            json!({"kind": "minor", "targets": ["mac", "mac"]}),
            Some("response.targets"),
        ),
        (
            json!({"kind": "minor", "targets": ["bsd"]}),
            Some("response.targets"),
        ),
        (
            json!({"kind": "minor", "targets": "mac"}),
            Some("response.targets"),
        ),
        (json!({"kind": "minor", "count": 3}), None),
        (json!({"kind": "minor", "count": 3.0}), None),
        (json!({"kind": "minor", "count": 4}), Some("response.count")),
        (
            json!({"kind": "minor", "count": 1.5}),
            Some("response.count"),
        ),
        (
            json!({"kind": "minor", "count": "2"}),
            Some("response.count"),
        ),
        (json!({"kind": "minor", "ratio": 0.5}), None),
        (
            json!({"kind": "minor", "ratio": 0.4}),
            Some("response.ratio"),
        ),
        (json!({"kind": "minor", "notes": "abc"}), None),
        (
            json!({"kind": "minor", "notes": "ABC"}),
            Some("response.notes"),
        ),
        (
            json!({"kind": "minor", "notes": "abcdef"}),
            Some("response.notes"),
        ),
        (json!({"kind": "minor", "mail": "ann@example.org"}), None),
        (
            json!({"kind": "minor", "mail": "ann"}),
            Some("response.mail"),
        ),
        (json!({"kind": "minor", "on": "2026-12-24"}), None),
        (
            json!({"kind": "minor", "on": "24.12.2026"}),
            Some("response.on"),
        ),
        (json!({"kind": "minor", "sign": true}), None),
        (
            json!({"kind": "minor", "sign": "true"}),
            Some("response.sign"),
        ),
        (
            json!({"kind": "minor", "colour": "blue"}),
            Some("response.colour"),
        ),
        (json!({"kind": "minor", "other": 1}), Some("response.other")),
        (json!("minor"), Some("response")),
    ];
    let form = form();
    for (response, wrong) in cases {
        let checked = form.check(&response);
        let paths = checked.map_err(|faults| faults.iter().map(|f| f.path.clone()).collect());
        let expected = wrong.map_or(Ok(()), |path| Err(vec![path.to_owned()]));
        assert_eq!(paths, expected, "{response}");
    }
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let faults = form().check(&json!({"count": 9, "sign": 0})).unwrap_err();
    let mut paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["response.count", "response.kind", "response.sign"]);
}

#[test]
fn a_schema_that_says_more_than_a_form_is_refused_when_it_is_asked() {
    let with = |property: Value| json!({"type": "object", "properties": {"a": property}});
    let cases = [
        (json!("form"), "form"),
        (json!({"type": "array"}), "form.type"),
        (json!({"properties": {}}), "form.type"),
        (json!({"type": "object", "$ref": "#"}), "form.$ref"),
        (
            json!({"type": "object", "allOf": [{"$ref": "#"}]}),
            "form.allOf",
        ),
        (
            json!({"type": "object", "properties": []}),
            "form.properties",
        ),
        (
            json!({"type": "object", "properties": {}, "required": ["a"]}),
            "form.required[0]",
        ),
        (with(json!(true)), "form.properties.a"),
        (with(json!({})), "form.properties.a.type"),
        (with(json!({"type": "object"})), "form.properties.a.type"),
        (
            with(json!({"type": ["string", "null"]})),
            "form.properties.a.type",
        ),
        (
            with(json!({"type": "string", "not": {}})),
            "form.properties.a.not",
        ),
        (
            with(json!({"type": "string", "minLength": -1})),
            "form.properties.a.minLength",
        ),
        (
            with(json!({"type": "string", "enum": []})),
            "form.properties.a.enum",
        ),
        (
            with(json!({"type": "string", "enum": [1]})),
            "form.properties.a.enum[0]",
        ),
        (
            with(json!({"type": "string", "oneOf": [{"title": "x"}]})),
            "form.properties.a.oneOf[0].const",
        ),
        (
            with(json!({"type": "integer", "minimum": "1"})),
            "form.properties.a.minimum",
        ),
        (with(json!({"type": "array"})), "form.properties.a.items"),
        (
            with(json!({"type": "array", "items": {"type": "string"}})),
            "form.properties.a.items",
        ),
    ];
    for (schema, path) in cases {
        let faults = Form::of_schema(&schema).unwrap_err();
        assert_eq!(faults[0].path, path, "{schema}: {faults:?}");
    }
    let large = json!({"type": "object", "description": "x".repeat(70_000)});
    assert!(Form::of_schema(&large).is_err());
    let many: serde_json::Map<_, _> = (0..101)
        .map(|n| (format!("f{n}"), json!({"type": "boolean"})))
        .collect();
    assert!(Form::of_schema(&json!({"type": "object", "properties": many})).is_err());
}

#[test]
fn what_only_describes_is_kept_or_left_alone() {
    let form = form();
    let kind = form.field("kind").unwrap();
    assert!(kind.is_required);
    assert_eq!(kind.default, Some(json!("minor")));
    assert_eq!(kind.label(), "kind");
    let odd = json!({
        "type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema", "x-order": 1,
        "properties": {"a": {"type": "string", "title": "A", "format": "odd", "pattern": "(?=x)", "default": 7}},
    });
    let form = Form::of_schema(&odd).unwrap();
    let field = form.field("a").unwrap();
    assert_eq!(field.label(), "A");
    assert_eq!(
        field.default, None,
        "a default that the form refuses is none"
    );
    assert!(
        field.check(&json!("y")).is_ok(),
        "a pattern that can't be read is the agent's"
    );
}

#[test]
fn what_people_type_becomes_what_the_field_takes() {
    let form = form();
    let read = |name: &str, typed: &str| form.field(name).unwrap().read(typed);
    assert_eq!(read("kind", "major"), Ok(json!("major")));
    assert_eq!(read("kind", " Major "), Ok(json!("major")));
    assert_eq!(read("kind", "2"), Ok(json!("major")));
    assert!(read("kind", "3").is_err());
    assert_eq!(read("targets", "mac, 1"), Ok(json!(["mac", "linux"])));
    assert!(read("targets", "").is_err());
    assert_eq!(read("count", " 2 "), Ok(json!(2)));
    assert!(read("count", "two").is_err());
    assert_eq!(read("ratio", "0.75"), Ok(json!(0.75)));
    assert_eq!(read("sign", "Yes"), Ok(json!(true)));
    assert!(read("sign", "perhaps").is_err());
    assert_eq!(read("notes", "abc"), Ok(json!("abc")));
}

proptest! {
    /// Whatever comes in, a form or an answer is taken or refused with a place; and what a person
    /// could type is taken as an answer if it is taken at all.
    #[test]
    fn nothing_panics_and_what_is_read_is_also_taken(typed in ".{0,40}", number in any::<f64>()) {
        let form = form();
        for field in &form.fields {
            if let Ok(value) = field.read(&typed) {
                prop_assert!(field.check(&value).is_ok());
            }
        }
        let odd = json!({"kind": typed, "count": number, "ratio": number, typed.clone(): typed});
        if let Err(faults) = form.check(&odd) {
            prop_assert!(faults.iter().all(|fault| fault.path.starts_with("response")));
        }
        let schema = json!({"type": "object", "properties": {typed.clone(): {"type": typed, "minimum": number}}});
        if let Err(faults) = Form::of_schema(&schema) {
            prop_assert!(faults.iter().all(|fault| fault.path.starts_with("form")));
        }
    }
}
