//! The frames of streams as bytes. It never decides what is sent.

use std::fmt::Display;

use bytes::Bytes;
use rand::RngExt;
use serde::Serialize;
use tapedeck_domain::display::DisplayEvent;
use tapedeck_domain::event::EventRecord;
use tapedeck_protocol::display;
use tapedeck_protocol::event::sse_data;
use tapedeck_protocol::stream::{END, EndReason, OPEN, RETRY_MS, StreamEnd};

/// Keeps a quiet connection alive and lets its reader notice a dead one.
pub(super) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// The frame of an event as it is stored, under its cursor.
pub(super) fn raw(id: impl Display, record: &EventRecord) -> Bytes {
    // A kind is free text; a line break in it would end its field.
    let kind = record.kind.replace(['\r', '\n'], " ");
    let data = sse_data(record);
    Bytes::from(format!("id: {id}\nevent: {kind}\ndata: {data}\n\n"))
}

/// The frame of an event as people see it, under the cursor of the stored one.
pub(super) fn shown(id: impl Display, record: &EventRecord) -> Option<Bytes> {
    let event = DisplayEvent::of(record)?;
    let kind = event.kind;
    let data = display::sse_data(event);
    Some(Bytes::from(format!(
        "id: {id}\nevent: {kind}\ndata: {data}\n\n"
    )))
}

/// A frame of the stream's own, which has no id.
pub(super) fn own<T: Serialize>(event: &str, data: &T) -> Bytes {
    Bytes::from(text(event, data))
}

/// The first frame.
pub(super) fn open<T: Serialize>(data: &T) -> Bytes {
    Bytes::from(format!("retry: {RETRY_MS}\n\n{}", text(OPEN, data)))
}

/// The last frame.
pub(super) fn end(reason: EndReason) -> Bytes {
    let end = text(END, &StreamEnd { reason });
    match reason {
        EndReason::Settled | EndReason::Superseded | EndReason::Deleted | EndReason::TokenEnded => {
            Bytes::from(end)
        }
        // All followers of a server that goes down must not come back in the same moment.
        EndReason::Shutdown => {
            let jittered = rand::rng().random_range(RETRY_MS..=2 * RETRY_MS);
            Bytes::from(format!("retry: {jittered}\n{end}"))
        }
    }
}

fn text<T: Serialize>(event: &str, data: &T) -> String {
    // Frames are made of texts and numbers, which always serialise.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {event}\ndata: {data}\n\n")
}
