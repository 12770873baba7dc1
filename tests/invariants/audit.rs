//! The checks of a whole database: they find nothing where nothing is wrong, whatever has happened,
//! and each finds what it is there for.

use std::collections::BTreeSet;

use tapedeck_store::archive::{TABLES, Table};
use tapedeck_store::audit::Scope;
use tapedeck_store::{AuditRequest, Check, Checked};

use crate::busy;
use crate::control::TestControl;
use crate::stores::Kind;

on_every_store![
    a_busy_database_gives_no_finding,
    a_busy_database_gives_no_finding_after_an_outage,
    every_check_finds_what_it_is_there_for,
    a_lease_that_ended_while_nobody_was_alive_is_not_overdue,
];

async fn checked(t: &TestControl, checks: &[Check]) -> Vec<Checked> {
    let request = AuditRequest::of(checks);
    t.store.audit().audit(&request).await.unwrap()
}

/// The checks that find something.
async fn broken(t: &TestControl) -> BTreeSet<Check> {
    let found = checked(t, Check::ALL).await;
    let found = found.iter().filter(|checked| !checked.findings.is_empty());
    found.map(|checked| checked.check).collect()
}

async fn assert_sound(t: &TestControl) {
    for checked in checked(t, Check::ALL).await {
        assert!(checked.findings.is_empty(), "{checked:?}");
    }
}

async fn a_busy_database_gives_no_finding(t: TestControl) {
    assert_sound(&t).await;
    busy::fill(&t).await;
    assert_sound(&t).await;
    // Time goes on: leases end, the sweep does its work, and what waits is claimed.
    for _ in 0..3 {
        t.pass(40_000).await;
        t.sweep().await;
        assert_sound(&t).await;
        while let Ok(claim) = t.try_claim("late").await {
            t.say(&claim, "last", "words").await.unwrap();
            t.complete(&claim).await;
            assert_sound(&t).await;
        }
    }
    busy::fold(&t).await;
    assert_sound(&t).await;
}

async fn a_busy_database_gives_no_finding_after_an_outage(t: TestControl) {
    busy::fill(&t).await;
    t.outage(3_600_000);
    assert_sound(&t).await;
    let t = t.restarted().await;
    assert_eq!(checked(&t, &Check::live()).await.len(), Check::live().len());
    assert_sound(&t).await;
}

async fn a_lease_that_ended_while_nobody_was_alive_is_not_overdue(t: TestControl) {
    let (_, claim) = t.running("e").await;
    t.outage(600_000);
    assert_sound(&t).await;
    // Whoever is alive and doesn't sweep is late.
    t.pass(120_000).await;
    let found = checked(&t, &[Check::OverdueClaims]).await;
    assert_eq!(found[0].check.scope(), Scope::Overdue);
    assert_eq!(found[0].findings[0].run_id, Some(claim.run_id()));
    t.sweep().await;
    assert_sound(&t).await;
}

/// What breaks one check, and what besides it does not hold then.
struct Damage {
    check: Check,
    tables: &'static [&'static str],
    statement: &'static str,
    besides: &'static [Check],
}

const fn damage(check: Check, table: &'static [&'static str], statement: &'static str) -> Damage {
    Damage {
        check,
        tables: table,
        statement,
        besides: &[],
    }
}

