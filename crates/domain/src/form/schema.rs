//! Reads a form's JSON schema. It takes the restricted schema of ACP's elicitation and nothing else.

use serde_json::{Map, Value};

use super::{Bounds, Choice, Field, FieldKind, Form, TextFormat};
use crate::limits;
use crate::rejection::FieldError;

/// Keywords that say more than a form may. Any other unknown keyword only describes.
const REFUSED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "if",
    "maxProperties",
    "minProperties",
    "multipleOf",
    "not",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedProperties",
];

/// Keywords of arrays and texts that mean something elsewhere only.
const REFUSED_AT_TOP: &[&str] = &["enum", "items", "oneOf"];

pub(super) fn read(schema: &Value) -> Result<Form, Vec<FieldError>> {
    let mut faults = Faults::default();
    let Some(schema) = schema.as_object() else {
        return Err(vec![FieldError::new(
            "form",
            "must be a JSON schema object",
        )]);
    };
    let bytes = serde_json::to_vec(schema).map_or(usize::MAX, |text| text.len());
    if bytes > limits::FORM_BYTES {
        let text = format!("has {bytes} bytes; {} are allowed", limits::FORM_BYTES);
        return Err(vec![FieldError::new("form", text)]);
    }
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        faults.add("form.type", "must be `object`");
    }
    faults.refuse("form", schema, REFUSED);
    faults.refuse("form", schema, REFUSED_AT_TOP);
    let nothing = Map::new();
    let properties = match schema.get("properties") {
        Some(Value::Object(properties)) => properties,
        Some(_) => {
            faults.add("form.properties", "must be an object");
            &nothing
        }
        None => &nothing,
    };
    if properties.len() > limits::FORM_FIELDS {
        let text = format!(
            "has {} fields; {} are allowed",
            properties.len(),
            limits::FORM_FIELDS
        );
        return Err(vec![FieldError::new("form.properties", text)]);
    }
    let required = faults.texts("form.required", schema.get("required"));
    for (index, name) in required.iter().enumerate() {
        if !properties.contains_key(name) {
            faults.add(format!("form.required[{index}]"), "is no field of the form");
        }
    }
    let mut fields = Vec::with_capacity(properties.len());
    for (name, property) in properties {
        let path = format!("form.properties.{}", super::answer::short(name));
        if let Some(mut field) = faults.field(&path, name, property) {
            field.is_required = required.contains(name);
            fields.push(field);
        }
    }
    faults.finish(Form { fields })
}

