//! JSON-RPC over lines, as far as a client needs it. It owns request ids and the queue to the
//! agent's stdin; it must never answer what is no message, nor parse more than the envelope, so that
//! one odd field cannot end a turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::backend::lenient;

const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
pub(super) const NOT_FOUND: i64 = -32002;
pub(super) const REQUEST_CANCELLED: i64 = -32800;

/// Messages that wait for the agent to read.
const QUEUE: usize = 256;

/// A message from the agent.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    Response {
        id: u64,
        result: Result<Value, RpcError>,
    },
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// A request, if it has an id, or a notification that can't be read.
    Unread {
        id: Option<Value>,
    },
}

/// What has to be read of a message whose rest can't be, a number beyond all bounds for one.
#[derive(Deserialize)]
struct Envelope {
    id: Option<Value>,
    method: Option<String>,
}

impl Envelope {
    fn message(self) -> Option<Message> {
        match (self.id, self.method) {
            (id, Some(_)) => Some(Message::Unread { id }),
            (Some(id), None) => Some(Message::Response {
                id: id.as_u64()?,
                result: Err(RpcError {
                    code: PARSE_ERROR,
                    message: "the answer can't be read".to_owned(),
                    data: None,
                }),
            }),
            (None, None) => None,
        }
    }
}

impl Message {
    /// `None` if the line is no JSON-RPC message.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let Some(message) = lenient::parse(line) else {
            return serde_json::from_str::<Envelope>(line).ok()?.message();
        };
        let Value::Object(mut fields) = message else {
            return None;
        };
        let id = fields.remove("id").filter(|id| !id.is_null());
        let params = fields.remove("params").unwrap_or(Value::Null);
        match (fields.remove("method"), id) {
            (Some(Value::String(method)), Some(id)) => Some(Self::Request { id, method, params }),
            (Some(Value::String(method)), None) => Some(Self::Notification { method, params }),
            (Some(_), Some(id)) => Some(Self::Unread { id: Some(id) }),
            (Some(_) | None, None) => None,
            (None, Some(id)) => {
                let error = fields.remove("error").filter(|error| !error.is_null());
                let result = fields.remove("result");
                let result = match (error, result) {
                    (Some(error), _) => Err(RpcError::of(&error)),
                    (None, Some(result)) => Ok(result),
                    (None, None) => return None,
                };
                Some(Self::Response {
                    id: id.as_u64()?,
                    result,
                })
            }
        }
    }
}

/// An error that the agent answered with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl RpcError {
    fn of(error: &Value) -> Self {
        Self {
            code: error["code"].as_i64().unwrap_or_default(),
            message: error["message"]
                .as_str()
                .map_or_else(|| error.to_string(), str::to_owned),
            data: error.get("data").filter(|data| !data.is_null()).cloned(),
        }
    }
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum CallError {
    /// The agent answered with an error.
    Answered(RpcError),
    /// The connection ended first.
    Closed,
}

#[derive(Debug)]
struct Request {
    method: &'static str,
    answer: oneshot::Sender<Result<Value, RpcError>>,
}

/// The agent at the other end.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    queue: mpsc::Sender<Value>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    closed: bool,
    requests: HashMap<u64, Request>,
}

impl Peer {
    /// The peer and the queue for [`write`].
    pub(super) fn new() -> (Self, mpsc::Receiver<Value>) {
        let (queue, messages) = mpsc::channel(QUEUE);
        (
            Self {
                queue,
                waiting: Arc::default(),
            },
            messages,
        )
    }