/// A row of each kind by what it is; `TRUE` and `FALSE` are words of both dialects.
const DAMAGES: &[Damage] = &[
    damage(
        Check::Readable,
        &["events"],
        "UPDATE events SET payload = 'words' WHERE event_key = \
         (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    Damage {
        // Whoever needs what is in it can't check it.
        besides: &[Check::ToolResults],
        ..damage(
            Check::Readable,
            &["tape_entries"],
            "UPDATE tape_entries SET payload = '{' WHERE kind = 'tool_call'",
        )
    },
    damage(
        Check::References,
        &["approval_rules"],
        "UPDATE approval_rules SET session_key = 999999",
    ),
    damage(
        Check::Heads,
        &["session_heads"],
        "DELETE FROM session_heads WHERE head_seq = 0",
    ),
    damage(
        Check::Copies,
        &["message_snapshots"],
        "UPDATE message_snapshots SET session_key = (SELECT max(session_key) FROM sessions)",
    ),
    damage(
        Check::LogNumbers,
        &["events"],
        "DELETE FROM events WHERE event_key = \
         (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    damage(
        Check::HeadSeq,
        &["session_heads"],
        "UPDATE session_heads SET head_seq = 1 WHERE head_seq = 0",
    ),
    damage(
        Check::TerminalEvents,
        &["events"],
        "UPDATE events SET kind = 'TurnEnd' WHERE event_key = \
         (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    damage(
        Check::SettledSeq,
        &["runs"],
        "UPDATE runs SET settled_at = NULL WHERE status = 'failed'",
    ),
    damage(
        Check::AfterTheEnd,
        &["events"],
        "UPDATE events SET run_key = (SELECT min(r.run_key) FROM runs r \
            WHERE r.session_key = events.session_key AND r.settled_seq < events.session_seq) \
         WHERE kind = 'CheckpointCaptured'",
    ),
    damage(
        Check::Admissions,
        &["runs"],
        "UPDATE runs SET admitted_seq = admitted_seq + 1 WHERE run_key = \
         (SELECT min(run_key) FROM runs)",
    ),
    damage(
        Check::EventRuns,
        &["events"],
        "UPDATE events SET event_id = 'moved', run_key = (SELECT max(run_key) FROM run_heads) \
         WHERE event_key = (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    damage(
        Check::ServerEvents,
        &["events"],
        "UPDATE events SET event_id = 'srv:7' WHERE event_key = \
         (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    damage(
        Check::Folds,
        &["events"],
        "UPDATE events SET folded_from = session_seq WHERE event_key = \
         (SELECT min(event_key) FROM events WHERE kind = 'StreamDelta')",
    ),
    Damage {
        besides: &[
            Check::ActiveRun,
            Check::LiveRuns,
            Check::RunStates,
            Check::Queue,
            Check::SummaryRuns,
            Check::SummaryQueue,
            Check::SummaryStatus,
        ],
        ..damage(
            Check::OneActiveRun,
            &["run_heads"],
            "UPDATE run_heads SET status = 'requested' WHERE status = 'queued' AND session_key IN \
             (SELECT session_key FROM session_heads WHERE active_run_key IS NOT NULL)",
        )
    },
    damage(
        Check::ActiveRun,
        &["session_heads"],
        "UPDATE session_heads SET active_run_key = NULL WHERE active_run_key = \
         (SELECT max(run_key) FROM run_heads WHERE status = 'running')",
    ),
    damage(
        Check::LiveRuns,
        &["runs"],
        "UPDATE runs SET status = 'claimed' WHERE status = 'running'",
    ),
    Damage {
        besides: &[Check::SummaryQueue],
        ..damage(
            Check::UnsettledRuns,
            &["run_heads"],
            "DELETE FROM run_heads WHERE status = 'queued'",
        )
    },
    damage(
        Check::RunStates,
        &["run_heads"],
        "UPDATE run_heads SET replayed = NULL WHERE status = 'running'",
    ),
    damage(
        Check::Queue,
        &["run_queue"],
        "UPDATE run_queue SET ready_at = ready_at + 1",
    ),
    damage(
        Check::QueueTargets,
        &["sessions"],
        "UPDATE sessions SET run_target = replace(run_target, 'arm', 'x86')",
    ),
    damage(
        Check::Claims,
        &["run_heads"],
        "UPDATE run_heads SET instance_id = 'other' WHERE status = 'cancelling'",
    ),
    damage(
        Check::ClaimHistory,
        &["claims"],
        "DELETE FROM claims WHERE run_key = (SELECT min(run_key) FROM claims)",
    ),
    damage(
        Check::OverdueClaims,
        &["run_heads"],
        "UPDATE run_heads SET lease_expires_at = 1 WHERE status = 'running'",
    ),
    damage(
        Check::OverdueQuestions,
        &["interactions"],
        "UPDATE interactions SET deadline = 1 WHERE status = 'pending'",
    ),
    damage(
        Check::OpenQuestions,
        &["interactions"],
        "UPDATE interactions SET attempt = attempt + 1 WHERE status = 'pending'",
    ),
    damage(
        Check::QuestionCounts,
        &["run_heads"],
        "UPDATE run_heads SET pending_interactions = 2 WHERE pending_interactions = 1",
    ),
    damage(
        Check::Answers,
        &["interactions"],
        "UPDATE interactions SET resolved_at = NULL WHERE status = 'approved'",
    ),
    damage(
        Check::SummaryRuns,
        &["sessions"],
        "UPDATE sessions SET last_interrupted_run_id = last_run_id WHERE status = 'completed'",
    ),
    damage(
        Check::SummaryQueue,
        &["sessions"],
        "UPDATE sessions SET queue_held = NOT queue_held WHERE status = 'interrupted'",
    ),
    damage(
        Check::SummaryStatus,
        &["sessions"],
        "UPDATE sessions SET turn_status = 'running' WHERE status = 'created'",
    ),
    damage(
        Check::SummaryCheckpoints,
        &["sessions"],
        "UPDATE sessions SET latest_checkpoint_label = 'other' WHERE checkpoint_count > 0",
    ),
    damage(
        Check::Checkpoints,
        &["checkpoints"],
        "UPDATE checkpoints SET projection_epoch = 99 WHERE label = 'kept'",
    ),
    damage(
        Check::SupersededBy,
        &["checkpoints"],
        "UPDATE checkpoints SET superseded_by_checkpoint_id = NULL WHERE label = 'later'",
    ),
    damage(
        Check::SupersededRuns,
        &["tape_entries"],
        "UPDATE tape_entries SET run_id = \
            (SELECT min(r.run_id::X) FROM runs r WHERE r.superseded_at IS NOT NULL) \
         WHERE kind = 'anchor' AND session_key = \
            (SELECT session_key FROM checkpoints WHERE label = 'kept')",
    ),
    damage(
        Check::RestoredTape,
        &["checkpoints"],
        "UPDATE checkpoints SET tape_position = tape_position + 1 WHERE label = 'kept'",
    ),
    damage(
        Check::Owners,
        &["session_heads"],
        "UPDATE session_heads SET owner_epoch = 0 WHERE head_seq = 0",
    ),
    damage(
        Check::TapePositions,
        &["tape_entries"],
        "UPDATE tape_entries SET position = position + 1000 WHERE entry_key = \
         (SELECT max(entry_key) FROM tape_entries WHERE superseded_by_checkpoint_id IS NULL)",
    ),
    damage(
        Check::TapeCount,
        &["tape_entries"],
        "UPDATE tape_entries SET replaced = TRUE WHERE kind = 'anchor'",
    ),
    damage(
        Check::TapeSeq,
        &["tape_states"],
        "UPDATE tape_states SET state = replace(state, '\"tape_seq\":', '\"tape_seq\":9')",
    ),
    damage(
        Check::ToolResults,
        &["tape_entries"],
        "UPDATE tape_entries SET payload = '{}' WHERE kind = 'tool_call'",
    ),
    damage(
        Check::Snapshots,
        &["message_snapshots"],
        "UPDATE message_snapshots SET message_count = 99",
    ),
    damage(
        Check::Artifacts,
        &["artifacts"],
        "UPDATE artifacts SET bytes = 99",
    ),
    damage(
        Check::Lineage,
        &["runs"],
        "UPDATE runs SET parent_run_id = run_id WHERE parent_run_id IS NOT NULL",
    ),
    damage(
        Check::Results,
        &["idempotency_keys"],
        "UPDATE idempotency_keys SET result = '1'",
    ),
];

