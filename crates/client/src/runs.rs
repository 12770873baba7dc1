//! Single runs.

use tapedeck_domain::RunId;
use tapedeck_protocol::interaction::InteractionList;
use tapedeck_protocol::run::{CancelResponse, RunList, RunResponse};
use tapedeck_protocol::views::{RunsQuery, SnapshotResponse};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;
use crate::sessions::Paging;

impl Call {
    pub(crate) fn runs(self, query: &RunsQuery) -> Self {
        self.query("limit", query.limit.as_ref())
            .query("cursor", query.cursor.as_ref())
            .query(
                "include_superseded",
                query.include_superseded.then_some(true),
            )
            .query("unservable", query.unservable.then_some(true))
    }
}

impl Client {
    /// One page of the runs of all sessions, newest first.
    pub async fn all_runs(&self, query: &RunsQuery) -> Result<RunList> {
        self.call(Call::get(&["runs"]).runs(query)).await
    }

    /// One run.
    pub async fn run(&self, id: RunId) -> Result<RunResponse> {
        self.call(Call::get(&["runs", &id.to_string()])).await
    }

    /// Cancels one run.
    pub async fn cancel_run(&self, id: RunId) -> Result<CancelResponse> {
        self.call(Call::post(&["runs", &id.to_string(), "cancel"]).harmless())
            .await
    }

    /// One page of the questions that a run asked, newest first.
    pub async fn run_interactions(&self, id: RunId, paging: &Paging) -> Result<InteractionList> {
        self.call(Call::get(&["runs", &id.to_string(), "interactions"]).page(paging))
            .await
    }

    /// The provider's messages as a run last reported them.
    pub async fn snapshot(&self, id: RunId) -> Result<SnapshotResponse> {
        self.call(Call::get(&["runs", &id.to_string(), "snapshot"]))
            .await
    }
}
