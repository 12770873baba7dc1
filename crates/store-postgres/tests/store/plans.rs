//! The plans of all statements that are checked at compile time: none walks a table that grows, and
//! the hot ones take their rows in an index's order. A small database would be walked by any
//! planner, so it is told to avoid walks where it can; what it can't avoid shows.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tapedeck_store::Store as _;

use crate::support::{Fixture, connect, number};

/// Tables that grow with history.
const HISTORY: &[&str] = &[
    "sessions",
    "session_heads",
    "runs",
    "run_materials",
    "claims",
    "events",
    "tape_entries",
    "tape_states",
    "interactions",
    "checkpoints",
    "message_snapshots",
    "artifacts",
    "idempotency_keys",
];

/// Walks of what is live only: partial indexes that hold nothing else.
const LIVE: &[&str] = &["session_heads_active", "session_heads_idle"];

/// All statements but those of the audit, which looks at everything on purpose.
fn statements() -> BTreeSet<String> {
    let audit: BTreeSet<_> = files("queries/audit").collect();
    files(".sqlx")
        .map(|text| {
            let data: Value = serde_json::from_str(&text).unwrap();
            data["query"].as_str().unwrap().to_owned()
        })
        .filter(|statement| !audit.contains(statement))
        .collect()
}

/// What the files of a directory of this crate hold.
fn files(dir: &str) -> impl Iterator<Item = String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
}

/// How many parameters a statement has.
fn parameters(statement: &str) -> usize {
    let digits = |rest: &str| -> usize {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().unwrap_or(0)
    };
    statement.split('$').skip(1).map(digits).max().unwrap_or(0)
}

/// A connection whose plans suit any value of a parameter and any size of a table.
async fn planner(fixture: &Fixture) -> PgConnection {
    let mut conn = connect(&fixture.database).await;
    let settings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
        SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
    sqlx::raw_sql(settings).execute(&mut conn).await.unwrap();
    conn
}

/// All nodes of a statement's plan.
async fn explain(conn: &mut PgConnection, statement: &str) -> Vec<Value> {
    let values = vec!["NULL"; parameters(statement)].join(", ");
    let values = if values.is_empty() {
        values
    } else {
        format!("({values})")
    };
    let prepare = format!("PREPARE planned AS {statement}");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *conn)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{statement}"));
    let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE planned{values}");
    let row = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_one(&mut *conn)
        .await;
    let plan: String = row.unwrap().try_get_unchecked(0).unwrap();
    sqlx::raw_sql("DEALLOCATE planned")
        .execute(conn)
        .await
        .unwrap();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let mut nodes = Vec::new();
    collect(&plan[0]["Plan"], &mut nodes);
    nodes
}

fn collect(node: &Value, nodes: &mut Vec<Value>) {
    nodes.push(node.clone());
    for child in node["Plans"].as_array().into_iter().flatten() {
        collect(child, nodes);
    }
}

/// Whether a node reads all rows of a table that grows.
fn walks_history(node: &Value) -> bool {
    let text = |field: &str| node[field].as_str().unwrap_or_default();
    if !HISTORY.contains(&text("Relation Name")) || LIVE.contains(&text("Index Name")) {
        return false;
    }
    match text("Node Type") {
        "Seq Scan" => true,
        "Index Scan" | "Index Only Scan" => node["Index Cond"].is_null(),
        _ => false,
    }
}

#[tokio::test]
async fn no_statement_walks_a_table_that_grows() {
    let fixture = Fixture::open().await;
    let mut conn = planner(&fixture).await;
    let statements = statements();
    assert!(statements.len() > 60, "{}", statements.len());
    let mut walks = Vec::new();
    for statement in &statements {
        for node in explain(&mut conn, statement).await {
            if walks_history(&node) {
                walks.push(format!("{node}\n{statement}\n"));
            }
        }
    }
    assert!(walks.is_empty(), "{}", walks.join("\n"));
    conn.close().await.unwrap();
    fixture.store.close().await;
}

