//! What a server says of itself.

use tapedeck_protocol::operations::{CapabilitiesResponse, HealthResponse, ReadyResponse};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

impl Client {
    /// Version, limits, policies, storage.
    pub async fn capabilities(&self) -> Result<CapabilitiesResponse> {
        self.call(Call::get(&["capabilities"])).await
    }

    /// Whether the process runs.
    pub async fn health(&self) -> Result<HealthResponse> {
        self.call(Call::get(&["healthz"])).await
    }

    /// Whether the server takes requests.
    pub async fn ready(&self) -> Result<ReadyResponse> {
        self.call(Call::get(&["readyz"])).await
    }
}
