//! Checks what people fill in, and reads what they type.

use std::cmp::Ordering;

use jiff::Timestamp;
use jiff::civil::Date;
use regex::RegexBuilder;
use serde_json::{Number, Value};

use super::{Bounds, Choice, Field, FieldKind, Form, TextFormat};
use crate::limits;
use crate::rejection::FieldError;

/// A compiled pattern's size, in bytes; larger ones are left to the agent.
const PATTERN_BYTES: usize = 256 * 1024;

/// A name that somebody else chose, cut so that no answer grows with it.
pub(super) fn short(name: &str) -> String {
    name.chars().take(64).collect()
}

pub(super) fn check(form: &Form, response: &Value) -> Result<(), Vec<FieldError>> {
    let Some(fields) = response.as_object() else {
        let text = "must be an object with the form's fields";
        return Err(vec![FieldError::new("response", text)]);
    };
    let bytes = serde_json::to_vec(fields).map_or(usize::MAX, |text| text.len());
    if bytes > limits::FORM_BYTES {
        let text = format!("has {bytes} bytes; {} are allowed", limits::FORM_BYTES);
        return Err(vec![FieldError::new("response", text)]);
    }
    let path = |name: &str| format!("response.{}", short(name));
    let mut faults = Vec::new();
    for field in &form.fields {
        match fields.get(&field.name) {
            Some(value) => {
                if let Err(why) = field.check(value) {
                    faults.push(FieldError::new(path(&field.name), why));
                }
            }
            None if field.is_required => {
                faults.push(FieldError::new(path(&field.name), "must be given"));
            }
            None => {}
        }
    }
    // A misspelt field would be lost without a word.
    let unknown = fields.keys().filter(|name| form.field(name).is_none());
    faults.extend(unknown.map(|name| FieldError::new(path(name), "is no field of the form")));
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

pub(super) fn check_value(kind: &FieldKind, value: &Value) -> Result<(), String> {
    match (kind, value) {
        (
            FieldKind::Text {
                length,
                pattern,
                format,
            },
            Value::String(text),
        ) => check_text(text, *length, pattern.as_deref(), *format),
        (FieldKind::Choice(choices), Value::String(text)) => check_choice(choices, text),
        (FieldKind::Choices { choices, count }, Value::Array(chosen)) => {
            check_choices(choices, *count, chosen)
        }
        (
            FieldKind::Number {
                is_integer,
                minimum,
                maximum,
            },
            Value::Number(number),
        ) => check_number(number, *is_integer, minimum.as_ref(), maximum.as_ref()),
        (FieldKind::Boolean, Value::Bool(_)) => Ok(()),
        (FieldKind::Text { .. }, _) => Err("must be a text".to_owned()),
        (FieldKind::Choice(choices), _) => Err(one_of(choices)),
        (FieldKind::Choices { choices, .. }, _) => {
            Err(format!("must be a list, and each {}", one_of(choices)))
        }
        (FieldKind::Number { is_integer, .. }, _) => Err(number_wanted(*is_integer)),
        (FieldKind::Boolean, _) => Err("must be true or false".to_owned()),
    }
}

fn number_wanted(is_integer: bool) -> String {
    let kind = if is_integer { "whole number" } else { "number" };
    format!("must be a {kind}")
}

fn check_text(
    text: &str,
    length: Bounds,
    pattern: Option<&str>,
    format: Option<TextFormat>,
) -> Result<(), String> {
    within(length, text.chars().count(), "characters")?;
    if let Some(pattern) = pattern
        && let Ok(regex) = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build()
        && !regex.is_match(text)
    {
        return Err(format!("must match `{}`", short(pattern)));
    }
    let (is_well_formed, wanted) = match format {
        None => return Ok(()),
        Some(TextFormat::Email) => (is_email(text), "an e-mail address"),
        Some(TextFormat::Uri) => (is_uri(text), "a URI"),
        Some(TextFormat::Date) => (text.parse::<Date>().is_ok(), "a date such as 2026-12-24"),
        Some(TextFormat::DateTime) => (
            text.parse::<Timestamp>().is_ok(),
            "a moment such as 2026-12-24T18:00:00Z",
        ),
    };
    if is_well_formed {
        Ok(())
    } else {
        Err(format!("must be {wanted}"))
    }
}

/// Not more than that it can be meant as one; only sending mail proves an address.
fn is_email(text: &str) -> bool {
    let Some((name, host)) = text.rsplit_once('@') else {
        return false;
    };
    let is_clean = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
    is_clean(name) && is_clean(host) && !host.starts_with('.') && !host.ends_with('.')
}

fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.is_empty()
        && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn check_choice(choices: &[Choice], text: &str) -> Result<(), String> {
    if choices.iter().any(|choice| choice.value == text) {
        Ok(())
    } else {
        Err(one_of(choices))
    }
}

fn check_choices(choices: &[Choice], count: Bounds, chosen: &[Value]) -> Result<(), String> {
    within(count, chosen.len(), "choices")?;
    for (index, value) in chosen.iter().enumerate() {
        match value.as_str() {
            Some(text) => check_choice(choices, text)?,
            None => return Err(format!("must be a list, and each {}", one_of(choices))),
        }
        if chosen[..index].contains(value) {
            return Err("must name each choice once".to_owned());
        }
    }
    Ok(())
}

fn one_of(choices: &[Choice]) -> String {
    let shown: Vec<String> = choices
        .iter()
        .take(12)
        .map(|choice| short(&choice.value))
        .collect();
    let more = if choices.len() > shown.len() {
        ", …"
    } else {
        ""
    };
    format!("must be one of {}{more}", shown.join(", "))
}

fn check_number(
    number: &Number,
    is_integer: bool,
    minimum: Option<&Number>,
    maximum: Option<&Number>,
) -> Result<(), String> {
    // JSON knows one kind of number: 3.0 is whole.
    let is_whole = number.is_i64()
        || number.is_u64()
        || number.as_f64().is_some_and(|value| value.fract() == 0.0);
    if is_integer && !is_whole {
        return Err(number_wanted(true));
    }
    if let Some(minimum) = minimum.filter(|bound| order(number, bound) == Ordering::Less) {
        return Err(format!("must be {minimum} or more"));
    }
    if let Some(maximum) = maximum.filter(|bound| order(number, bound) == Ordering::Greater) {
        return Err(format!("must be {maximum} or less"));
    }
    Ok(())
}

/// Whole numbers are compared exactly, others as floating point.
fn order(a: &Number, b: &Number) -> Ordering {
    if let (Some(a), Some(b)) = (a.as_i128(), b.as_i128()) {
        return a.cmp(&b);
    }
    let (a, b) = (a.as_f64(), b.as_f64());
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

fn within(bounds: Bounds, count: usize, what: &str) -> Result<(), String> {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    if let Some(least) = bounds.least.filter(|least| count < *least) {
        return Err(format!("must have {least} {what} or more"));
    }
    if let Some(most) = bounds.most.filter(|most| count > *most) {
        return Err(format!("must have {most} {what} or fewer"));
    }
    Ok(())
}

pub(super) fn read(field: &Field, typed: &str) -> Result<Value, String> {
    let trimmed = typed.trim();
    let value = match &field.kind {
        FieldKind::Text { .. } => Value::String(typed.to_owned()),
        FieldKind::Choice(choices) => Value::String(chosen(choices, trimmed)),
        FieldKind::Choices { choices, .. } => {
            let parts = trimmed.split(',').map(str::trim);
            let parts = parts.filter(|part| !part.is_empty());
            parts
                .map(|part| Value::String(chosen(choices, part)))
                .collect()
        }
        FieldKind::Number { is_integer, .. } => serde_json::from_str::<Number>(trimmed)
            .map(Value::Number)
            .map_err(|_no_number| number_wanted(*is_integer))?,
        FieldKind::Boolean => match trimmed.to_lowercase().as_str() {
            "true" | "yes" | "y" => Value::Bool(true),
            "false" | "no" | "n" => Value::Bool(false),
            _ => return Err("must be yes or no".to_owned()),
        },
    };
    field.check(&value)?;
    Ok(value)
}

/// A choice by its value, its title, or its place in the list, in this order.
fn chosen(choices: &[Choice], typed: &str) -> String {
    let by_value = choices.iter().find(|choice| choice.value == typed);
    let by_title = || {
        let mut titled = choices.iter();
        titled.find(|choice| choice.title.as_deref() == Some(typed))
    };
    let by_place = || {
        let place: usize = typed.parse().ok()?;
        choices.get(place.checked_sub(1)?)
    };
    let found = by_value.or_else(by_title).or_else(by_place);
    found.map_or_else(|| typed.to_owned(), |choice| choice.value.clone())
}
