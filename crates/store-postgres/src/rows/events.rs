//! Rows of `events`. A batch goes in as one statement over arrays, and a slice comes out of the
//! session's own index, with no more payloads than were asked for.

use async_trait::async_trait;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use sqlx::PgConnection;
use tapedeck_domain::append::Known;
use tapedeck_domain::event::{EventRecord, NewEvent};
use tapedeck_domain::id::{RunId, RunKey, SessionId, SessionKey};
use tapedeck_domain::{JsonText, Timestamp};
use tapedeck_store::rows::{EventRows, Rows};
use tapedeck_store::{EventFilter, EventSlice, FeedFilter, FeedPosition, FeedSlice};
use uuid::Uuid;

use crate::encode::{At, bound, integer};
use crate::error::{expect_rows, from_sqlx};
use crate::tx::PostgresTx;

/// An event with the ids of its session and run.
struct EventRow {
    session_id: Uuid,
    session_seq: i64,
    run_id: Option<Uuid>,
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
                session_id: SessionId::new(row.session_id),
                session_seq: at.number("session_seq", row.session_seq)?,
                run_id: row.run_id.map(RunId::new),
                attempt: at.maybe_number("attempt", row.attempt)?,
                event_id: row.event_id,
                kind: row.kind,
                payload: JsonText::from_stored(&row.payload),
                executor_id: row.executor_id,
                trace_id: row.trace_id,
                created_at: Timestamp(row.created_at),
                recorded_at: Timestamp(row.recorded_at),
                folded_from: at.maybe_number("folded_from", row.folded_from)?,
            },
        })
    }
}

/// Events of a session that pass a filter, in order.
pub(crate) async fn filtered(conn: &mut PgConnection, filter: &EventFilter) -> Rows<EventSlice> {
    let all_kinds = filter.kinds.is_empty();
    let max_bytes = bound(filter.max_bytes);
    match filter.run_id {
        None => {
            let rows = sqlx::query_file_as!(
                EventRow,
                "queries/events_filtered.sql",
                filter.session_id.uuid(),
                integer(filter.after),
                all_kinds,
                &filter.kinds,
                i64::from(filter.limit),
                max_bytes,
            )
            .fetch(conn);
            slice(rows, filter.limit, filter.max_bytes).await
        }
        Some(run) => {
            let rows = sqlx::query_file_as!(
                EventRow,
                "queries/events_of_run.sql",
                filter.session_id.uuid(),
                integer(filter.after),
                run.uuid(),
                all_kinds,
                &filter.kinds,
                i64::from(filter.limit),
                max_bytes,
            )
            .fetch(conn);
            slice(rows, filter.limit, filter.max_bytes).await
        }
    }
}

