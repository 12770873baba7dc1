//! Approval rules.

use async_trait::async_trait;
use tapedeck_domain::id::{RuleId, SessionKey};
use tapedeck_domain::rule::ApprovalRule;
use tapedeck_domain::time::Timestamp;

use super::Rows;

/// Rows of `approval_rules`.
#[async_trait]
pub trait RuleRows {
    /// One rule of a namespace, revoked or not.
    async fn rule(&mut self, namespace: &str, id: RuleId) -> Rows<Option<ApprovalRule>>;
    /// The rules of one session that stand.
    async fn session_rules(&mut self, session: SessionKey) -> Rows<Vec<ApprovalRule>>;
    /// The rules of a whole namespace that stand.
    async fn namespace_rules(&mut self, namespace: &str) -> Rows<Vec<ApprovalRule>>;
    /// Inserts a rule; with the key of its session, if it has one.
    async fn insert_rule(&mut self, session: Option<SessionKey>, rule: &ApprovalRule) -> Rows<()>;
    /// Marks a rule as revoked.
    async fn revoke_rule(&mut self, id: RuleId, by: &str, at: Timestamp) -> Rows<()>;
}
