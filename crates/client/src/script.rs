//! A scripted server for tests: each request gets the next answer of a list, and is kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tapedeck_protocol::{ErrorCode, Problem};

use crate::connect::{BoxError, Client, RequestBody, ResponseBody};

/// How an answer's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// As it should.
    Close,
    /// With a broken connection.
    Break,
    /// Never: nothing more comes.
    Stall,
}

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// An answer with these chunks of body.
    Body(u16, Vec<Bytes>, Tail),
    /// The connection breaks before any answer, after the request was sent.
    Lost,
    /// No answer ever comes.
    Silence,
}

impl Answer {
    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Self {
        Self::Body(status, vec![Bytes::from(body.to_string())], Tail::Close)
    }

    pub(crate) fn problem(problem: &Problem) -> Self {
        Self::json(problem.status, &serde_json::to_value(problem).unwrap())
    }

    pub(crate) fn refused(code: ErrorCode) -> Self {
        Self::problem(&Problem::new(code, "no"))
    }
}

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// All requests so far.
pub(crate) type Log = Arc<Mutex<Vec<Seen>>>;

/// A client of a server that answers with `answer(request)`.
pub(crate) fn client(answer: impl FnMut(&Seen) -> Answer + Send + 'static) -> (Client, Log) {
    let log = Log::default();
    let answer = Arc::new(Mutex::new(answer));
    let seen_by_service = Arc::clone(&log);
    let service = tower::service_fn(move |request: Request<RequestBody>| {
        let answer = Arc::clone(&answer);
        let log = Arc::clone(&seen_by_service);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let seen = Seen {
                method: head.method,
                uri: head.uri,
                headers: head.headers,
                body,
            };
            log.lock().unwrap().push(seen.clone());
            let next = (answer.lock().unwrap())(&seen);
            respond(next).await
        }
    });
    (Client::in_process(service, None).unwrap(), log)
}

/// A client of a server that answers with these, one by one.
pub(crate) fn scripted(answers: impl IntoIterator<Item = Answer>) -> (Client, Log) {
    let mut answers: VecDeque<Answer> = answers.into_iter().collect();
    client(move |seen| {
        answers
            .pop_front()
            .unwrap_or_else(|| panic!("no answer is left for {seen:?}"))
    })
}

async fn respond(answer: Answer) -> Result<Response<ResponseBody>, BoxError> {
    let (status, chunks, tail) = match answer {
        Answer::Lost => return Err("the connection broke".into()),
        Answer::Silence => {
            std::future::pending::<Infallible>().await;
            unreachable!("silence has no end")
        }
        Answer::Body(status, chunks, tail) => (status, chunks, tail),
    };
    let frames = futures::stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk)));
    let end = match tail {
        Tail::Close => futures::stream::empty().boxed(),
        Tail::Break => futures::stream::once(async { Err(BoxError::from("cut")) }).boxed(),
        Tail::Stall => futures::stream::pending().boxed(),
    };
    let body = StreamBody::new(frames.chain(end)).boxed_unsync();
    let response = Response::builder().status(status);
    Ok(response
        .header("content-type", "text/event-stream")
        .body(body)?)
}
