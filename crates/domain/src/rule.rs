//! Approval rules: standing answers to tools that want to run. A rule names a tool and what its
//! arguments must look like; it is made by hand, or by an answer that reaches beyond its question.
//! A rule that denies wins over every one that allows, and no rule says anything about forms.

mod glob;
mod pattern;

use serde_json::{Map, Value};

use crate::id::{InteractionId, RuleId, SessionId};
use crate::interaction::{Interaction, InteractionKind, Scope, ToolUse};
use crate::limits;
use crate::rejection::{FieldError, Rejection};
use crate::session::text_enum;
use crate::time::Timestamp;

pub use pattern::ArgumentPattern;

text_enum! {
    /// What a rule answers.
    Decision {
        /// The tool may run.
        Allow = "allow",
        /// It may not.
        Deny = "deny",
    }
}

/// What a rule covers and what it says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleTerms {
    /// The tool by its name, with `*` and `?`.
    pub tool_name: String,
    /// What its arguments must look like; `None` is any.
    pub arguments: Option<ArgumentPattern>,
    /// What it answers.
    pub decision: Decision,
}

/// A standing answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalRule {
    /// The identifier.
    pub rule_id: RuleId,
    /// The namespace.
    pub namespace: String,
    /// The session it is for; `None` is every session of the namespace.
    pub session_id: Option<SessionId>,
    /// What it covers and says.
    pub terms: RuleTerms,
    /// The interaction whose answer made it.
    pub interaction_id: Option<InteractionId>,
    /// Who made it; earlier versions kept no name.
    pub created_by: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked; from then on it answers nothing.
    pub revoked_at: Option<Timestamp>,
    /// Who revoked it.
    pub revoked_by: Option<String>,
}

impl RuleTerms {
    /// Checks what a person made up.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut faults = Vec::new();
        let chars = self.tool_name.chars().count();
        if self.tool_name.trim().is_empty() {
            faults.push(FieldError::new("tool_name", "must not be blank"));
        } else if chars > limits::NAME_CHARS {
            let text = format!("has {chars} characters; {} are allowed", limits::NAME_CHARS);
            faults.push(FieldError::new("tool_name", text));
        }
        if let Some(pattern) = &self.arguments {
            faults.extend(pattern.check());
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    /// Whether the rule covers this use of a tool.
    pub fn covers(&self, tool: &ToolUse) -> bool {
        // A tool's name is the agent's word, and holds no command.
        glob::matches(&self.tool_name, &tool.tool_name)
            && match &self.arguments {
                None => true,
                Some(pattern) => pattern.covers(&tool.arguments, self.decision),
            }
    }

    /// Whether the rule looks at arguments that can't be seen whole: too long a text, or one that
    /// its executor has cut. A rule that denies covers them, one that allows doesn't.
    pub fn looks_at_parts(&self, tool: &ToolUse) -> bool {
        let pattern = self.arguments.as_ref();
        pattern.is_some_and(|pattern| pattern.looks_at_parts(&tool.arguments))
    }
}

impl ApprovalRule {
    /// How far it reaches.
    pub const fn scope(&self) -> Scope {
        match self.session_id {
            Some(_) => Scope::Session,
            None => Scope::Always,
        }
    }

    /// What an interaction that it answers says of who answered.
    pub fn signature(&self) -> String {
        format!("rule:{}:{}", self.scope(), self.rule_id)
    }

    /// Whether the other rule says the same of the same.
    pub fn repeats(&self, other: &Self) -> bool {
        self.session_id == other.session_id && self.terms == other.terms
    }
}

/// The rule that answers for a use of a tool: one that denies before one that allows, the session's
/// own before the namespace's, the newest before older ones.
pub fn deciding<'a>(rules: &'a [ApprovalRule], tool: &ToolUse) -> Option<&'a ApprovalRule> {
    rules
        .iter()
        .filter(|rule| rule.revoked_at.is_none() && rule.terms.covers(tool))
        .max_by_key(|rule| {
            let denies = rule.terms.decision == Decision::Deny;
            (denies, rule.session_id.is_some(), rule.rule_id)
        })
}

/// Who makes a rule, and under which id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maker {
    /// The new rule's id.
    pub rule_id: RuleId,
    /// The namespace.
    pub namespace: String,
    /// Who makes it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// The narrowest sensible rule of an answer that reaches beyond its question: the same tool with
/// the same command, file or address, and where there is none, with the very same arguments.
pub fn of_answer(
    asked: &Interaction,
    approved: bool,
    scope: Scope,
    maker: Maker,
) -> Result<Option<ApprovalRule>, Rejection> {
    let session_id = match (asked.kind, scope) {
        (InteractionKind::Question, _) | (InteractionKind::Approval, Scope::Once) => {
            return Ok(None);
        }
        (InteractionKind::Approval, Scope::Session) => Some(asked.session_id),
        (InteractionKind::Approval, Scope::Always) => None,
    };
    let call = &asked.request["tool_call"];
    let tool_name = glob::literal(call["tool_name"].as_str().unwrap_or_default());
    let too_long = || {
        let text = "can only be `once`: what was asked is too long for a rule";
        Rejection::invalid("scope", text)
    };
    let terms = RuleTerms {
        tool_name,
        arguments: pattern::narrowest(&call["arguments"]).map_err(|_unseen| too_long())?,
        decision: if approved {
            Decision::Allow
        } else {
            Decision::Deny
        },
    };
    if let Err(_faults) = terms.check() {
        return Err(too_long());
    }
    Ok(Some(made(
        terms,
        session_id,
        Some(asked.interaction_id),
        maker,
    )))
}

/// A rule made by hand.
pub fn made(
    terms: RuleTerms,
    session_id: Option<SessionId>,
    interaction_id: Option<InteractionId>,
    maker: Maker,
) -> ApprovalRule {
    ApprovalRule {
        rule_id: maker.rule_id,
        namespace: maker.namespace,
        session_id,
        terms,
        interaction_id,
        created_by: Some(maker.by),
        created_at: maker.at,
        revoked_at: None,
        revoked_by: None,
    }
}

/// What becomes of a new rule among those that stand.
pub fn admit(standing: &[ApprovalRule], rule: ApprovalRule) -> Result<Admission, Rejection> {
    if let Some(known) = standing.iter().find(|known| known.repeats(&rule)) {
        return Ok(Admission::Known(known.clone()));
    }
    let alike = standing
        .iter()
        .filter(|known| known.session_id == rule.session_id);
    if alike.count() >= limits::STANDING_RULES as usize {
        return Err(Rejection::RuleLimit {
            limit: limits::STANDING_RULES,
        });
    }
    Ok(Admission::New(rule))
}

/// What becomes of a new rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The same stands already.
    Known(ApprovalRule),
    /// It has to be written.
    New(ApprovalRule),
}

fn fields(arguments: &Value) -> Option<&Map<String, Value>> {
    arguments.as_object().filter(|fields| !fields.is_empty())
}

#[cfg(test)]
mod tests;
