//! Single runs.

use tapedeck_domain::RunId;
use tapedeck_protocol::run::{CancelResponse, RunResponse};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

impl Client {
    /// One run.
    pub async fn run(&self, id: RunId) -> Result<RunResponse> {
        self.call(Call::get(&["runs", &id.to_string()])).await
    }

    /// Cancels one run.
    pub async fn cancel_run(&self, id: RunId) -> Result<CancelResponse> {
        self.call(Call::post(&["runs", &id.to_string(), "cancel"]).harmless())
            .await
    }
}
