//! The database file itself, read beside a server or after its death.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::api;
use crate::server::{Place, Server};

const FILE: &str = "tapedeck.db";

async fn open(data_dir: &Path, read_only: bool) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(data_dir.join(FILE))
        .read_only(read_only)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap()
}

/// The rows of a statement that gives one text each.
async fn texts(connection: &mut SqliteConnection, statement: &str) -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
    let query = sqlx::query_scalar(AssertSqlSafe(statement.to_owned()));
    query.fetch_all(connection).await.unwrap()
}

/// Runs a statement against a database that no server holds.
pub(crate) async fn change(data_dir: &Path, statement: &str) {
    let mut connection = open(data_dir, false).await;
    run(&mut connection, statement).await;
    connection.close().await.unwrap();
}

/// The rows of a statement that gives one text each, also beside a server.
pub(crate) async fn look(data_dir: &Path, statement: &str) -> Vec<String> {
    let mut connection = open(data_dir, true).await;
    let found = texts(&mut connection, statement).await;
    connection.close().await.unwrap();
    found
}

/// The write lock, held by this process beside a server.
pub(crate) struct WriteLock(SqliteConnection);

impl WriteLock {
    pub(crate) async fn take(data_dir: &Path) -> Self {
        let mut connection = open(data_dir, false).await;
        run(&mut connection, "BEGIN IMMEDIATE").await;
        Self(connection)
    }

    pub(crate) async fn release(mut self) {
        run(&mut self.0, "ROLLBACK").await;
        self.0.close().await.unwrap();
    }
}

async fn run(connection: &mut SqliteConnection, statement: &str) {
    #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    query.execute(connection).await.unwrap();
}

/// What each row of the log has to do with the others.
const RULES: [(&str, &str); 6] = [
    (
        "the file is sound",
        "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
    ),
    (
        "no row lacks what it refers to",
        "SELECT \"table\" FROM pragma_foreign_key_check",
    ),
    (
        "numbers are dense and end at the head",
        "SELECT hex(h.session_id) FROM session_heads h LEFT JOIN \
         (SELECT session_key, count(*) AS events, min(session_seq) AS least, max(session_seq) AS most \
          FROM events GROUP BY session_key) e USING (session_key) \
         WHERE h.head_seq <> coalesce(e.events, 0) OR h.head_seq <> coalesce(e.most, 0) \
            OR coalesce(e.least, 1) <> 1",
    ),
    (
        "a run has at most one terminal event, and exactly one once it is settled",
        "SELECT hex(r.run_id) FROM runs r LEFT JOIN events e ON e.run_key = r.run_key AND e.kind = 'TurnEnd' \
         GROUP BY r.run_key HAVING count(e.event_key) <> (r.settled_seq IS NOT NULL)",
    ),
    (
        "nothing of a run follows its terminal event",
        "SELECT hex(r.run_id) FROM runs r JOIN events e ON e.run_key = r.run_key \
         WHERE e.session_seq > r.settled_seq",
    ),
    (
        "a session has at most one active run",
        "SELECT hex(session_id) FROM run_heads WHERE status <> 'queued' \
         GROUP BY session_key HAVING count(*) > 1",
    ),
];

/// The rules that don't hold, with what breaks them.
async fn broken(data_dir: &Path) -> Vec<(&'static str, Vec<String>)> {
    let mut connection = open(data_dir, true).await;
    let mut broken = Vec::new();
    for (rule, statement) in RULES {
        let rows = texts(&mut connection, statement).await;
        if !rows.is_empty() {
            broken.push((rule, rows));
        }
    }
    connection.close().await.unwrap();
    broken
}

/// Fails unless every rule holds.
pub(crate) async fn check(data_dir: &Path) {
    let broken = broken(data_dir).await;
    assert!(broken.is_empty(), "{broken:?}");
}

/// The check is only worth something if it notices what a lost or doubled write leaves.
#[tokio::test]
async fn the_check_notices_what_is_wrong() {
    let place = std::sync::Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let claim = api::spoken(&server, "check", 10).await;
    claim.complete(server.address).await;
    api::spoken(&server, "check", 10).await;
    server.process.kill().await;
    check(&place.data()).await;
    for (statement, undo) in [
        (
            "DELETE FROM events WHERE session_seq = 5 AND session_key = 2",
            "INSERT INTO events (session_key, session_seq, event_id, kind, payload, created_at, recorded_at) \
             VALUES (2, 5, 'again', 'StreamDelta', '{}', 0, 0)",
        ),
        (
            "UPDATE session_heads SET head_seq = head_seq + 1 WHERE session_key = 2",
            "UPDATE session_heads SET head_seq = head_seq - 1 WHERE session_key = 2",
        ),
        (
            "UPDATE events SET kind = 'Note' WHERE kind = 'TurnEnd'",
            "UPDATE events SET kind = 'TurnEnd' WHERE kind = 'Note'",
        ),
        (
            "UPDATE events SET kind = 'TurnEnd' WHERE event_id = 'e3' AND session_key = 1",
            "UPDATE events SET kind = 'StreamDelta' WHERE event_id = 'e3' AND session_key = 1",
        ),
        (
            "UPDATE runs SET settled_seq = settled_seq - 1 WHERE settled_seq IS NOT NULL",
            "UPDATE runs SET settled_seq = settled_seq + 1 WHERE settled_seq IS NOT NULL",
        ),
    ] {
        change(&place.data(), statement).await;
        assert!(
            !broken(&place.data()).await.is_empty(),
            "unnoticed: {statement}"
        );
        change(&place.data(), undo).await;
        check(&place.data()).await;
    }
}
