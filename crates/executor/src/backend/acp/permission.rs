//! The agent's questions for permission. It owns how an answer becomes one of the options offered,
//! which must never be the opposite of the answer.

use serde_json::{Value, json};

use crate::backend::{Answer, QuestionOption, Scope, naming};
use crate::process::Redactor;

/// Options that a person is shown.
const SHOWN: usize = 16;

/// An option that the agent offers.
pub(super) fn option(value: &Value) -> Option<QuestionOption> {
    let option_id = value["optionId"].as_str()?.to_owned();
    let name = value["name"].as_str().unwrap_or(&option_id).to_owned();
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    Some(QuestionOption {
        option_id,
        name,
        kind,
    })
}

/// The options as a person is shown them: the agent alone needs them as they are.
pub(super) fn shown(options: &[QuestionOption], redactor: &Redactor) -> Vec<QuestionOption> {
    let short = |text: &str| naming::short(text, redactor);
    let options = options.iter().take(SHOWN);
    options
        .map(|option| QuestionOption {
            option_id: short(&option.option_id),
            name: short(&option.name),
            kind: short(&option.kind),
        })
        .collect()
}

/// Whether an agent that is told yes can be told so.
pub(super) fn may_be_approved(options: &[QuestionOption]) -> bool {
    let yes = Answer::Approved { scope: Scope::Once };
    outcome(&yes, options)["outcome"]["outcome"] == "selected"
}

/// Option ids are free text and two options may share a kind, so the first of the best kind is
/// taken. An answer for a session is kept by the server: the agent might remember its own "always"
/// for longer.
pub(super) fn outcome(answer: &Answer, options: &[QuestionOption]) -> Value {
    let kinds = match answer {
        Answer::Approved {
            scope: Scope::Always,
        } => ["allow_always", "allow_once"],
        Answer::Approved {
            scope: Scope::Once | Scope::Session,
        } => ["allow_once", "allow_always"],
        Answer::Denied {
            scope: Scope::Always,
            ..
        } => ["reject_always", "reject_once"],
        Answer::Denied { .. } | Answer::Unasked(_) => ["reject_once", "reject_always"],
        Answer::Cancelled => return cancelled(),
    };
    let chosen = kinds
        .iter()
        .find_map(|kind| options.iter().find(|option| option.kind == *kind));
    match chosen {
        Some(option) => {
            json!({"outcome": {"outcome": "selected", "optionId": option.option_id}})
        }
        None => cancelled(),
    }
}

/// Nobody answers.
pub(super) fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(answer: &Answer, kinds: &[&str]) -> String {
        let options: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(position, kind)| QuestionOption {
                option_id: format!("{kind}/{position}"),
                name: String::new(),
                kind: (*kind).to_owned(),
            })
            .collect();
        let outcome = outcome(answer, &options);
        outcome["outcome"]["optionId"]
            .as_str()
            .unwrap_or("cancelled")
            .to_owned()
    }

    #[test]
    fn an_answer_picks_the_first_option_of_its_kind() {
        let all = [
            "allow_always",
            "allow_once",
            "allow_once",
            "reject_always",
            "reject_once",
        ];
        let approved = |scope| Answer::Approved { scope };
        let denied = |scope| Answer::Denied {
            scope,
            feedback: None,
        };
        assert_eq!(chosen(&approved(Scope::Once), &all), "allow_once/1");
        assert_eq!(chosen(&approved(Scope::Session), &all), "allow_once/1");
        assert_eq!(chosen(&approved(Scope::Always), &all), "allow_always/0");
        assert_eq!(chosen(&denied(Scope::Once), &all), "reject_once/4");
        assert_eq!(chosen(&denied(Scope::Session), &all), "reject_once/4");
        assert_eq!(chosen(&denied(Scope::Always), &all), "reject_always/3");
        assert_eq!(chosen(&Answer::Cancelled, &all), "cancelled");
    }

    #[test]
    fn a_missing_kind_falls_back_but_never_to_the_opposite() {
        let denied = Answer::Denied {
            scope: Scope::Once,
            feedback: None,
        };
        assert_eq!(
            chosen(&denied, &["allow_once", "reject_always"]),
            "reject_always/1"
        );
        assert_eq!(chosen(&denied, &["allow_once"]), "cancelled");
        let approved = Answer::Approved { scope: Scope::Once };
        assert_eq!(
            chosen(&approved, &["reject_once", "allow_always"]),
            "allow_always/1"
        );
        assert_eq!(chosen(&approved, &["reject_once"]), "cancelled");
        let option = |kind: &str| option(&json!({"optionId": "o", "kind": kind})).unwrap();
        assert!(may_be_approved(&[
            option("reject_once"),
            option("allow_always")
        ]));
        assert!(!may_be_approved(&[option("reject_once"), option("maybe")]));
        assert!(!may_be_approved(&[]));
    }
}
