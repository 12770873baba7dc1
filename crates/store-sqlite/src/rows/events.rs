//! Rows of `events`. A batch goes in as one statement over one JSON text: what costs is the number
//! of statements in a group, not their size (stores §4).

use async_trait::async_trait;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use serde_json::json;
use sqlx::SqliteConnection;
use tapedeck_domain::append::Known;
use tapedeck_domain::digest::hex;
use tapedeck_domain::event::{EventRecord, NewEvent};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::{JsonText, Timestamp};
use tapedeck_store::rows::{EventRows, Rows};
use tapedeck_store::{EventFilter, EventSlice, FeedFilter, FeedPosition, FeedSlice};

use crate::encode::{At, blob, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::SqliteTx;

/// An event with the ids of its session and run.
struct EventRow {
    session_id: Vec<u8>,
    session_seq: i64,
    run_id: Option<Vec<u8>>,
    event_id: String,
    kind: String,
    payload: String,
    digest: Option<Vec<u8>>,
    attempt: Option<i64>,
    executor_id: Option<String>,
    trace_id: Option<String>,
    created_at: i64,
    recorded_at: i64,
    folded_from: Option<i64>,
}

impl TryFrom<EventRow> for Known {
    type Error = tapedeck_store::StoreError;

    fn try_from(row: EventRow) -> Rows<Self> {
        let at = At::new("events", &row.session_seq);
        Ok(Self {
            digest: at.maybe_digest("digest", row.digest.as_deref())?,
            record: EventRecord {
                session_id: at.id("session_id", &row.session_id, SessionId::new)?,
                session_seq: at.number("session_seq", row.session_seq)?,
                run_id: at.maybe_id("run_id", row.run_id.as_deref(), RunId::new)?,
                attempt: at.maybe_number("attempt", row.attempt)?,
                event_id: row.event_id,
                kind: row.kind,
                payload: JsonText::from_stored(&row.payload),
                folded_from: at.maybe_number("folded_from", row.folded_from)?,
                executor_id: row.executor_id,
                trace_id: row.trace_id,
                created_at: Timestamp(row.created_at),
                recorded_at: Timestamp(row.recorded_at),
            },
        })
    }
}

/// Events of a session that pass a filter, in order.
pub(crate) async fn filtered(
    conn: &mut SqliteConnection,
    filter: &EventFilter,
) -> Rows<EventSlice> {
    let session = blob(filter.session_id.uuid());
    let run = filter.run_id.map(|id| blob(id.uuid()));
    let after = integer(filter.after);
    let all_kinds = filter.kinds.is_empty();
    let kinds = json!(filter.kinds).to_string();
    let rows = sqlx::query_file_as!(
        EventRow,
        "queries/events_filtered.sql",
        session,
        after,
        run,
        all_kinds,
        kinds,
        filter.limit,
    )
    .fetch(conn);
    slice(rows, filter.limit, filter.max_bytes).await
}

/// The part of the log over all sessions after a place (rules R22).
pub(crate) async fn feed(conn: &mut SqliteConnection, filter: &FeedFilter) -> Rows<FeedSlice> {
    let all_kinds = filter.kinds.is_empty();
    let kinds = json!(filter.kinds).to_string();
    let mut rows = sqlx::query_file!(
        "queries/feed.sql",
        filter.after.row,
        filter.limit,
        filter.namespace,
        all_kinds,
        kinds,
    )
    .fetch(conn);
    let mut slice = FeedSlice {
        events: Vec::new(),
        through: filter.after,
        bounded: false,
    };
    let (mut seen, mut bytes) = (0, 0);
    while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
        seen += 1;
        slice.through.row = row.event_key;
        if row.passes {
            bytes += row.payload.len();
            let event = EventRow {
                session_id: row.session_id,
                session_seq: row.session_seq,
                run_id: row.run_id,
                event_id: row.event_id,
                kind: row.kind,
                payload: row.payload,
                digest: row.digest,
                attempt: row.attempt,
                executor_id: row.executor_id,
                trace_id: row.trace_id,
                created_at: row.created_at,
                recorded_at: row.recorded_at,
                folded_from: row.folded_from,
            };
            let record = Known::try_from(event)?.record;
            slice.events.push((slice.through, record));
        }
        if bytes >= filter.max_bytes || seen >= filter.limit {
            slice.bounded = true;
            break;
        }
    }
    Ok(slice)
}

/// The last key that was ever given to an event, whether its session still exists or not.
pub(crate) async fn feed_end(conn: &mut SqliteConnection) -> Rows<FeedPosition> {
    let last = sqlx::query_scalar!(
        r#"SELECT CAST(seq AS INTEGER) AS "seq: i64" FROM sqlite_sequence WHERE name = 'events'"#
    )
    .fetch_optional(conn)
    .await
    .map_err(from_sqlx)?;
    Ok(FeedPosition {
        transaction: 0,
        row: last.flatten().unwrap_or(0),
    })
}

/// Takes rows until a bound ends them: payloads are large, so a page is bounded by bytes, too.
async fn slice(
    mut rows: BoxStream<'_, sqlx::Result<EventRow>>,
    limit: u32,
    max_bytes: usize,
) -> Rows<EventSlice> {
    let mut slice = EventSlice {
        events: Vec::new(),
        bounded: false,
    };
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
        bytes += row.payload.len();
        slice.events.push(Known::try_from(row)?.record);
        if bytes >= max_bytes || slice.events.len() >= limit as usize {
            slice.bounded = true;
            break;
        }
    }
    Ok(slice)
}

/// All events of a session after a number, in order.
async fn page(
    conn: &mut SqliteConnection,
    session: SessionKey,
    after: u64,
    limit: u32,
    max_bytes: usize,
) -> Rows<Vec<EventRecord>> {
    let after = integer(after);
    let rows = sqlx::query_file_as!(EventRow, "queries/events_page.sql", session.0, after, limit)
        .fetch(conn);
    Ok(slice(rows, limit, max_bytes).await?.events)
}

#[async_trait]
impl EventRows for SqliteTx<'_> {
    async fn known_events(
        &mut self,
        run: RunKey,
        event_ids: &[String],
    ) -> Rows<Vec<(String, Known)>> {
        let event_ids = json!(event_ids).to_string();
        let rows = sqlx::query_file_as!(EventRow, "queries/known_events.sql", run.0, event_ids)
            .fetch_all(self.read())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter()
            .map(|row| Ok((row.event_id.clone(), Known::try_from(row)?)))
            .collect()
    }

    async fn insert_events(&mut self, session: SessionKey, events: &[NewEvent]) -> Rows<()> {
        if events.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = events
            .iter()
            .map(|event| {
                let record = &event.record;
                json!([
                    integer(record.session_seq),
                    event.run_key.map(|key| key.0),
                    record.event_id,
                    record.kind,
                    record.payload.as_str(),
                    event.digest.map(|digest| hex(&digest.0)),
                    record.attempt,
                    record.executor_id,
                    record.trace_id,
                    record.created_at.0,
                    record.recorded_at.0,
                    record.folded_from.map(integer),
                ])
            })
            .collect();
        let rows = json!(rows).to_string();
        let done = sqlx::query_file!("queries/insert_events.sql", session.0, rows)
            .execute(self.write().await?)
            .await
            .map_err(from_sqlx)?;
        expect_rows("events", done.rows_affected(), events.len() as u64)
    }

    async fn events_after(
        &mut self,
        session: SessionKey,
        after: u64,
        limit: u32,
        max_bytes: usize,
    ) -> Rows<Vec<EventRecord>> {
        page(self.read(), session, after, limit, max_bytes).await
    }
}
