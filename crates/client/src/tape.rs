//! The tape, and the transcript that is made from it. A transcript is read piece by piece, since it
//! may be longer than fits into memory.

use bytes::Bytes;
use http_body_util::BodyExt;
use tapedeck_domain::SessionId;
use tapedeck_domain::transcript::TranscriptFormat;
use tapedeck_protocol::tape::TapePage;
use tapedeck_protocol::views::TapeQuery;

use crate::Result;
use crate::call::{Call, broken};
use crate::connect::{Client, ResponseBody};

/// A transcript that is being read.
#[derive(Debug)]
pub struct Transcript {
    body: ResponseBody,
}

impl Transcript {
    /// The next piece; `None` at the end. After an error what came before is not the whole.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Some(Ok(bytes));
                    }
                }
                Err(source) => return Some(Err(broken(source))),
            }
        }
    }
}

impl Client {
    /// One page of a session's tape.
    pub async fn tape(&self, id: SessionId, query: &TapeQuery) -> Result<TapePage> {
        let call = Call::get(&["sessions", &id.to_string(), "tape"])
            .query("after", query.after.as_ref())
            .query("limit", query.limit.as_ref())
            .query(
                "include_superseded",
                query.include_superseded.then_some(true),
            );
        self.call(call).await
    }

    /// A session's transcript from its beginning.
    pub async fn transcript(&self, id: SessionId, format: TranscriptFormat) -> Result<Transcript> {
        let call = Call::get(&["sessions", &id.to_string(), "transcript"])
            .query("format", Some(format))
            .accept("*/*");
        let body = self.open(call).await?.into_body();
        Ok(Transcript { body })
    }
}
