//! Reads a stream frame by frame.

use std::collections::VecDeque;

use axum::body::{Body, BodyDataStream};
use axum::response::Response;
use futures::StreamExt;
use http::StatusCode;
use serde_json::Value;

/// One frame; a comment has no fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Frame {
    /// The id as it is.
    pub(crate) cursor: Option<String>,
    /// The id of an event of one session: its number.
    pub(crate) id: Option<u64>,
    pub(crate) event: String,
    pub(crate) data: Value,
    pub(crate) retry: Option<u64>,
    pub(crate) text: String,
}

/// A stream being read.
pub(crate) struct Frames {
    body: BodyDataStream,
    buffered: String,
    parsed: VecDeque<Frame>,
}

impl Frames {
    #[track_caller]
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Self::of_body(response.into_body())
    }

    pub(crate) fn of_body(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffered: String::new(),
            parsed: VecDeque::new(),
        }
    }

    /// The next frame; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parsed.pop_front() {
                return Some(frame);
            }
            let chunk = self.body.next().await?.ok()?;
            self.buffered.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some(end) = self.buffered.find("\n\n") {
                let rest = self.buffered.split_off(end + 2);
                let text = std::mem::replace(&mut self.buffered, rest);
                self.parsed.push_back(parse(text));
            }
        }
    }

    /// Everything up to the first frame of this kind.
    pub(crate) async fn until(&mut self, event: &str) -> Vec<Frame> {
        let mut seen = Vec::new();
        while let Some(frame) = self.next().await {
            let is_last = frame.event == event;
            seen.push(frame);
            if is_last {
                return seen;
            }
        }
        panic!("the stream ended before `{event}`: {seen:?}");
    }

    /// Everything to the end.
    pub(crate) async fn rest(mut self) -> Vec<Frame> {
        let mut seen = Vec::new();
        while let Some(frame) = self.next().await {
            seen.push(frame);
        }
        seen
    }
}

fn parse(text: String) -> Frame {
    let mut frame = Frame::default();
    for line in text.lines() {
        match line.split_once(": ") {
            Some(("id", value)) => {
                frame.cursor = Some(value.to_owned());
                frame.id = value.parse().ok();
            }
            Some(("event", value)) => value.clone_into(&mut frame.event),
            Some(("data", value)) => frame.data = serde_json::from_str(value).unwrap(),
            Some(("retry", value)) => frame.retry = Some(value.parse().unwrap()),
            Some(_) | None => assert!(line.is_empty() || line.starts_with(':'), "{line}"),
        }
    }
    frame.text = text;
    frame
}

/// The numbers of the events among the frames.
pub(crate) fn ids(frames: &[Frame]) -> Vec<u64> {
    frames.iter().filter_map(|frame| frame.id).collect()
}
