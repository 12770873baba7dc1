//! The document of the interface: whole, served without a network, and checked in.

use crate::support::{Api, Away};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::json;

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
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let problem = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert_eq!(
                problem["schema"]["$ref"], "#/components/schemas/Problem",
                "{method} {path}"
            );
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

/// `UPDATE_EXPECT=1` writes it anew.
#[tokio::test]
async fn the_document_that_is_checked_in_is_the_one_that_is_served() {
    let answer = api().get("/openapi.json").send().await;
    let document = format!("{:#}\n", answer.json);
    expect_test::expect_file!["../../../../docs/openapi.json"].assert_eq(&document);
}
