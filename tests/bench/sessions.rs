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

/// The first page, and one in the middle.
pub(crate) async fn listing(table: &mut Table) {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    for number in 0..FEW {
        let claim = api::spoken(&server, "list", 3).await;
        if number % 2 == 0 {
            claim.complete(server.address).await;
        }
    }
    let page = server.get("/sessions?limit=50").await.ok();
    let few = pages(
        &server,
        page["sessions"][20]["session_id"].as_str().unwrap(),
    )
    .await;
    server.process.kill().await;
    multiply(&place.data(), MANY - FEW).await;
    server.restart().await;
    let many = pages(&server, &middle()).await;
    for (at, name) in ["first page", "page in the middle"].into_iter().enumerate() {
        let (few, many) = (few[at].percentile(50), many[at].percentile(50));
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
}

/// The cursor before which one half of the copies lies.
fn middle() -> String {
    let time = format!("{:012x}", EPOCH + (MANY / FEW / 2) as u64);
    format!("{}-{}-7000-8000-000000000000", &time[..8], &time[8..])
}

async fn pages(server: &Server, cursor: &str) -> [Samples; 2] {
    let mut connection = Connection::open(server.address).await.unwrap();
    let first = Request::get("/sessions?limit=50");
    let middle = Request::get(format!("/sessions?limit=50&cursor={cursor}"));
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..LISTS {
        for (request, samples) in [&first, &middle].into_iter().zip(&mut samples) {
            let begun = Instant::now();
            let answer = connection.send(request).await.unwrap();
            samples.push(begun.elapsed());
            assert_eq!(answer.ok()["sessions"].as_array().unwrap().len(), 50);
        }
    }
    samples
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
    let copied = of_sessions.replace("session_id", &id);
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
    let rest = of_heads
        .split(", ")
        .filter(|column| *column != "session_id")
        .map(|column| {
            if column == "active_run_key" {
                "NULL".to_owned()
            } else {
                format!("h.{column}")
            }
        })
        .collect::<Vec<_>>()
        .join(", ");
    let of_rest = of_heads.replace("session_id, ", "");
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