/// The hot statements, each with the index it must use. None of them sorts its rows.
#[tokio::test]
async fn hot_statements_use_their_indexes_and_do_not_sort() {
    let fixture = Fixture::open().await;
    let mut conn = planner(&fixture).await;
    let statements = statements();
    let hot = [
        ("A part of a session's log", "events_by_session"),
        ("The same for one run", "events_by_session"),
        (
            "All events of a session after a number",
            "events_by_session",
        ),
        ("The active tape", "tape_entries_active"),
        ("ORDER BY e.position DESC\nLIMIT $2", "tape_entries_active"),
        // Any index of the queue would do: they all begin with the pool, the kind and the label set.
        ("WITH RECURSIVE sets", "run_queue_by_flow"),
        ("SELECT max(turn) FROM run_queue", "run_queue_by_flow"),
        ("AND unservable IS NOT NULL AND run_id <", "runs_unservable"),
        ("run_id < $2 AND ($3 OR superseded_at", "runs_by_namespace"),
        ("run_id < $3 AND ($4 OR superseded_at", "runs_by_session"),
        (
            "NOT ended_queued\n         ORDER BY settled_seq",
            "runs_settled",
        ),
        // A restore finds what it puts aside, however many runs came before.
        (
            "superseded_at IS NULL\n               AND NOT ended_queued",
            "runs_settled",
        ),
        (
            "superseded_at IS NULL\n               AND ended_queued",
            "runs_ended_queued",
        ),
        (
            "looked at in the order of their transactions",
            "events_feed",
        ),
        ("status = 'queued' ORDER BY place", "run_heads_by_session"),
        (
            "(SELECT session_key FROM runs WHERE run_id = $1)\nFOR UPDATE SKIP LOCKED",
            "session_heads_pkey",
        ),
        ("AND owner_expires_at < $3", "session_heads_active"),
        (
            "AND NOT released\n                  AND active_minute",
            "session_heads_idle",
        ),
        ("WITH old AS MATERIALIZED", "idempotency_keys_by_age"),
    ];
    for (words, index) in hot {
        let found: Vec<_> = statements
            .iter()
            .filter(|text| text.contains(words))
            .collect();
        assert!(!found.is_empty(), "no statement with `{words}`");
        for statement in found {
            let plan = explain(&mut conn, statement).await;
            let uses = plan.iter().any(|node| node["Index Name"] == index);
            assert!(uses, "`{words}` must use {index}:\n{plan:#?}");
            let sorts = plan.iter().any(|node| node["Node Type"] == "Sort");
            assert!(!sorts, "`{words}` sorts:\n{plan:#?}");
        }
    }
    conn.close().await.unwrap();
    fixture.store.close().await;
}

/// Whatever a run's length: its events are found by both of what the index begins with.
#[tokio::test]
async fn an_upload_looks_its_ids_up_one_by_one() {
    let fixture = Fixture::open().await;
    let mut conn = connect(&fixture.database).await;
    // Among runs that are mostly short, all events of one would be read.
    let short = "SET session_replication_role = replica; \
        INSERT INTO events (session_key, session_seq, run_key, event_id, kind, payload, \
            created_at, recorded_at) \
        SELECT run, step, run, 'e' || step, 'StreamDelta', '{}', 0, 0 \
        FROM generate_series(1, 200) AS run, generate_series(1, 5) AS step; \
        ANALYZE events; SET plan_cache_mode = force_generic_plan";
    sqlx::raw_sql(short).execute(&mut conn).await.unwrap();
    let known: Vec<_> = statements()
        .into_iter()
        .filter(|text| text.contains("Each id is looked up by itself"))
        .collect();
    assert_eq!(known.len(), 1);
    let plan = explain(&mut conn, &known[0]).await;
    let events = plan
        .iter()
        .find(|node| node["Relation Name"] == "events")
        .unwrap();
    assert_eq!(events["Index Name"], "events_by_run", "{events:#}");
    let condition = events["Index Cond"].as_str().unwrap();
    assert!(condition.contains("event_id"), "{events:#}");
    conn.close().await.unwrap();
    fixture.store.close().await;
}

/// A place in the feed says nothing of how many rows follow, so a join would be planned for a large
/// part of the log: it prepares for that, or even walks the other tables, for a page of a few rows.
#[tokio::test]
async fn the_feed_looks_up_what_belongs_to_a_row() {
    let fixture = Fixture::open().await;
    let mut conn = planner(&fixture).await;
    let feed: Vec<_> = statements()
        .into_iter()
        .filter(|text| text.contains("FROM events e\nWHERE (e.xid, e.event_key) >"))
        .collect();
    assert_eq!(feed.len(), 1);
    for node in explain(&mut conn, &feed[0]).await {
        let kind = node["Node Type"].as_str().unwrap();
        let joins = kind == "Nested Loop" || kind == "Memoize" || kind.ends_with("Join");
        assert!(!joins, "{node:#}");
    }
    conn.close().await.unwrap();
    fixture.store.close().await;
}

#[tokio::test]
async fn every_foreign_key_has_an_index() {
    let fixture = Fixture::open().await;
    let mut conn = connect(&fixture.database).await;
    let all = "SELECT count(*) FROM pg_constraint WHERE contype = 'f'";
    assert!(number(&mut conn, all).await >= 15);
    let without = "SELECT count(*) FROM pg_constraint c WHERE c.contype = 'f' AND NOT EXISTS (
            SELECT 1 FROM pg_index i
            WHERE i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1]
              AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) LIKE '%IS NOT NULL)')
        )";
    assert_eq!(number(&mut conn, without).await, 0);
    conn.close().await.unwrap();
    fixture.store.close().await;
}
