//! Queries: what a resource doesn't know is refused everywhere, so that a misspelled parameter never
//! passes for a default.

use http::{Method, StatusCode};
use serde_json::Value;

use crate::support::{Api, Away, ID};

/// Every operation of the document, with an identifier in its path.
fn operations(document: &Value) -> Vec<(Method, String)> {
    let mut operations = vec![(Method::GET, "/openapi.json".to_owned())];
    for (path, item) in document["paths"].as_object().unwrap() {
        let parts = path.split('/').map(|part| match part.strip_prefix('{') {
            Some(_parameter) => ID,
            None => part,
        });
        let path = parts.collect::<Vec<_>>().join("/");
        for method in item.as_object().unwrap().keys() {
            let method = method.to_uppercase().parse().unwrap();
            operations.push((method, path.clone()));
        }
    }
    operations
}

#[tokio::test]
async fn no_resource_takes_a_parameter_that_it_does_not_know() {
    let api = Api::over(Away::store());
    let document: Value = serde_json::from_str(&tapedeck_server::document()).unwrap();
    let operations = operations(&document);
    assert!(operations.len() > 40, "{operations:?}");
    for prefix in ["", "/v1"] {
        for (method, path) in &operations {
            let asked = format!("{prefix}{path}?surprise=1");
            let answer = api.send(method.clone(), &asked).await;
            assert_eq!(
                (
                    answer.status,
                    &answer.json["code"],
                    &answer.json["errors"][0]["path"]
                ),
                (
                    StatusCode::BAD_REQUEST,
                    &"malformed_request".into(),
                    &"query".into()
                ),
                "{method} {asked}: {}",
                answer.text
            );
            let detail = answer.json["detail"].as_str().unwrap();
            assert!(detail.contains("`surprise`"), "{method} {asked}: {detail}");
        }
    }
}
