//! The list of sessions with few and with many of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::api;
use crate::http::{Connection, Request};
use crate::server::{Place, Server};
use crate::table::{Samples, Table};

const FEW: usize = 100;
const MANY: usize = 100_000;
const LISTS: usize = 400;
/// The time in the identifiers of copies, in milliseconds; as with real ones it grows from session
/// to session, so that the newest lie together.
const EPOCH: u64 = 2_000_000_000_000;

/// The first page, and one in the middle, of a server with few sessions and of one with many. Both
/// are asked in turn, so that whatever else the machine does meets both.
pub(crate) async fn listing(table: &mut Table) {
    let (place, grown) = (Arc::new(Place::new()), Arc::new(Place::new()));
    let mut few = Server::start(&place).await;
    for number in 0..FEW {
        let claim = api::spoken(&few, "list", 3).await;
        if number % 2 == 0 {
            claim.complete(few.address).await;
        }
    }
    let page = few.get("/sessions?limit=50").await.ok();
    let cursor = page["sessions"][20]["session_id"].as_str().unwrap();
    few.process.kill().await;
    for file in ["tapedeck.db", "tapedeck.db-wal"] {
        std::fs::copy(place.data().join(file), grown.data().join(file)).unwrap();
    }
    multiply(&grown.data(), MANY - FEW).await;
    few.restart().await;
    let many = Server::start(&grown).await;
    measure_page(table, "first page", [&few, &many], ["", ""]).await;
    let cursors = [format!("&cursor={cursor}"), format!("&cursor={}", middle())];
    let cursors = cursors.each_ref().map(String::as_str);
    measure_page(table, "page in the middle", [&few, &many], cursors).await;
}

/// The cursor before which one half of the copies lies.
fn middle() -> String {
    let time = format!("{:012x}", EPOCH + (MANY / FEW / 2) as u64);
    format!("{}-{}-7000-8000-000000000000", &time[..8], &time[8..])
}

async fn measure_page(table: &mut Table, name: &str, servers: [&Server; 2], cursors: [&str; 2]) {
    let mut asked = Vec::new();
    for (server, cursor) in servers.into_iter().zip(cursors) {
        let connection = Connection::open(server.address).await.unwrap();
        let request = Request::get(format!("/sessions?limit=50{cursor}"));
        asked.push((connection, request, Samples::default()));
    }
    for _ in 0..LISTS {
        for (connection, request, samples) in &mut asked {
            let begun = Instant::now();
            let answer = connection.send(request).await.unwrap();
            samples.push(begun.elapsed());
            assert_eq!(answer.ok()["sessions"].as_array().unwrap().len(), 50);
        }
    }
    let [few, many] = [0, 1].map(|at: usize| asked[at].2.percentile(50));
    table.value(
        &format!("list of {FEW} sessions, {name}, p50"),
        format!("{few:.2} ms"),
    );
    table.value(
        &format!("list of {MANY} sessions, {name}, p50"),
        format!("{many:.2} ms"),
    );
    table.at_most(
        &format!("list of sessions, {name}, many to few"),
        many / few,
        1.5,
        "x",
    );
}

/// Copies of the sessions that are there, under identifiers of their own.
async fn multiply(data_dir: &Path, count: usize) {
    let mut connection = SqliteConnectOptions::new()
        .filename(data_dir.join("tapedeck.db"))
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    let of_sessions = columns(&mut connection, "sessions").await;
    let id = format!("unhex(printf('%012x70008%015x', {EPOCH} + number, session_key))");
    let copied = of_sessions
        .split(", ")
        .map(|column| if column == "session_id" { &id } else { column })
        .collect::<Vec<_>>()
        .join(", ");
    let templates = format!("SELECT session_key FROM sessions ORDER BY session_key LIMIT {FEW}");
    run(
        &mut connection,
        &format!(
            "WITH RECURSIVE copies (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM copies WHERE number < {}) \
             INSERT INTO sessions ({of_sessions}) SELECT {copied} FROM sessions, copies WHERE session_key IN ({templates}) ORDER BY number, session_key",
            count.div_ceil(FEW)
        ),
    )
    .await;
    let of_heads = columns(&mut connection, "session_heads").await;
    let of_rest: Vec<_> = of_heads
        .split(", ")
        .filter(|column| *column != "session_id")
        .collect();
    let rest = of_rest
        .iter()
        .map(|column| {
            if *column == "active_run_key" {
                "NULL".to_owned()
            } else {
                format!("h.{column}")
            }
        })
        .collect::<Vec<_>>()
        .join(", ");
    let of_rest = of_rest.join(", ");
    run(
        &mut connection,
        &format!(
            "INSERT INTO session_heads (session_key, session_id, {of_rest}) \
             SELECT s.session_key, s.session_id, {rest} FROM sessions s, session_heads h \
             WHERE h.session_key = (SELECT min(session_key) FROM session_heads) \
               AND s.session_key NOT IN (SELECT session_key FROM session_heads)"
        ),
    )
    .await;
    connection.close().await.unwrap();
}

/// A table's columns but its key.
async fn columns(connection: &mut SqliteConnection, table: &str) -> String {
    let statement = format!(
        "SELECT group_concat(name, ', ') FROM pragma_table_info('{table}') WHERE name <> 'session_key'"
    );
    #[expect(clippy::disallowed_methods, reason = "a measurement's own statement")]
    let query = sqlx::query_scalar(AssertSqlSafe(statement));
    query.fetch_one(connection).await.unwrap()
}

async fn run(connection: &mut SqliteConnection, statement: &str) {
    #[expect(clippy::disallowed_methods, reason = "a measurement's own statement")]
    let query = sqlx::query(AssertSqlSafe(statement.to_owned()));
    query.execute(connection).await.unwrap();
}
