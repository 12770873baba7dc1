//! Forms on the command line: field by field at a terminal, or all at once from arguments. It only
//! reads and shows; whether an answer fits is for `domain` to say.

use serde_json::{Map, Value};
use tapedeck_domain::form::{Choice, Field, FieldKind, Form};

use crate::exit::Failed;
use crate::output::{one_line, printable};

/// What a person types to leave a form blank.
const DECLINE: &str = "/decline";

/// A form that is being filled in at a terminal.
#[derive(Debug)]
pub(crate) struct Filling {
    form: Form,
    next: usize,
    response: Map<String, Value>,
}

/// What a line from the terminal has done.
#[derive(Debug, PartialEq)]
pub(crate) enum Filled {
    /// There is more to ask, perhaps the same once more.
    More {
        /// What was wrong with the line.
        fault: Option<String>,
    },
    /// The whole form.
    Whole(Value),
    /// The person leaves it blank.
    Declined,
}

impl Filling {
    /// Begins with the first field.
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            next: 0,
            response: Map::new(),
        }
    }

    /// What to ask next.
    pub(crate) fn prompt(&self) -> String {
        match self.form.fields.get(self.next) {
            Some(field) => {
                let hint = if self.next == 0 {
                    format!("  ({DECLINE} leaves the form blank)\n")
                } else {
                    String::new()
                };
                format!("{hint}  {}: ", described(field))
            }
            None => format!("  Enter sends it, {DECLINE} leaves it blank: "),
        }
    }

    /// Takes a line.
    pub(crate) fn take(&mut self, line: &str) -> Filled {
        if line.trim() == DECLINE {
            return Filled::Declined;
        }
        let Some(field) = self.form.fields.get(self.next) else {
            return self.whole();
        };
        let value = match (line.trim(), &field.default) {
            ("", Some(default)) => Ok(Some(default.clone())),
            ("", None) if field.is_required => Err("must be given".to_owned()),
            ("", None) => Ok(None),
            _ => field.read(line).map(Some),
        };
        match value {
            Ok(value) => {
                if let Some(value) = value {
                    self.response.insert(field.name.clone(), value);
                }
                self.next += 1;
                if self.next < self.form.fields.len() {
                    Filled::More { fault: None }
                } else {
                    self.whole()
                }
            }
            Err(fault) => {
                let fault = Some(format!("{} {fault}", printable(field.label())));
                Filled::More { fault }
            }
        }
    }

    fn whole(&mut self) -> Filled {
        Filled::Whole(Value::Object(std::mem::take(&mut self.response)))
    }
}

/// A field in a line: what it is called, what it takes, and what is suggested.
pub(crate) fn described(field: &Field) -> String {
    let mut parts = vec![one_line(field.label())];
    if let Some(description) = &field.description {
        parts.push(format!("({})", one_line(description)));
    }
    let takes = match &field.kind {
        FieldKind::Text { .. } => None,
        FieldKind::Choice(choices) => Some(listed(choices)),
        FieldKind::Choices { choices, .. } => {
            Some(format!("any of {}, with commas between", listed(choices)))
        }
        FieldKind::Number {
            is_integer: true, ..
        } => Some("a whole number".to_owned()),
        FieldKind::Number { .. } => Some("a number".to_owned()),
        FieldKind::Boolean => Some("yes or no".to_owned()),
    };
    if let Some(takes) = takes {
        parts.push(format!("– {takes}"));
    }
    if let Some(default) = &field.default {
        let shown = match default {
            Value::String(text) => one_line(text),
            other => other.to_string(),
        };
        parts.push(format!("[{shown}]"));
    } else if !field.is_required {
        parts.push("[none]".to_owned());
    }
    printable(&parts.join(" "))
}

fn listed(choices: &[Choice]) -> String {
    let shown: Vec<_> = choices
        .iter()
        .enumerate()
        .map(|(place, choice)| {
            let title = choice.title.as_deref().unwrap_or(&choice.value);
            format!("{}) {}", place + 1, one_line(title))
        })
        .collect();
    shown.join("  ")
}

