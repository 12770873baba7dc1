//! The approval inbox.

use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::{InteractionId, SessionId};
use tapedeck_protocol::interaction::{InteractionList, InteractionResponse, ResolveRequest};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::sessions::Paging;

impl Client {
    /// One page of the questions, newest first.
    pub async fn interactions(
        &self,
        status: Option<InteractionStatus>,
        session_id: Option<SessionId>,
        paging: &Paging,
    ) -> Result<InteractionList> {
        let call = Call::get(&["interactions"])
            .query("status", status)
            .query("session_id", session_id)
            .page(paging);
        self.call(call).await
    }

    /// One question.
    pub async fn interaction(&self, id: InteractionId) -> Result<InteractionResponse> {
        self.call(Call::get(&["interactions", &id.to_string()]))
            .await
    }

    /// Answers a question. The same answer again is fine; another one is `already_resolved`.
    pub async fn resolve(
        &self,
        id: InteractionId,
        request: &ResolveRequest,
    ) -> Result<InteractionResponse> {
        let call = Call::post(&["interactions", &id.to_string(), "resolve"]);
        self.call(call.harmless().json(request)?).await
    }
}
