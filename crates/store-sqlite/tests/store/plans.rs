//! The plans of all statements that are checked at compile time: none walks a table that grows.

use std::collections::BTreeSet;
use std::path::Path;

use tapedeck_store::Store as _;

use crate::support::{Fixture, explain, foreign_keys};

/// Steps that walk what is live, or one row for each executor, never history.
const WALKS: &[&str] = &[
    "SCAN run_heads",
    "SCAN run_queue",
    "SCAN executors",
    // A page goes along the table's own key.
    "SCAN e",
    "SCAN session_heads USING INDEX session_heads_active",
    "SCAN session_heads USING INDEX session_heads_idle",
    // Tokens that nobody has revoked: as many as people handed out.
    "SCAN access_tokens USING INDEX access_tokens_of_name",
    // One row for each table with keys of its own.
    "SCAN sqlite_sequence",
    // Results of a part of the statement itself.
    "SCAN newest",
    "SCAN keys",
    "SCAN f",
    "SCAN (subquery",
    "SCAN CONSTANT ROW",
];

/// All statements but those of an audit, which looks at everything there is.
fn statements() -> BTreeSet<String> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |dir: &str| -> Vec<String> {
        std::fs::read_dir(crate_dir.join(dir))
            .unwrap()
            .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect()
    };
    let audit = files("queries/audit");
    files(".sqlx")
        .iter()
        .map(|text| {
            let data: serde_json::Value = serde_json::from_str(text).unwrap();
            data["query"].as_str().unwrap().to_owned()
        })
        .filter(|statement| !audit.contains(statement))
        .collect()
}

#[tokio::test]
async fn no_statement_walks_a_table_that_grows() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    let statements = statements();
    assert!(statements.len() > 60, "{}", statements.len());
    let mut walks = Vec::new();
    for statement in &statements {
        if statement.trim_start().starts_with("PRAGMA") {
            continue;
        }
        for step in explain(fixture.dir.path(), statement).await {
            let live =
                step.contains("VIRTUAL TABLE") || WALKS.iter().any(|walk| step.starts_with(walk));
            if step.starts_with("SCAN") && !live {
                walks.push(format!("{step}\n{statement}\n"));
            }
        }
    }
    assert!(walks.is_empty(), "{}", walks.join("\n"));
}

