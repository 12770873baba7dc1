//! The tape, and the transcript that is made from it. A transcript is read piece by piece, since it
//! may be longer than fits into memory.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tapedeck_domain::SessionId;
use tapedeck_domain::transcript::TranscriptFormat;
use tapedeck_protocol::tape::TapePage;
use tapedeck_protocol::views::TapeQuery;
use tokio::time::timeout;

use crate::Result;
use crate::call::{Call, broken};
use crate::connect::{Client, ResponseBody};
use crate::error::Error;

/// A transcript that is being read.
#[derive(Debug)]
pub struct Transcript {
    body: ResponseBody,
    /// How long one piece may take.
    deadline: Duration,
}

impl Transcript {
    /// The next piece; `None` at the end. After an error what came before is not the whole.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        loop {
            let Ok(frame) = timeout(self.deadline, self.body.frame()).await else {
                return Some(Err(Error::Timeout(self.deadline)));
            };
            match frame? {
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
        let deadline = self.target.options.deadline;
        Ok(Transcript { body, deadline })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Answer, Tail, scripted};
    use tapedeck_protocol::ErrorCode;

    fn session() -> SessionId {
        "01890000-0000-7000-8000-000000000001".parse().unwrap()
    }

    /// The pieces of a transcript, and the error that ended it.
    async fn read(tail: Tail) -> (String, Option<Error>) {
        let pieces = vec![Bytes::from_static(b"# A"), Bytes::from_static(b"\n")];
        let (client, log) = scripted([Answer::Body(200, pieces, tail)]);
        let format = TranscriptFormat::Markdown;
        let mut transcript = client.transcript(session(), format).await.unwrap();
        let path = "/sessions/01890000-0000-7000-8000-000000000001/transcript";
        let uri = log.lock().unwrap()[0].uri.clone();
        assert_eq!((uri.path(), uri.query()), (path, Some("format=md")));
        let mut text = String::new();
        while let Some(piece) = transcript.next().await {
            match piece {
                Ok(piece) => text.push_str(std::str::from_utf8(&piece).unwrap()),
                Err(error) => return (text, Some(error)),
            }
        }
        (text, None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_transcript_that_breaks_off_is_never_taken_for_the_whole() {
        assert!(matches!(read(Tail::Close).await, (text, None) if text == "# A\n"));
        let (_, broken) = read(Tail::Break).await;
        assert!(
            matches!(broken, Some(Error::Transport { .. })),
            "{broken:?}"
        );
        let (_, stalled) = read(Tail::Stall).await;
        assert!(matches!(stalled, Some(Error::Timeout(_))), "{stalled:?}");
    }

    #[tokio::test]
    async fn a_refused_transcript_is_an_error_at_once() {
        let (client, _) = scripted([Answer::refused(ErrorCode::SessionNotFound)]);
        let refused = client.transcript(session(), TranscriptFormat::Json).await;
        assert_eq!(
            refused.unwrap_err().code(),
            Some(ErrorCode::SessionNotFound)
        );
    }

    #[tokio::test]
    async fn a_part_of_a_tape_is_asked_for() {
        let page = serde_json::json!({"entries": [], "next_cursor": null});
        let (client, log) = scripted([Answer::json(200, &page)]);
        let query = TapeQuery {
            after: Some("7".to_owned()),
            limit: None,
            include_superseded: true,
        };
        assert_eq!(
            client.tape(session(), &query).await.unwrap().next_cursor,
            None
        );
        let query = log.lock().unwrap()[0].uri.query().map(str::to_owned);
        assert_eq!(query.as_deref(), Some("after=7&include_superseded=true"));
    }
}
