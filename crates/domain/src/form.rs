//! Forms: what a question asks for. A form is a flat object of texts, numbers, yes-or-no and choices,
//! as agents send it in ACP's `elicitation/create`. It is read into values of our own, because
//! answers are checked against it and people fill it in field by field; a schema that says more than
//! this is refused when the question is asked, so that no rule of it is silently dropped.

mod answer;
mod schema;

use serde_json::{Number, Value};

use crate::rejection::FieldError;

/// A form, in the order of its fields' names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Form {
    /// Its fields.
    pub fields: Vec<Field>,
}

/// One field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in the answer.
    pub name: String,
    /// What people call it.
    pub title: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Whether an answer must have it.
    pub is_required: bool,
    /// What the agent suggests.
    pub default: Option<Value>,
    /// What it takes.
    pub kind: FieldKind,
}

/// What a field takes.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// A text.
    Text {
        /// Its length in characters.
        length: Bounds,
        /// A regular expression. One that can't be read in linear time is left to the agent.
        pattern: Option<String>,
        /// Its form.
        format: Option<TextFormat>,
    },
    /// One of some texts.
    Choice(Vec<Choice>),
    /// Some of some texts, each once.
    Choices {
        /// What may be chosen.
        choices: Vec<Choice>,
        /// How many.
        count: Bounds,
    },
    /// A number.
    Number {
        /// Whether it must be whole.
        is_integer: bool,
        /// The least.
        minimum: Option<Number>,
        /// The most.
        maximum: Option<Number>,
    },
    /// Yes or no.
    Boolean,
}

/// How long or how many; both ends are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The least.
    pub least: Option<u64>,
    /// The most.
    pub most: Option<u64>,
}

/// The forms of text that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// `name@host`.
    Email,
    /// A scheme and more.
    Uri,
    /// `2026-12-24`.
    Date,
    /// A moment with its offset from UTC (RFC 3339).
    DateTime,
}

/// One thing to choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What the answer holds.
    pub value: String,
    /// What people see.
    pub title: Option<String>,
}

impl Form {
    /// Reads a JSON schema. The paths of what is wrong begin with `form`.
    pub fn of_schema(schema: &Value) -> Result<Self, Vec<FieldError>> {
        schema::read(schema)
    }

    /// Checks a filled-in form. The paths of what is wrong begin with `response`.
    pub fn check(&self, response: &Value) -> Result<(), Vec<FieldError>> {
        answer::check(self, response)
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Field {
    /// What people call it.
    pub fn label(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }

    /// Reads what a person typed for this field: a value that it takes, or what is wrong.
    pub fn read(&self, typed: &str) -> Result<Value, String> {
        answer::read(self, typed)
    }

    /// Checks one value for this field; says what is wrong.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        answer::check_value(&self.kind, value)
    }
}

#[cfg(test)]
mod tests;
