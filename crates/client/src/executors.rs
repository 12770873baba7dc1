//! Executors as operators see them, and what operators tell them.

use tapedeck_protocol::executor::{ExecutorList, ExecutorResponse, ExecutorsQuery};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

impl Client {
    /// One page of the executors.
    pub async fn executors(&self, query: &ExecutorsQuery) -> Result<ExecutorList> {
        let call = Call::get(&["executors"])
            .query("limit", query.limit.as_ref())
            .query("cursor", query.cursor.as_ref())
            .query("pool", query.pool.as_ref())
            .query("status", query.status.as_ref());
        self.call(call).await
    }

    /// One executor.
    pub async fn executor(&self, executor_id: &str) -> Result<ExecutorResponse> {
        self.call(Call::get(&["executors", executor_id])).await
    }

    /// Tells an executor to take no new work.
    pub async fn drain_executor(&self, executor_id: &str) -> Result<ExecutorResponse> {
        self.call(Call::post(&["executors", executor_id, "drain"]).harmless())
            .await
    }

    /// Lets an executor take new work again.
    pub async fn undrain_executor(&self, executor_id: &str) -> Result<ExecutorResponse> {
        self.call(Call::post(&["executors", executor_id, "undrain"]).harmless())
            .await
    }

    /// Removes an executor that is offline from the list.
    pub async fn forget_executor(&self, executor_id: &str) -> Result<()> {
        let call = Call::new(http::Method::DELETE, &["executors", executor_id]);
        self.send(call).await.map(drop)
    }
}
