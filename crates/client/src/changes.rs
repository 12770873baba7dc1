//! What runs changed in their workspaces.

use bytes::Bytes;
use tapedeck_domain::SessionId;
use tapedeck_protocol::changes::{ChangesQuery, ChangesResponse};

use crate::Result;
use crate::call::Call;
use crate::connect::Client;

fn of_session(id: SessionId, what: &str, query: &ChangesQuery) -> Call {
    Call::get(&["sessions", &id.to_string(), what])
        .query("run_id", query.run_id.as_ref())
        .query("scope", query.scope.as_ref())
}

impl Client {
    /// The files that a run changed, or all runs of the session together.
    pub async fn diff(&self, id: SessionId, query: &ChangesQuery) -> Result<ChangesResponse> {
        self.call(of_session(id, "diff", query)).await
    }

    /// The patch of what a run changed; it holds whatever bytes the files hold.
    pub async fn patch(&self, id: SessionId, query: &ChangesQuery) -> Result<Bytes> {
        let call = of_session(id, "patch", query).accept("*/*");
        let (_, patch) = self.send(call).await?;
        Ok(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Answer, Tail, scripted};

    #[tokio::test]
    async fn a_patch_is_taken_whole_or_not_at_all() {
        let session = "01890000-0000-7000-8000-000000000001".parse().unwrap();
        let query = ChangesQuery {
            run_id: None,
            scope: Some("session".to_owned()),
        };
        let pieces = || vec![Bytes::from_static(b"diff "), Bytes::from_static(b"\xff\n")];
        let (client, log) = scripted([
            Answer::Body(200, pieces(), Tail::Break),
            Answer::Body(200, pieces(), Tail::Close),
        ]);
        let patch = client.patch(session, &query).await.unwrap();
        assert_eq!(&patch[..], b"diff \xff\n");
        let uri = log.lock().unwrap()[0].uri.clone();
        let expected = "/sessions/01890000-0000-7000-8000-000000000001/patch";
        assert_eq!((uri.path(), uri.query()), (expected, Some("scope=session")));
        // The one that broke was asked for again.
        assert_eq!(log.lock().unwrap().len(), 2);
    }
}
