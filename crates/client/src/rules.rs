//! Approval rules.

use http::Method;
use tapedeck_domain::{RuleId, SessionId};
use tapedeck_protocol::rule::{CreateRuleRequest, RuleList, RuleResponse};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::sessions::Paging;

impl Client {
    /// One page of the rules, newest first; with `all` also those that were revoked.
    pub async fn rules(
        &self,
        session_id: Option<SessionId>,
        all: bool,
        paging: &Paging,
    ) -> Result<RuleList> {
        let call = Call::get(&["approval-rules"])
            .query("session_id", session_id)
            .query("include_revoked", all.then_some(true))
            .page(paging);
        self.call(call).await
    }

    /// One rule, revoked or not.
    pub async fn rule(&self, id: RuleId) -> Result<RuleResponse> {
        self.call(Call::get(&["approval-rules", &id.to_string()]))
            .await
    }

    /// Makes a rule. Made again by itself under one idempotency key.
    pub async fn create_rule(&self, request: &CreateRuleRequest) -> Result<RuleResponse> {
        let call = Call::post(&["approval-rules"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// Revokes a rule; once more changes nothing.
    pub async fn revoke_rule(&self, id: RuleId) -> Result<()> {
        let call = Call::new(Method::DELETE, &["approval-rules", &id.to_string()]);
        self.send(call.harmless()).await.map(drop)
    }
}
