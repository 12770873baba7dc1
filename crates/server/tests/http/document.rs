//! The document of the interface: whole, served without a network, and checked in.

use crate::support::{Api, Away};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

const RUN: &str = "018f0000-0000-7000-8000-000000000001";

fn api() -> Api {
    Api::over(Away::store())
}

#[tokio::test]
async fn the_document_and_its_page_are_served_without_a_network() {
    let answer = api().get("/openapi.json").send().await;
    assert_eq!(answer.header(CONTENT_TYPE), "application/json");
    assert!(answer.json["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths = answer.json["paths"].as_object().unwrap();
    let names: Vec<&str> = paths.keys().map(String::as_str).collect();
    insta::assert_snapshot!(names.join("\n"));
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} is two operations");
            let responses = operation["responses"].as_object().unwrap();
            for status in ["400", "401", "403", "429", "500", "503"] {
                let name = responses[status]["$ref"].as_str().unwrap();
                let response = answer.json.pointer(name.trim_start_matches('#')).unwrap();
                let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(problem, "#/components/schemas/Problem", "{method} {path}");
            }
            assert!(!responses.contains_key("default"), "{method} {path}");
        }
    }
    assert_eq!(
        crate::support::dangling_references(&answer.json),
        Vec::<String>::new()
    );
    let page = api().get("/docs/").send().await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text.contains("swagger-ui"));
    assert!(!page.text.contains("https://"), "{}", page.text);
    let page = api().get("/v1/docs").send().await;
    assert_eq!(page.status, StatusCode::SEE_OTHER);
    assert_eq!(tapedeck_server::document(), answer.text);
    for (name, example) in tapedeck_protocol::examples::requests() {
        let schema = &answer.json["components"]["schemas"][name];
        assert_eq!(schema["examples"], json!([example]), "{name}");
    }
}

/// `oneOf` refuses a value that fits two of its shapes. Nothing but `null` is sure to fit no other.
#[tokio::test]
async fn a_value_that_fits_several_shapes_is_valid() {
    fn check(at: &str, value: &Value) {
        let below: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields
                .iter()
                .map(|(k, v)| (format!("{at}/{k}"), v))
                .collect(),
            Value::Array(items) => items.iter().map(|v| (at.to_owned(), v)).collect(),
            _ => return,
        };
        if let Some(shapes) = value.get("oneOf").and_then(Value::as_array) {
            let nulls = shapes.iter().filter(|shape| shape["type"] == "null");
            assert_eq!((shapes.len(), nulls.count()), (2, 1), "{at}");
        }
        for (at, value) in below {
            check(&at, value);
        }
    }
    let document = api().get("/openapi.json").send().await.json;
    check("", &document);
    for pages in ["EventsResponse", "FeedResponse"] {
        let shapes = &document["components"]["schemas"][pages]["anyOf"];
        assert_eq!(shapes.as_array().map(Vec::len), Some(2), "{pages}");
    }
}

#[tokio::test]
async fn requests_are_as_narrow_as_they_are_checked() {
    let document = api().get("/openapi.json").send().await.json;
    let schemas = &document["components"]["schemas"];
    for (schema, field, least, most) in tapedeck_protocol::bounds::of_requests() {
        let field = &schemas[schema]["properties"][field];
        assert_eq!(field["minimum"], json!(least), "{schema} {field}");
        assert_eq!(field["maximum"], json!(most), "{schema} {field}");
    }
    for (path, most) in [
        ("/sessions", 200),
        ("/events", 500),
        ("/runs/{run_id}/events", 500),
    ] {
        let parameters = document["paths"][path]["get"]["parameters"]
            .as_array()
            .unwrap();
        let limit = parameters.iter().find(|it| it["name"] == "limit").unwrap();
        assert_eq!(limit["schema"]["minimum"], 1, "{path}");
        assert_eq!(limit["schema"]["maximum"], most, "{path}");
        let beyond = format!("{}?limit={}", path.replace("{run_id}", RUN), most + 1);
        assert_eq!(
            api().get(&beyond).send().await.status,
            StatusCode::BAD_REQUEST
        );
    }
    for (name, schema) in schemas.as_object().unwrap() {
        for field in schema["required"].as_array().into_iter().flatten() {
            let field = field.as_str().unwrap();
            let text = schema["properties"][field].to_string();
            let is_nullable = text.contains("\"null\"") || text.contains("null,");
            assert!(
                !name.ends_with("Request") || !is_nullable,
                "{name}.{field}: {text}"
            );
        }
    }
}

/// Keys are sorted, as their order isn't the document's: which crates are built together decides
/// it. `UPDATE_DOCUMENT=1` writes the file anew.
#[tokio::test]
async fn the_document_that_is_checked_in_is_the_one_that_is_served() {
    let mut served = api().get("/openapi.json").send().await.json;
    served.sort_all_objects();
    let served = format!("{served:#}\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("UPDATE_DOCUMENT").is_some() {
        std::fs::write(path, &served).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap();
    for (at, (here, there)) in checked_in.lines().zip(served.lines()).enumerate() {
        assert_eq!(here, there, "line {} of docs/openapi.json", at + 1);
    }
    assert_eq!(checked_in.len(), served.len());
}