/// What is wrong so far.
#[derive(Default)]
struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError::new(path, message));
    }

    fn finish(self, form: Form) -> Result<Form, Vec<FieldError>> {
        if self.0.is_empty() {
            Ok(form)
        } else {
            Err(self.0)
        }
    }

    fn refuse(&mut self, path: &str, schema: &Map<String, Value>, words: &[&str]) {
        for word in words.iter().filter(|word| schema.contains_key(**word)) {
            self.add(format!("{path}.{word}"), "is not taken in a form");
        }
    }

    fn field(&mut self, path: &str, name: &str, property: &Value) -> Option<Field> {
        let Some(property) = property.as_object() else {
            self.add(path, "must be an object");
            return None;
        };
        if name.chars().count() > limits::NAME_CHARS {
            let text = format!("has a name of over {} characters", limits::NAME_CHARS);
            self.add(path, text);
        }
        self.refuse(path, property, REFUSED);
        let kind = match property.get("type").and_then(Value::as_str) {
            Some("string") => self.string(path, property),
            Some(word @ ("number" | "integer")) => Some(FieldKind::Number {
                is_integer: word == "integer",
                minimum: self.number(path, property, "minimum"),
                maximum: self.number(path, property, "maximum"),
            }),
            Some("boolean") => Some(FieldKind::Boolean),
            Some("array") => self.array(path, property),
            Some(_) | None => {
                let text = "must be string, number, integer, boolean or array";
                self.add(format!("{path}.type"), text);
                None
            }
        }?;
        let text = |word: &str| {
            property
                .get(word)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        // A suggestion that the form itself doesn't take helps nobody and hurts nobody.
        let default = property.get("default").cloned();
        let default = default.filter(|value| super::answer::check_value(&kind, value).is_ok());
        Some(Field {
            name: name.to_owned(),
            title: text("title"),
            description: text("description"),
            is_required: false,
            default,
            kind,
        })
    }

    fn string(&mut self, path: &str, property: &Map<String, Value>) -> Option<FieldKind> {
        let enumerated = property.get("enum");
        let titled = property.get("oneOf");
        match (enumerated, titled) {
            (Some(_), Some(_)) => {
                self.add(path, "has both `enum` and `oneOf`; give one of them");
                None
            }
            (Some(values), None) => Some(FieldKind::Choice(self.plain(path, "enum", values))),
            (None, Some(options)) => Some(FieldKind::Choice(self.titled(path, "oneOf", options))),
            (None, None) => Some(FieldKind::Text {
                length: self.bounds(path, property, "minLength", "maxLength"),
                pattern: property
                    .get("pattern")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
                // Formats that nobody knows say something to the agent alone.
                format: match property.get("format").and_then(Value::as_str) {
                    Some("email") => Some(TextFormat::Email),
                    Some("uri") => Some(TextFormat::Uri),
                    Some("date") => Some(TextFormat::Date),
                    Some("date-time") => Some(TextFormat::DateTime),
                    Some(_) | None => None,
                },
            }),
        }
    }

    fn array(&mut self, path: &str, property: &Map<String, Value>) -> Option<FieldKind> {
        let path_of_items = format!("{path}.items");
        let Some(items) = property.get("items").and_then(Value::as_object) else {
            self.add(path_of_items, "must say what may be chosen");
            return None;
        };
        let choices = match (items.get("enum"), items.get("anyOf").or(items.get("oneOf"))) {
            (Some(values), None) => self.plain(&path_of_items, "enum", values),
            (None, Some(options)) => self.titled(&path_of_items, "anyOf", options),
            (Some(_), Some(_)) | (None, None) => {
                self.add(path_of_items, "must have one of `enum` and `anyOf`");
                return None;
            }
        };
        let count = self.bounds(path, property, "minItems", "maxItems");
        Some(FieldKind::Choices { choices, count })
    }

    fn plain(&mut self, path: &str, word: &str, values: &Value) -> Vec<Choice> {
        let path = format!("{path}.{word}");
        let values = self.texts(&path, Some(values));
        let choices = values
            .into_iter()
            .map(|value| Choice { value, title: None })
            .collect();
        self.some(&path, choices)
    }

    fn titled(&mut self, path: &str, word: &str, options: &Value) -> Vec<Choice> {
        let path = format!("{path}.{word}");
        let mut choices = Vec::new();
        for (index, option) in options.as_array().into_iter().flatten().enumerate() {
            match option.get("const").and_then(Value::as_str) {
                Some(value) => choices.push(Choice {
                    value: value.to_owned(),
                    title: option
                        .get("title")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                }),
                None => self.add(format!("{path}[{index}].const"), "must be a text"),
            }
        }
        self.some(&path, choices)
    }

    fn some(&mut self, path: &str, choices: Vec<Choice>) -> Vec<Choice> {
        if choices.is_empty() {
            self.add(path, "must offer something to choose");
        }
        choices
    }

    fn texts(&mut self, path: &str, values: Option<&Value>) -> Vec<String> {
        let Some(values) = values else {
            return Vec::new();
        };
        let Some(values) = values.as_array() else {
            self.add(path, "must be a list of texts");
            return Vec::new();
        };
        let mut texts = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            match value.as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => self.add(format!("{path}[{index}]"), "must be a text"),
            }
        }
        texts
    }

    fn bounds(
        &mut self,
        path: &str,
        property: &Map<String, Value>,
        least: &str,
        most: &str,
    ) -> Bounds {
        let mut bound = |word: &str| {
            let value = property.get(word)?;
            let bound = value.as_u64();
            if bound.is_none() {
                self.add(
                    format!("{path}.{word}"),
                    "must be a whole number, not below 0",
                );
            }
            bound
        };
        Bounds {
            least: bound(least),
            most: bound(most),
        }
    }

    fn number(
        &mut self,
        path: &str,
        property: &Map<String, Value>,
        word: &str,
    ) -> Option<serde_json::Number> {
        match property.get(word)? {
            Value::Number(number) => Some(number.clone()),
            Value::Null
            | Value::Bool(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                self.add(format!("{path}.{word}"), "must be a number");
                None
            }
        }
    }
}
