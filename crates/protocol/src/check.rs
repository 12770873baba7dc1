//! Collects every broken rule of a request, so that one answer names them all. It knows texts,
//! numbers and JSON in general, and nothing of any one request.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};
use tapedeck_domain::json::{storable, storable_text};
use tapedeck_domain::limits;
use tapedeck_domain::rejection::FieldError;

/// The broken rules found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<FieldError>);

impl Faults {
    /// Notes one.
    pub(crate) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError::new(path, message));
    }

    /// Notes those that a nested check found.
    pub(crate) fn extend(&mut self, errors: Vec<FieldError>) {
        self.0.extend(errors);
    }

    /// The value, if nothing is broken.
    pub(crate) fn finish<T>(self, value: T) -> Result<T, Vec<FieldError>> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self.0)
        }
    }

    /// What is broken, where no value could be made of the request.
    pub(crate) fn into_errors(self) -> Vec<FieldError> {
        self.0
    }

    /// A text of bounded length that both stores can hold; it may be empty.
    pub(crate) fn text(&mut self, path: &str, text: &str, max_chars: usize) {
        let chars = text.chars().count();
        if chars > max_chars {
            self.add(
                path,
                format!("has {chars} characters; {max_chars} are allowed"),
            );
        }
        if let Err(why) = storable_text(text) {
            self.add(path, why.to_string());
        }
    }

    /// A text of bounded length that says something.
    pub(crate) fn name(&mut self, path: &str, text: &str, max_chars: usize) {
        if text.trim().is_empty() {
            self.add(path, "must not be blank");
        }
        self.text(path, text, max_chars);
    }

    /// A name that must be given.
    pub(crate) fn required(&mut self, path: &str, text: Option<String>) -> String {
        let Some(text) = text else {
            self.add(path, "must be given");
            return String::new();
        };
        self.name(path, &text, limits::NAME_CHARS);
        text
    }

    /// A field and its older name: either, or both with the same value.
    pub(crate) fn either(
        &mut self,
        (path, value): (&str, Option<String>),
        (older_path, older): (&str, Option<String>),
    ) -> Option<String> {
        match (value, older) {
            (Some(value), Some(older)) => {
                if value != older {
                    self.add(
                        path,
                        format!("differs from `{older_path}`, its older name; give one of them"),
                    );
                }
                Some(value)
            }
            (value, older) => value.or(older),
        }
    }

    /// A whole number within bounds.
    pub(crate) fn range(&mut self, path: &str, value: Option<u32>, bounds: RangeInclusive<u32>) {
        if let Some(value) = value
            && !bounds.contains(&value)
        {
            self.add(
                path,
                format!("must be {} to {}", bounds.start(), bounds.end()),
            );
        }
    }

    /// JSON that both stores can hold.
    pub(crate) fn json(&mut self, path: &str, value: &Value) {
        if let Err(why) = storable(value) {
            self.add(path, why.to_string());
        }
    }

    /// A JSON object that both stores can hold.
    pub(crate) fn object(&mut self, path: &str, fields: &Map<String, Value>) {
        for (name, value) in fields {
            if storable_text(name).is_err() {
                self.add(path, "has a field whose name holds a NUL character");
            }
            self.json(&field(path, name), value);
        }
    }

    /// Labels: names and values of bounded length.
    pub(crate) fn labels<'a>(
        &mut self,
        path: &str,
        labels: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
    ) {
        if labels.len() > MAX_LABELS {
            self.add(
                path,
                format!("has {} labels; {MAX_LABELS} are allowed", labels.len()),
            );
            return;
        }
        for (name, value) in labels {
            self.name(&field(path, name), name, limits::NAME_CHARS);
            self.text(&field(path, name), value, limits::NAME_CHARS);
        }
    }
}

/// Labels of one executor or one run target.
const MAX_LABELS: usize = 64;

/// The path of a field whose name the client chose, cut so that no answer grows with it.
fn field(path: &str, name: &str) -> String {
    let name: String = name.chars().take(64).collect();
    format!("{path}.{name}")
}