    pub(super) async fn request(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<Value, CallError> {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.closed {
                return Err(CallError::Closed);
            }
            waiting.last += 1;
            let id = waiting.last;
            waiting.requests.insert(
                id,
                Request {
                    method,
                    answer: sender,
                },
            );
            id
        };
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        match answer.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(CallError::Answered(error)),
            Err(_) => Err(CallError::Closed),
        }
    }

    pub(super) async fn notify(&self, method: &str, params: impl Serialize) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }

    pub(super) async fn answer(&self, id: Value, result: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "result": result}))
            .await;
    }

    pub(super) async fn refuse(&self, id: Value, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        self.send(json!({"jsonrpc": "2.0", "id": id, "error": error}))
            .await;
    }

    /// Which of our requests still waits under this id.
    pub(super) fn method_of(&self, id: u64) -> Option<&'static str> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.requests.get(&id).map(|request| request.method)
    }

    /// Hands a response to its request; others are ignored.
    pub(super) fn resolve(&self, id: u64, result: Result<Value, RpcError>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(request) = waiting.requests.remove(&id) {
            // The request may have been given up.
            let _ = request.answer.send(result);
        }
    }

    /// Ends all requests, for no response will come any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        waiting.requests.clear();
    }

    async fn send(&self, message: Value) {
        // A writer that is gone means an agent that is gone, which the reader notices.
        drop(self.queue.send(message).await);
    }
}

/// Writes messages until `end`, then what is still queued, and closes the agent's stdin.
pub(super) async fn write(
    mut stdin: ChildStdin,
    mut messages: mpsc::Receiver<Value>,
    end: CancellationToken,
) {
    loop {
        let message = tokio::select! {
            biased;
            message = messages.recv() => message,
            () = end.cancelled() => None,
        };
        let Some(message) = message else { return };
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        let written = async {
            stdin.write_all(&line).await?;
            stdin.flush().await
        };
        tokio::select! {
            biased;
            written = written => if written.is_err() {
                // The reader notices the agent's end; the queue must not fill up until then.
                messages.close();
                while messages.recv().await.is_some() {}
                return;
            },
            () = end.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_by_id_and_method() {
        let request = Message::parse(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#);
        let expected = Message::Request {
            id: json!("a"),
            method: "m".to_owned(),
            params: json!({"x": 1}),
        };
        assert_eq!(request, Some(expected));
        let note = Message::parse(r#"{"jsonrpc":"2.0","method":"_own/x"}"#);
        let expected = Message::Notification {
            method: "_own/x".to_owned(),
            params: Value::Null,
        };
        assert_eq!(note, Some(expected));
        let answer = Message::parse(r#"{"jsonrpc":"2.0","id":3,"result":null}"#);
        assert_eq!(
            answer,
            Some(Message::Response {
                id: 3,
                result: Ok(Value::Null)
            })
        );
        let failed =
            Message::parse(r#"{"id":4,"error":{"code":400,"message":"no","data":{"a":1}}}"#);
        let error = RpcError {
            code: 400,
            message: "no".to_owned(),
            data: Some(json!({"a": 1})),
        };
        assert_eq!(
            failed,
            Some(Message::Response {
                id: 4,
                result: Err(error)
            })
        );
    }

    #[test]
    fn what_can_t_be_read_is_known_by_its_id() {
        let unread = |id: Option<Value>| Some(Message::Unread { id });
        for (line, expected) in [
            (
                r#"{"id":"a","method":"m","params":{"n":1e999}}"#,
                unread(Some(json!("a"))),
            ),
            (r#"{"method":"m","params":{"n":1e999}}"#, unread(None)),
            (r#"{"id":5,"method":7}"#, unread(Some(json!(5)))),
        ] {
            assert_eq!(Message::parse(line), expected, "{line}");
        }
        let answer = Message::parse(r#"{"id":5,"result":{"n":1e999}}"#);
        assert!(matches!(
            answer,
            Some(Message::Response {
                id: 5,
                result: Err(_)
            })
        ));
    }

    #[test]
    fn however_deep_a_message_is_it_is_read() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let line = format!(r#"{{"id":1,"method":"m","params":{{"a":{deep},"b":2}}}}"#);
        let Some(Message::Request { id, params, .. }) = Message::parse(&line) else {
            panic!("no request")
        };
        assert_eq!((id, &params["b"]), (json!(1), &json!(2)));
    }

    #[test]
    fn what_is_no_message_is_noise() {
        for line in [
            "",
            "hello",
            "[1]",
            "{}",
            "7",
            r#"{"id":1}"#,
            r#"{"id":null,"error":{}}"#,
        ] {
            assert_eq!(Message::parse(line), None, "{line}");
        }
    }
}
