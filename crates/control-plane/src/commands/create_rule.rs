//! Makes an approval rule by hand. One for a session is a write of that session; one for a whole
//! namespace belongs to no session, and so has no owner to be proved.

use async_trait::async_trait;
use serde_json::{Value, json};
use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::rule::{Admission, ApprovalRule, Maker, RuleTerms, admit, made};
use tapedeck_domain::{Rejection, RuleId, SessionId, SessionKey};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Makes a rule.
#[derive(Debug)]
pub struct CreateRule {
    /// The namespace.
    pub namespace: String,
    /// The session it is for; `None` is the whole namespace.
    pub session_id: Option<SessionId>,
    /// The id, should the rule be new.
    pub rule_id: RuleId,
    /// What it covers and says.
    pub terms: RuleTerms,
    /// Who makes it.
    pub by: String,
    /// The client's key.
    pub key: Option<IdempotencyKey>,
}

#[async_trait]
impl Command for CreateRule {
    type Output = RuleId;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        self.session_id
    }

    fn idempotency(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    fn stored(&self, output: &RuleId) -> Value {
        json!({"rule_id": output})
    }

    fn restored(&self, stored: &Value) -> Option<RuleId> {
        stored["rule_id"].as_str()?.parse().ok()
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<RuleId, Failure> {
        self.terms.check().map_err(Rejection::Invalid)?;
        let maker = Maker {
            rule_id: self.rule_id,
            namespace: self.namespace.clone(),
            by: self.by.clone(),
            at: context.now.wall,
        };
        let rule = made(self.terms.clone(), self.session_id, None, maker);
        let locked = match self.session_id {
            Some(id) => Some(context.own_session(&self.namespace, id).await?),
            None => None,
        };
        let key = locked.as_ref().map(|locked| locked.head.session_key);
        let rule_id = stand(context, rule, key).await?;
        if let Some(locked) = &locked {
            context.save(locked).await?;
        }
        Ok(rule_id)
    }
}

/// Has a rule stand from now on, unless the same does already; gives the one that stands. `session` is
/// the session that it is for.
pub(crate) async fn stand(
    context: &mut Context<'_>,
    rule: ApprovalRule,
    session: Option<SessionKey>,
) -> Result<RuleId, Failure> {
    let standing = match session {
        Some(key) => context.tx.session_rules(key).await?,
        None => context.tx.namespace_rules(&rule.namespace).await?,
    };
    match admit(&standing, rule)? {
        Admission::Known(rule) => Ok(rule.rule_id),
        Admission::New(rule) => {
            context.tx.insert_rule(session, &rule).await?;
            Ok(rule.rule_id)
        }
    }
}