/// The form of a question's request.
pub(crate) fn form_of(request: &Value) -> anyhow::Result<Form> {
    let form = request.get("form").unwrap_or(&Value::Null);
    let read = Form::of_schema(form);
    read.map_err(|faults| {
        let fault = faults.first();
        let (path, why) =
            fault.map_or(("form", "is none"), |fault| (&*fault.path, &*fault.message));
        anyhow::anyhow!("the question has no form that can be filled in: `{path}` {why}")
    })
}

/// Fills a form in from `NAME=VALUE` arguments.
pub(crate) fn fill(form: &Form, given: &[String]) -> anyhow::Result<Value> {
    let mut response = Map::new();
    for argument in given {
        let (name, typed) = argument
            .split_once('=')
            .ok_or_else(|| Failed::usage(format!("`{argument}` is no NAME=VALUE")))?;
        let Some(field) = form.field(name) else {
            let known: Vec<_> = form.fields.iter().map(|field| &*field.name).collect();
            return Err(Failed::usage(format!(
                "`{name}` is no field of the form; it has {}",
                known.join(", ")
            )));
        };
        let value = field.read(typed);
        let value = value.map_err(|fault| Failed::usage(format!("`{name}` {fault}")))?;
        if response.insert(name.to_owned(), value).is_some() {
            return Err(Failed::usage(format!("`{name}` is given twice")));
        }
    }
    Ok(Value::Object(response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn form() -> Form {
        let schema = json!({
            "type": "object",
            "properties": {
                "a_kind": {"type": "string", "title": "Kind", "oneOf": [{"const": "minor", "title": "Minor"}, {"const": "major"}]},
                "b_count": {"type": "integer", "default": 2},
                "c_notes": {"type": "string", "description": "for the log"},
            },
            "required": ["a_kind"],
        });
        Form::of_schema(&schema).unwrap()
    }

    #[test]
    fn a_form_is_filled_in_field_by_field() {
        let mut filling = Filling::new(form());
        assert!(filling.prompt().contains("Kind – 1) Minor  2) major"));
        let Filled::More { fault: Some(fault) } = filling.take("") else {
            panic!("a required field was skipped")
        };
        assert_eq!(fault, "Kind must be given");
        assert!(matches!(
            filling.take("other"),
            Filled::More { fault: Some(_) }
        ));
        assert_eq!(filling.take("2"), Filled::More { fault: None });
        assert!(filling.prompt().contains("b_count – a whole number [2]"));
        assert_eq!(filling.take(""), Filled::More { fault: None });
        assert!(filling.prompt().contains("c_notes (for the log) [none]"));
        let whole = json!({"a_kind": "major", "b_count": 2});
        assert_eq!(filling.take(""), Filled::Whole(whole));
    }

    #[test]
    fn a_form_can_be_left_blank_at_any_field() {
        let mut filling = Filling::new(form());
        filling.take("major");
        assert_eq!(filling.take(" /decline "), Filled::Declined);
        let mut empty = Filling::new(Form::default());
        assert_eq!(empty.take(""), Filled::Whole(json!({})));
    }

    #[test]
    fn arguments_fill_a_form_in_or_say_what_is_wrong() {
        let given = |given: &[&str]| {
            let given: Vec<_> = given.iter().map(|text| (*text).to_owned()).collect();
            fill(&form(), &given).map_err(|error| error.to_string())
        };
        let filled = given(&["a_kind=major", "c_notes=x=y"]);
        assert_eq!(filled, Ok(json!({"a_kind": "major", "c_notes": "x=y"})));
        for (wrong, says) in [
            ("a_kind", "NAME=VALUE"),
            ("kind=major", "a_kind, b_count, c_notes"),
            ("b_count=two", "whole number"),
        ] {
            assert!(given(&[wrong]).unwrap_err().contains(says), "{wrong}");
        }
        assert!(given(&["b_count=1", "b_count=2"]).is_err());
    }
}