/// The part of the log over all sessions after a place (rules R22).
pub(crate) async fn feed(conn: &mut PgConnection, filter: &FeedFilter) -> Rows<FeedSlice> {
    let all_kinds = filter.kinds.is_empty();
    let mut rows = sqlx::query_file!(
        "queries/feed.sql",
        filter.after.transaction.to_string(),
        filter.after.row,
        i64::from(filter.limit),
        filter.namespace,
        all_kinds,
        &filter.kinds,
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
        slice.through = FeedPosition {
            transaction: At::new("events", &row.event_key).word("xid", &row.xid)?,
            row: row.event_key,
        };
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

/// The place below which [`feed`] would give everything now.
pub(crate) async fn feed_end(conn: &mut PgConnection) -> Rows<FeedPosition> {
    let xmin =
        sqlx::query_scalar!(r#"SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS "xmin!""#)
            .fetch_one(conn)
            .await
            .map_err(from_sqlx)?;
    let xmin: u64 = At::new("events", &"feed").word("xid", &xmin)?;
    Ok(FeedPosition {
        transaction: xmin.saturating_sub(1),
        row: i64::MAX,
    })
}

/// Takes all rows, which the statement has bounded, and sees whether a bound ended them.
async fn slice(
    mut rows: BoxStream<'_, sqlx::Result<EventRow>>,
    limit: u32,
    max_bytes: usize,
) -> Rows<EventSlice> {
    let mut events = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await.map_err(from_sqlx)? {
        bytes += row.payload.len();
        events.push(Known::try_from(row)?.record);
    }
    let bounded = bytes >= max_bytes || events.len() >= limit as usize;
    Ok(EventSlice { events, bounded })
}

/// All events of a session after a number, in order.
async fn page(
    conn: &mut PgConnection,
    session: SessionKey,
    after: u64,
    limit: u32,
    max_bytes: usize,
) -> Rows<Vec<EventRecord>> {
    let rows = sqlx::query_file_as!(
        EventRow,
        "queries/events_page.sql",
        session.0,
        integer(after),
        i64::from(limit),
        bound(max_bytes),
    )
    .fetch(conn);
    Ok(slice(rows, limit, max_bytes).await?.events)
}

#[async_trait]
impl EventRows for PostgresTx<'_> {
    async fn known_events(
        &mut self,
        run: RunKey,
        event_ids: &[String],
    ) -> Rows<Vec<(String, Known)>> {
        let rows = sqlx::query_file_as!(EventRow, "queries/known_events.sql", run.0, event_ids)
            .fetch_all(self.conn())
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
        let columns = Columns::from(events);
        let done = sqlx::query_file!(
            "queries/insert_events.sql",
            session.0,
            &columns.session_seqs,
            &columns.run_keys as &[Option<i64>],
            &columns.event_ids as &[&str],
            &columns.kinds as &[&str],
            &columns.payloads as &[&str],
            &columns.digests as &[Option<&[u8]>],
            &columns.attempts as &[Option<i64>],
            &columns.executor_ids as &[Option<&str>],
            &columns.trace_ids as &[Option<&str>],
            &columns.created_at,
            &columns.recorded_at,
            &columns.folded_from as &[Option<i64>],
        )
        .execute(self.conn())
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
        page(self.conn(), session, after, limit, max_bytes).await
    }
}

/// A batch as one array for each column, in the batch's order.
struct Columns<'a> {
    session_seqs: Vec<i64>,
    run_keys: Vec<Option<i64>>,
    event_ids: Vec<&'a str>,
    kinds: Vec<&'a str>,
    payloads: Vec<&'a str>,
    digests: Vec<Option<&'a [u8]>>,
    attempts: Vec<Option<i64>>,
    executor_ids: Vec<Option<&'a str>>,
    trace_ids: Vec<Option<&'a str>>,
    created_at: Vec<i64>,
    recorded_at: Vec<i64>,
    folded_from: Vec<Option<i64>>,
}

impl<'a> From<&'a [NewEvent]> for Columns<'a> {
    fn from(events: &'a [NewEvent]) -> Self {
        let records = || events.iter().map(|event| &event.record);
        Self {
            session_seqs: records().map(|it| integer(it.session_seq)).collect(),
            run_keys: events
                .iter()
                .map(|it| it.run_key.map(|key| key.0))
                .collect(),
            event_ids: records().map(|it| it.event_id.as_str()).collect(),
            kinds: records().map(|it| it.kind.as_str()).collect(),
            payloads: records().map(|it| it.payload.as_str()).collect(),
            digests: events
                .iter()
                .map(|it| it.digest.as_ref().map(|digest| digest.0.as_slice()))
                .collect(),
            attempts: records().map(|it| it.attempt.map(i64::from)).collect(),
            executor_ids: records().map(|it| it.executor_id.as_deref()).collect(),
            trace_ids: records().map(|it| it.trace_id.as_deref()).collect(),
            created_at: records().map(|it| it.created_at.0).collect(),
            recorded_at: records().map(|it| it.recorded_at.0).collect(),
            folded_from: records().map(|it| it.folded_from.map(integer)).collect(),
        }
    }
}
