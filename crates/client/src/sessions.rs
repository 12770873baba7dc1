//! Sessions: create, change, prompt, resume, and the pages of their logs.

use http::Method;
use tapedeck_domain::SessionId;
use tapedeck_protocol::event::{EventPage, EventsQuery};
use tapedeck_protocol::interaction::{ApproveRequest, ApproveResponse};
use tapedeck_protocol::run::{
    AcceptedResponse, CancelResponse, PromptRequest, ResumeRequest, RunList,
};
use tapedeck_protocol::session::{
    CreateSessionRequest, SessionList, SessionResponse, UpdateSessionRequest,
};
use tapedeck_protocol::views::{RepairResponse, ResultResponse, RunsQuery};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

/// Which page of a list; the default is the first, of the server's own size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Paging {
    /// Items, at most.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Call {
    pub(crate) fn page(self, paging: &Paging) -> Self {
        self.query("limit", paging.limit)
            .query("cursor", paging.cursor.as_ref())
    }
}

impl Client {
    /// Creates a session. Made again by itself under one idempotency key.
    pub async fn create_session(&self, request: &CreateSessionRequest) -> Result<SessionResponse> {
        let call = Call::post(&["sessions"]).keyed(request.command_id.as_deref());
        self.call(call.json(request)?).await
    }

    /// One page of the sessions, newest first.
    pub async fn sessions(&self, paging: &Paging) -> Result<SessionList> {
        self.call(Call::get(&["sessions"]).page(paging)).await
    }

    /// One session.
    pub async fn session(&self, id: SessionId) -> Result<SessionResponse> {
        self.call(Call::get(&["sessions", &id.to_string()])).await
    }

    /// Changes a session.
    pub async fn update_session(
        &self,
        id: SessionId,
        request: &UpdateSessionRequest,
    ) -> Result<SessionResponse> {
        let call = Call::new(Method::PATCH, &["sessions", &id.to_string()]);
        self.call(call.harmless().json(request)?).await
    }

    /// Deletes a session; `force` cancels an active run first.
    pub async fn delete_session(&self, id: SessionId, force: bool) -> Result<()> {
        let call = Call::new(Method::DELETE, &["sessions", &id.to_string()]);
        self.send(call.query("force", force.then_some(true)))
            .await
            .map(drop)
    }

    /// Closes a session: no more runs, everything stays readable.
    pub async fn close_session(&self, id: SessionId) -> Result<SessionResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "close"]);
        self.call(call.harmless()).await
    }

    /// Admits a prompt. Made again by itself under one idempotency key; follow the session from
    /// just before the answer's `session_seq` to see all of the run.
    pub async fn prompt(&self, id: SessionId, request: &PromptRequest) -> Result<AcceptedResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "prompt"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// Admits a resume. Made again by itself under one idempotency key.
    pub async fn resume(&self, id: SessionId, request: &ResumeRequest) -> Result<AcceptedResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "resume"]);
        self.call(call.keyed(request.command_id.as_deref()).json(request)?)
            .await
    }

    /// Cancels the session's active run. Made again by itself only where the failed call can't have
    /// had an effect: a second one would cancel the run that waited behind the first.
    pub async fn cancel_session(&self, id: SessionId) -> Result<CancelResponse> {
        self.call(Call::post(&["sessions", &id.to_string(), "cancel"]))
            .await
    }

    /// Lets a queue go on that is held after an interrupted run.
    pub async fn continue_queue(&self, id: SessionId) -> Result<SessionResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "queue", "continue"]);
        self.call(call.harmless()).await
    }

    /// Answers a question by the executor's own id of it.
    pub async fn approve(
        &self,
        id: SessionId,
        request: &ApproveRequest,
    ) -> Result<ApproveResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "approve"]);
        self.call(call.harmless().json(request)?).await
    }

    /// One page of the session's log.
    pub async fn events(&self, id: SessionId, query: &EventsQuery) -> Result<EventPage> {
        let call = Call::get(&["sessions", &id.to_string(), "events"])
            .query("after", query.after.as_ref())
            .query("limit", query.limit.as_ref())
            .query("kinds", query.kinds.as_ref())
            .query("run_id", query.run_id.as_ref());
        self.call(call).await
    }

    /// One page of the session's runs, newest first.
    pub async fn runs(&self, id: SessionId, query: &RunsQuery) -> Result<RunList> {
        self.call(Call::get(&["sessions", &id.to_string(), "runs"]).runs(query))
            .await
    }

    /// What the newest settled run gave.
    pub async fn result(&self, id: SessionId) -> Result<ResultResponse> {
        self.call(Call::get(&["sessions", &id.to_string(), "result"]))
            .await
    }

    /// Derives the session's summary again from its rows. The same again changes nothing more.
    pub async fn repair_session(&self, id: SessionId) -> Result<RepairResponse> {
        let call = Call::post(&["sessions", &id.to_string(), "repair"]);
        self.call(call.harmless()).await
    }
}
