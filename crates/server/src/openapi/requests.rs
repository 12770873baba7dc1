//! What requests may hold, as narrow as it is checked: the bounds of numbers, and that what must be
//! given isn't null.

use std::mem;

use tapedeck_protocol::bounds;
use utoipa::Number;
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{Object, OneOf, SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr, Schema};

use super::refusals::operations;

/// Bodies are called so, and nothing else is.
const REQUEST: &str = "Request";

pub(super) fn narrow(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let most = bounds::of_page(path.ends_with("events"));
        for (_, operation) in operations(item) {
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter
                    && parameter.name == "limit"
                {
                    bound_page(parameter, most);
                }
            }
        }
    }
    let components = document.components.get_or_insert_default();
    for (schema, field, least, most) in bounds::of_requests() {
        if let Some(RefOr::T(Schema::Object(schema))) = components.schemas.get_mut(schema)
            && let Some(RefOr::T(Schema::Object(field))) = schema.properties.get_mut(field)
        {
            bound(field, least, most);
        }
    }
    for (name, schema) in &mut components.schemas {
        if let RefOr::T(Schema::Object(schema)) = schema
            && name.ends_with(REQUEST)
        {
            require(schema);
        }
    }
}

fn bound_page(parameter: &mut Parameter, most: u32) {
    if let Some(RefOr::T(Schema::Object(limit))) = &mut parameter.schema {
        bound(limit, 1, most.into());
    }
}

fn bound(number: &mut Object, least: u64, most: u64) {
    let as_number = |bound: u64| usize::try_from(bound).map(Number::UInt).ok();
    number.minimum = as_number(least);
    number.maximum = as_number(most);
}

/// A field that must be given is read as one that needn't, so that its absence gets a message of ours.
fn require(schema: &mut Object) {
    for name in &schema.required {
        match schema.properties.get_mut(name) {
            Some(RefOr::T(Schema::Object(field))) => {
                field.default = None;
                if let SchemaType::Array(types) = &mut field.schema_type {
                    types.retain(|it| *it != Type::Null);
                    if let [only] = types.as_slice() {
                        field.schema_type = SchemaType::Type(only.clone());
                    }
                }
            }
            Some(RefOr::Ref(field)) => field.default = None,
            Some(field) => {
                if let RefOr::T(Schema::OneOf(choice)) = field
                    && let Some(given) = choice_that_is_given(choice)
                {
                    *field = given;
                }
            }
            None => {}
        }
    }
}

/// The other choice beside null.
fn choice_that_is_given(choice: &mut OneOf) -> Option<RefOr<Schema>> {
    let is_null = |item: &RefOr<Schema>| {
        matches!(item, RefOr::T(Schema::Object(object))
            if object.schema_type == SchemaType::Type(Type::Null))
    };
    choice.items.retain(|item| !is_null(item));
    match choice.items.as_mut_slice() {
        [given] => Some(mem::replace(given, RefOr::T(Schema::default()))),
        _ => None,
    }
}