/// What the dialects say each in its own way: the file itself, and digests, whose length
/// PostgreSQL checks by itself as long as it is told to.
fn own_damages(kind: Kind) -> Vec<(&'static [Check], &'static str, &'static str)> {
    match kind {
        Kind::Sqlite => vec![
            (
                &[Check::FileIsSound],
                // An index that lacks its row.
                "PRAGMA writable_schema = ON; \
                 UPDATE sqlite_schema SET sql = replace(sql, '(created_at)', '(entry_key)') \
                 WHERE name = 'idempotency_keys_by_age'",
                "PRAGMA writable_schema = ON; \
                 UPDATE sqlite_schema SET sql = replace(sql, '(entry_key)', '(created_at)') \
                 WHERE name = 'idempotency_keys_by_age'",
            ),
            (
                &[Check::Digests, Check::Readable],
                "UPDATE idempotency_keys SET body_digest = zeroblob(33)",
                "UPDATE idempotency_keys SET body_digest = zeroblob(32)",
            ),
        ],
        Kind::Postgres | Kind::PostgresWithoutHints => vec![
            (
                &[Check::FileIsSound],
                "UPDATE pg_index SET indisvalid = false \
                 WHERE indexrelid = 'claims_by_executor'::regclass",
                "UPDATE pg_index SET indisvalid = true \
                 WHERE indexrelid = 'claims_by_executor'::regclass",
            ),
            (
                &[Check::Digests, Check::Readable],
                "ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_body_digest_check; \
                 UPDATE idempotency_keys SET body_digest = body_digest || '\\x00'",
                "UPDATE idempotency_keys SET body_digest = substring(body_digest FOR 32)",
            ),
        ],
    }
}

