//! The OpenAPI 3.1 document, made from the routes themselves, and a page to read it with. Both are
//! part of the binary and need no network.

mod refusals;
mod requests;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tapedeck_protocol::Problem;
use tapedeck_protocol::examples;
use utoipa::Modify;
use utoipa::openapi::path::Operation;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::AnyOf;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, OpenApi, RefOr, Schema};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::auth::Access;
use crate::extract::NoQuery;
use crate::limits::Limits;
use crate::routes;
use crate::state::ServerState;
use refusals::operations;

/// What the routes are collected under.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tapedeck",
        description = "A durable control plane for coding-agent sessions. Every endpoint is served at \
                       `/` and at `/v1`; `/worker…` and `worker_id` are older names of `/executor…` \
                       and `executor_id`."
    ),
    servers((url = "/"), (url = "/v1")),
    components(schemas(Problem)),
    modifiers(&Bearer),
    security((), ("bearer" = [])),
)]
pub(crate) struct Frame;

/// The credential, asked for where the server has one.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", scheme);
    }
}

/// Says of endpoints which role they take: by the words that OpenAPI 3.1 allows beside a credential.
pub(crate) fn add_role(document: &mut OpenApi, access: Access) {
    for item in document.paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            let bearer = SecurityRequirement::new("bearer", access.word());
            operation.security = Some(vec![SecurityRequirement::default(), bearer]);
        }
    }
}

/// The document as text.
pub fn document() -> String {
    let (_, document) = routes::all(&Limits::STANDARD).split_for_parts();
    text(document)
}

fn text(mut document: OpenApi) -> String {
    describe(&mut document);
    allow_overlaps(&mut document);
    requests::narrow(&mut document);
    refusals::add(&mut document);
    add_examples(&mut document);
    // The document is made of texts and maps, which always serialise.
    document.to_json().unwrap_or_default()
}

/// What OpenAPI 3.1 wants besides: ids that are the document's own, and a word for every response. A
/// body may be left out if nothing has to be in it that the query can't say: it reads as `{}`.
fn describe(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for item in document.paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            let group = operation.tags.iter().flatten().next();
            if let (Some(group), Some(id)) = (group, &operation.operation_id) {
                operation.operation_id = Some(format!("{}_{id}", group.replace('-', "_")));
            }
            for (status, response) in &mut operation.responses.responses {
                let status: Option<StatusCode> = status.parse().ok();
                let reason = status.and_then(|status| status.canonical_reason());
                if let (RefOr::T(response), Some(reason)) = (response, reason)
                    && response.description.is_empty()
                {
                    reason.clone_into(&mut response.description);
                }
            }
            if let Some(RefOr::T(body)) = &operation.request_body
                && duties(body, components)
                    .iter()
                    .all(|name| takes(operation, name))
                && let Some(RefOr::T(body)) = &mut operation.request_body
            {
                body.required = None;
            }
        }
    }
}

/// An answer of several shapes is of any of them: an empty page of events is one of all, which `oneOf`,
/// as the derive writes it, forbids.
fn allow_overlaps(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for schema in components.schemas.values_mut() {
        if let RefOr::T(Schema::OneOf(shapes)) = schema
            && shapes.discriminator.is_none()
        {
            let shapes = std::mem::take(shapes);
            let mut any = AnyOf::new();
            any.items = shapes.items;
            any.description = shapes.description;
            *schema = RefOr::T(Schema::AnyOf(any));
        }
    }
}

/// The fields that have to be in a body.
fn duties(body: &RequestBody, components: &Components) -> Vec<String> {
    let mut found = Vec::new();
    for content in body.content.values() {
        if let RefOr::T(content) = content
            && let Some(RefOr::Ref(named)) = &content.schema
            && let Some((_, name)) = named.ref_location.rsplit_once('/')
            && let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get(name)
        {
            found.extend(schema.required.iter().cloned());
        }
    }
    found
}

/// Whether an operation has a parameter of this name.
fn takes(operation: &Operation, name: &str) -> bool {
    let mut parameters = operation.parameters.iter().flatten();
    parameters.any(|parameter| match parameter {
        RefOr::T(parameter) => parameter.name == name,
        RefOr::Ref(_) => false,
    })
}

/// What a request looks like, where a client writes it.
fn add_examples(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for (name, example) in examples::requests() {
        if let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(name) {
            schema.examples = vec![example];
        }
    }
}

/// `/openapi.json` and `/docs`.
pub(crate) fn routes(document: OpenApi) -> Router<Arc<ServerState>> {
    let document = Bytes::from(text(document));
    let serve_document =
        get(move |_: NoQuery| async move { ([(CONTENT_TYPE, "application/json")], document) });
    let page = SwaggerUi::new("/docs").config(Config::from("/openapi.json"));
    Router::new()
        .route("/openapi.json", serve_document)
        .merge(page)
}
