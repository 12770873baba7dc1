//! Approval rules as clients make, read and revoke them.

use tapedeck_domain::idempotency::IdempotencyKey;
use tapedeck_domain::rule::{ApprovalRule, RuleTerms};
use tapedeck_domain::{RuleId, SessionId};
use tapedeck_store::read::RuleFilter;
use tapedeck_store::{Page, PageRequest, Target};

use crate::ControlPlane;
use crate::commands::create_rule::CreateRule;
use crate::commands::revoke_rule::RevokeRule;
use crate::error::Outcome;

impl ControlPlane {
    /// Makes a rule, or finds the same one that stands already.
    pub async fn create_rule(
        &self,
        namespace: &str,
        session_id: Option<SessionId>,
        terms: RuleTerms,
        by: &str,
        key: Option<IdempotencyKey>,
    ) -> Outcome<ApprovalRule> {
        let command = CreateRule {
            namespace: namespace.to_owned(),
            session_id,
            rule_id: RuleId::new(self.new_id()),
            terms,
            by: by.to_owned(),
            key,
        };
        let id = self.inner.execute(command).await?;
        self.rule(namespace, id).await
    }

    /// Revokes a rule; once more changes nothing.
    pub async fn revoke_rule(&self, namespace: &str, id: RuleId, by: &str) -> Outcome<()> {
        let session_id = self.rule(namespace, id).await?.session_id;
        let command = RevokeRule {
            namespace: namespace.to_owned(),
            session_id,
            rule_id: id,
            by: by.to_owned(),
        };
        self.inner.execute(command).await
    }

    /// One rule, revoked or not.
    pub async fn rule(&self, namespace: &str, id: RuleId) -> Outcome<ApprovalRule> {
        let found = self.inner.store.reader().rule(namespace, id).await?;
        Self::found(found, Target::Rule)
    }

    /// A page of rules.
    pub async fn rules(
        &self,
        namespace: &str,
        filter: RuleFilter,
        page: PageRequest,
    ) -> Outcome<Page<ApprovalRule>> {
        let reader = self.inner.store.reader();
        Ok(reader.rules(namespace, filter, page).await?)
    }
}