/// Without the rules that the engine itself would keep.
fn unguarded(kind: Kind, statement: &str) -> String {
    match kind {
        Kind::Sqlite => format!(
            "PRAGMA foreign_keys = OFF; {}",
            statement.replace("::X", "")
        ),
        Kind::Postgres | Kind::PostgresWithoutHints => format!(
            "SET session_replication_role = replica; {}",
            // There is no least of all identifiers there.
            statement.replace("min(r.run_id::X)", "min(r.run_id::text)::uuid")
        ),
    }
}

async fn every_check_finds_what_it_is_there_for(t: TestControl) {
    busy::fill(&t).await;
    assert_sound(&t).await;
    let kind = t.store.kind;
    for table in TABLES {
        let name = table.name;
        t.store
            .run(&format!(
                "CREATE TABLE saved_{name} AS SELECT * FROM {name}"
            ))
            .await;
    }
    let mut shown: BTreeSet<Check> = BTreeSet::new();
    for damage in DAMAGES {
        t.store.run(&unguarded(kind, damage.statement)).await;
        let mut expected = BTreeSet::from([damage.check]);
        expected.extend(damage.besides);
        assert_eq!(broken(&t).await, expected, "{}", damage.statement);
        for name in damage.tables {
            let table = TABLES.iter().find(|table| table.name == *name).unwrap();
            t.store.run(&unguarded(kind, &put_back(table))).await;
        }
        shown.insert(damage.check);
    }
    for (checks, statement, undo) in own_damages(kind) {
        t.store.run(statement).await;
        let expected = checks.iter().copied().collect();
        assert_eq!(broken(&t).await, expected, "{statement}");
        t.store.run(undo).await;
        shown.extend(checks);
    }
    assert_sound(&t).await;
    let all: BTreeSet<_> = Check::ALL.iter().copied().collect();
    assert_eq!(shown, all, "checks that nothing was shown to");
}

fn put_back(table: &Table) -> String {
    let name = table.name;
    // Only here are there columns that can't be written.
    let columns = match name {
        "session_heads" => {
            let names: Vec<_> = table.columns.iter().map(|column| column.name).collect();
            names.join(", ")
        }
        _ => return format!("DELETE FROM {name}; INSERT INTO {name} SELECT * FROM saved_{name}"),
    };
    format!("DELETE FROM {name}; INSERT INTO {name} ({columns}) SELECT {columns} FROM saved_{name}")
}