/// The hot statements by words of theirs, each with the index it must use and whether it may sort.
const HOT: &[(&str, &str, bool)] = &[
    (
        "s.namespace = ? AND s.session_id < ?",
        "sessions_by_namespace",
        false,
    ),
    (
        "WHERE namespace = ? AND run_id < ?",
        "runs_by_namespace",
        false,
    ),
    (") AND run_id < ?", "runs_by_session", false),
    ("AND q.audience = a.value", "run_queue_by_turn", true),
    ("AND q.audience = a.value", "run_queue_by_opening", true),
    // Any index of the queue would do: they all begin with the pool, the kind and the label key.
    ("WITH RECURSIVE keys", "run_queue_by_flow", false),
    (
        "SELECT max(turn) FROM run_queue",
        "run_queue_by_flow",
        false,
    ),
    (
        "AND unservable IS NOT NULL AND run_id <",
        "runs_unservable",
        false,
    ),
    // These two sort what has run out, never what lives.
    (
        "FROM run_heads INDEXED BY run_heads_by_lease",
        "run_heads_by_lease",
        true,
    ),
    (
        "FROM interactions INDEXED BY interactions_due",
        "interactions_due",
        true,
    ),
    ("WHERE s.session_id = ?1", "events_by_session", false),
    ("e.session_seq > ?\n", "events_by_session", false),
    (
        "e.event_id IN (SELECT value",
        "events_by_run (run_key=? AND event_id=?)",
        false,
    ),
    ("AND ended_queued = 0", "runs_settled", false),
    ("status = 'interrupted'", "runs_interrupted", false),
    // A restore finds what it puts aside, however many runs came before.
    (
        "settled_seq > ? AND superseded_at IS NULL\n               AND ended_queued = 0",
        "runs_settled (session_key=? AND settled_seq>?)",
        false,
    ),
    (
        "settled_seq > ? AND superseded_at IS NULL\n               AND ended_queued = 1",
        "runs_ended_queued (session_key=? AND settled_seq>?)",
        false,
    ),
    ("r.settled_seq <= ?", "runs_settled", false),
    ("r.settled_seq <= ?", "tape_entries_projected", false),
    (
        "status = 'queued' ORDER BY place",
        "run_heads_by_session",
        false,
    ),
    (
        "WHERE h.executor_id IN (SELECT value",
        "run_heads_by_executor",
        true,
    ),
    (
        "owner_id = ?1 AND active_run_key IS NOT NULL",
        "session_heads_active",
        false,
    ),
    (
        "owner_id = ? AND active_run_key IS NULL",
        "session_heads_idle",
        false,
    ),
    (
        "ORDER BY e.position DESC\n             LIMIT",
        "tape_entries_active",
        false,
    ),
    (
        "e.position > ?\n               AND e.superseded",
        "tape_entries_active",
        false,
    ),
    (
        "e.position > ? ORDER BY",
        "e USING INDEX sqlite_autoindex_tape_entries",
        false,
    ),
    ("e.entry_id IN (SELECT", "entry_id=?", false),
    ("SET replaced = 1", "tape_entries_projected", false),
    ("AND position > ?", "tape_entries_active", false),
    ("AND position <= ?3", "tape_entries_active", false),
    (
        "e.kind = 'run_end' AND e.superseded",
        "tape_entries_active",
        false,
    ),
    ("checkpoint_id < ? AND", "checkpoints_by_session", false),
    (
        "FROM checkpoints\n             WHERE session_key = ? AND superseded",
        "checkpoints_active",
        false,
    ),
    (
        "session_seq > ?\n               AND superseded_at",
        "checkpoints_active",
        false,
    ),
    (
        "created_at < ? ORDER BY created_at",
        "idempotency_keys_by_age",
        false,
    ),
];

#[tokio::test]
async fn hot_statements_use_their_indexes_and_do_not_sort() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    let statements = statements();
    for &(words, index, sorts) in HOT {
        let mut found: Vec<_> = statements
            .iter()
            .filter(|text| text.contains(words))
            .collect();
        assert!(!found.is_empty(), "no statement with `{words}`");
        found.sort();
        for statement in found {
            let plan = explain(fixture.dir.path(), statement).await.join("\n");
            assert!(plan.contains(index), "`{words}` must use {index}:\n{plan}");
            assert!(
                sorts || !plan.contains("TEMP B-TREE"),
                "`{words}` sorts:\n{plan}"
            );
        }
    }
}

#[tokio::test]
async fn every_filter_of_the_inbox_has_an_index() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    let base = "SELECT * FROM interactions WHERE interaction_id < ? AND namespace = ?";
    for filter in [
        "",
        " AND status = ?",
        " AND session_id = ?",
        " AND run_id = ?",
    ] {
        let statement = format!("{base}{filter} ORDER BY interaction_id DESC LIMIT ?");
        let plan = explain(fixture.dir.path(), &statement).await.join("\n");
        assert!(plan.contains("SEARCH interactions"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}

#[tokio::test]
async fn every_foreign_key_has_an_index() {
    let fixture = Fixture::open().await;
    fixture.store.close().await;
    let keys = foreign_keys(fixture.dir.path()).await;
    assert!(keys.len() >= 15, "{keys:?}");
    for (table, column) in keys {
        let statement = format!("DELETE FROM {table} WHERE {column} = ?");
        let plan = explain(fixture.dir.path(), &statement).await.join("\n");
        assert!(plan.starts_with("SEARCH"), "{table}.{column}: {plan}");
    }
}
