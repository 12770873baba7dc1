//! What operators do with a database as a whole: look whether it is sound, copy it, move it.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use crate::api::{self, Claim, session_in, text};
use crate::database;
use crate::server::{Output, Place, Server};
use crate::wait::within;

on_both_stores![
    doctor_finds_nothing_while_a_server_works,
    an_export_moves_a_working_database_to_the_other_store,
    an_import_is_all_or_nothing,
];

const LIMIT: Duration = Duration::from_mins(1);

/// Runs a command on the place's database.
async fn on_database(place: &Place, arguments: &[&str]) -> Output {
    fed(place, arguments, None).await
}

/// The same with something on stdin.
async fn fed(place: &Place, arguments: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = place.command(arguments);
    place.name_database(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().unwrap();
    if let Some(input) = input {
        let mut stdin = child.stdin.take().unwrap();
        // A command that refuses what it reads doesn't read to the end.
        let _refused = stdin.write_all(input).await;
    }
    let output = within("a command", LIMIT, child.wait_with_output()).await;
    Output::of(&arguments.join(" "), &output.unwrap())
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The names of the checks with findings.
fn broken(report: &Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .filter(|check| check["result"] != "ok")
        .map(|check| check["check"].as_str().unwrap())
        .collect()
}

/// Uploads to a claim's run until told to stop.
struct Writes {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<u64>,
}

impl Writes {
    fn start(address: SocketAddr, claims: &[Claim]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for claim in claims {
            let (claim, stop) = (claim.clone(), Arc::clone(&stop));
            tasks.spawn(async move {
                let mut written = 0;
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("w{written}");
                    claim.upload(address, &[api::words(&id, "more ")]).await;
                    written += 1;
                }
                written
            });
        }
        Self { stop, tasks }
    }

    /// How many events there were.
    async fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut written = 0;
        while let Some(done) = self.tasks.join_next().await {
            written += done.unwrap();
        }
        written
    }
}

async fn doctor_finds_nothing_while_a_server_works(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let claims = [
        api::spoken(&server, "a", 20).await,
        api::spoken(&server, "b", 20).await,
    ];
    let writes = Writes::start(server.address, &claims);
    for _ in 0..5 {
        let looked = on_database(&place, &["doctor", "--json"]).await.exits(0);
        let report = &looked.json_lines()[0];
        assert_eq!((&report["findings"], broken(report)), (&json!(0), vec![]));
    }
    assert!(writes.stop().await > 0);
    let told = on_database(&place, &["doctor"]).await.exits(0);
    assert!(
        told.out.starts_with("CHECK") && told.out.contains("log_numbers"),
        "{}",
        told.out
    );
    on_database(&place, &["storage", "check"]).await.exits(0);
    // Nobody needs to be there, and what a kill leaves is sound.
    server.process.kill().await;
    on_database(&place, &["doctor"]).await.exits(0);
    server.restart().await;
    assert!(
        !server.process.log().contains("audit."),
        "a sound database starts in silence"
    );
    on_database(&place, &["doctor"]).await.exits(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_what_is_wrong_and_a_starting_server_does_too() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let claim = api::spoken(&server, "p", 20).await;
    server.process.kill().await;
    database::change(&place.data(), "DELETE FROM events WHERE event_id = 'e7'").await;
    let look = ["doctor", "--json"];
    let report = on_database(&place, &look)
        .await
        .exits(8)
        .json_lines()
        .remove(0);
    assert_eq!(broken(&report), ["log_numbers"]);
    let checks = report["checks"].as_array().unwrap();
    let found = checks
        .iter()
        .find(|check| check["result"] == "broken")
        .unwrap();
    assert_eq!(
        found["findings"][0]["session_id"],
        claim.session_id.as_str()
    );
    let told = on_database(&place, &["storage", "check"]).await.exits(8);
    assert!(
        told.out.contains(&format!("session {}", claim.session_id)),
        "{}",
        told.out
    );
    // A server starts all the same, tells what it found of live rows, and repairs nothing.
    server.restart().await;
    assert!(
        !server.process.log().contains("audit.finding"),
        "{}",
        server.process.log()
    );
    server.process.kill().await;
    database::change(&place.data(), "UPDATE run_heads SET instance_id = 'other'").await;
    server.restart().await;
    let log = server.process.log();
    assert!(
        log.contains("audit.finding") && log.contains(&claim.run_id),
        "{log}"
    );
    let report = on_database(&place, &look)
        .await
        .exits(8)
        .json_lines()
        .remove(0);
    assert_eq!(broken(&report), ["log_numbers", "claims"]);
}

#[tokio::test]
async fn doctor_says_why_it_cannot_look() {
    let place = Place::new();
    let nothing = on_database(&place, &["doctor"]).await.exits(3);
    assert!(
        nothing.err.contains("there is no database"),
        "{}",
        nothing.err
    );
    let left = std::fs::read_dir(place.data()).unwrap().count();
    assert_eq!(left, 0, "who looks makes nothing");
    let elsewhere = ["doctor", "--server", "http://127.0.0.1:1"];
    place.run(&elsewhere).await.exits(2);
    let away = ["doctor", "--database", "postgres://nobody@127.0.0.1:1/none"];
    place.run(&away).await.exits(5);
    on_database(&place, &["sessions", "list"]).await.exits(0);
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'from the future', 1, x'00', 0)";
    database::change(&place.data(), newer).await;
    on_database(&place, &["doctor"]).await.exits(4);
    database::change(
        &place.data(),
        "DELETE FROM _sqlx_migrations WHERE version > 1",
    )
    .await;
    let older = on_database(&place, &["doctor"]).await.exits(4);
    assert!(older.err.contains("brings it up to date"), "{}", older.err);
}

/// Bytes of a page of SQLite.
const PAGE: usize = 4096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_a_damaged_file_and_what_it_cannot_read_in_it() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    api::spoken(&server, "p", 200).await;
    server.process.terminate(Duration::from_secs(30)).await;
    let file = place.data().join("tapedeck.db");
    // A disk gave a page of the log back as zeros.
    let mut torn = std::fs::read(&file).unwrap();
    let word = b"StreamDelta";
    let at = torn.windows(word.len()).position(|bytes| bytes == word);
    let page = at.unwrap() / PAGE * PAGE;
    torn[page..page + PAGE].fill(0);
    std::fs::write(&file, &torn).unwrap();
    let report = on_database(&place, &["doctor", "--json"])
        .await
        .exits(8)
        .json_lines()
        .remove(0);
    let found = broken(&report);
    assert!(found.contains(&"file_is_sound"), "{found:?}");
    assert!(found.contains(&"readable"), "{found:?}");
    // No database at all.
    std::fs::write(&file, "not a database, however long it is. ".repeat(100)).unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    for command in [&["doctor"][..], &["storage", "check"], &serve] {
        let told = on_database(&place, command).await.exits(8);
        assert!(
            told.err.contains("is damaged") && told.err.contains("tapedeck.db"),
            "{}",
            told.err
        );
    }
}

/// Only a data directory has a file to copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment_while_writes_go_on() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let claim = api::spoken(&server, "a", 500).await;
    let other = api::spoken(&server, "b", 20).await;
    let writes = Writes::start(server.address, &[claim.clone(), other]);
    let target = place.path("it's a backup.db");
    let backup = ["storage", "backup", name(&target), "--json"];
    let made = on_database(&place, &backup)
        .await
        .exits(0)
        .json_lines()
        .remove(0);
    assert!(writes.stop().await > 0);
    let facts = std::fs::metadata(&target).unwrap();
    assert_eq!(facts.permissions().mode() & 0o777, 0o600);
    assert_eq!(made["bytes"], facts.len());
    let again = on_database(&place, &backup).await.exits(4);
    assert!(again.err.contains("overwrites nothing"), "{}", again.err);
    let mut names: Vec<_> = std::fs::read_dir(target.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("backup"))
        .collect();
    names.sort();
    assert_eq!(names, ["it's a backup.db"], "nothing else is left");
    on_database(&place, &["storage", "check", name(&target)])
        .await
        .exits(0);

    // Put where a server finds it, it goes on from its own moment.
    let there = Arc::new(Place::new());
    std::fs::copy(&target, there.data().join("tapedeck.db")).unwrap();
    let copy = Server::start(&there).await;
    let before = api::log(server.address, &claim.session_id).await;
    let kept = api::log(copy.address, &claim.session_id).await;
    api::assert_dense(&kept);
    assert!(kept.len() > 500 && kept.len() <= before.len());
    assert_eq!(kept[..], before[..kept.len()]);
    on_database(&there, &["doctor"]).await.exits(0);
    let summary = |address| {
        let path = format!("/sessions/{}", claim.session_id);
        async move { crate::http::Request::get(path).send(address).await.ok() }
    };
    let (original, restored) = (summary(server.address).await, summary(copy.address).await);
    assert_ne!(original["log_id"], restored["log_id"], "it is another log");
    assert_eq!(restored["log_id"], made["log_id"]);
    // The run goes on there, too.
    claim
        .upload(copy.address, &[api::words("after", "restored")])
        .await;
    claim.complete(copy.address).await;
}

#[tokio::test]
async fn a_backup_of_a_database_on_postgresql_is_refused_with_what_does_it() {
    let place = Place::on_postgres().await;
    let target = place.path("copy.db");
    let refused = on_database(&place, &["storage", "backup", name(&target)])
        .await
        .exits(2);
    assert!(refused.err.contains("pg_dump"), "{}", refused.err);
}

/// A place on the store that this one is not on.
async fn the_other(place: &Place) -> Arc<Place> {
    Arc::new(if place.is_on_postgres() {
        Place::new()
    } else {
        Place::on_postgres().await
    })
}

async fn an_export_moves_a_working_database_to_the_other_store(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let claim = api::spoken(&server, "a", 1_200).await;
    let idle = session_in(server.address, "b").await;
    let (waits, _) = api::prompt(server.address, &idle, "wait").await;
    let file = place.path("all.jsonl");
    let writes = Writes::start(server.address, &[api::spoken(&server, "c", 10).await]);
    let export = ["storage", "export", name(&file), "--json"];
    let made = on_database(&place, &export)
        .await
        .exits(0)
        .json_lines()
        .remove(0);
    writes.stop().await;
    assert!(made["rows"].as_u64().unwrap() > 1_200, "{made}");
    let rights = std::fs::metadata(&file).unwrap().permissions();
    assert_eq!(rights.mode() & 0o777, 0o600);
    on_database(&place, &export).await.exits(4);
    server.process.kill().await;

    let there = the_other(&place).await;
    let import = ["storage", "import", name(&file), "--json"];
    let taken = on_database(&there, &import)
        .await
        .exits(0)
        .json_lines()
        .remove(0);
    assert_eq!(taken["rows"], made["rows"]);
    on_database(&there, &["doctor"]).await.exits(0);
    let moved = Server::start(&there).await;
    let log = api::log(moved.address, &claim.session_id).await;
    api::assert_dense(&log);
    assert_eq!(
        log.iter()
            .filter(|event| event["kind"] == "StreamDelta")
            .count(),
        1_200
    );
    // The executor goes on with the claim it has, and what waited is claimed.
    claim
        .upload(moved.address, &[api::words("after", "moved")])
        .await;
    claim.complete(moved.address).await;
    assert_eq!(Claim::take(moved.address, "b").await.run_id, waits);
    on_database(&there, &["doctor"]).await.exits(0);
    // And by a pipe.
    let out = on_database(&there, &["storage", "export", "-"])
        .await
        .exits(0)
        .out;
    let back = Place::new();
    let import = ["storage", "import", "-"];
    fed(&back, &import, Some(out.as_bytes())).await.exits(0);
    on_database(&back, &["doctor"]).await.exits(0);
}

async fn an_import_is_all_or_nothing(place: Arc<Place>) {
    let source = Arc::new(Place::new());
    let mut server = Server::start(&source).await;
    let claim = api::spoken(&server, "a", 50).await;
    server.process.kill().await;
    let whole = on_database(&source, &["storage", "export", "-"])
        .await
        .exits(0)
        .out;
    let import = ["storage", "import", "-"];
    let lines: Vec<_> = whole.lines().collect();
    let cut = lines[..lines.len() - 1].join("\n");
    let half = &whole[..whole.len() / 2];
    let changed = whole.replacen("49\\\\n", "50\\\\n", 1);
    assert_ne!(changed, whole);
    let newer = whole.replacen("\"version\":1", "\"version\":7", 1);
    for (broken, why) in [
        (cut.as_str(), "cut off"),
        (half, "line"),
        (changed.as_str(), "was changed"),
        (newer.as_str(), "form 7"),
        ("", "no export"),
        ("{\"some\": \"json\"}\n", "no export"),
    ] {
        let refused = fed(&place, &import, Some(broken.as_bytes())).await.exits(2);
        assert!(refused.err.contains(why), "{why}: {}", refused.err);
    }
    on_database(&place, &["storage", "import", "nowhere.jsonl"])
        .await
        .exits(3);
    fed(&place, &import, Some(whole.as_bytes())).await.exits(0);
    let twice = fed(&place, &import, Some(whole.as_bytes())).await.exits(4);
    assert!(twice.err.contains("empty database"), "{}", twice.err);
    let there = Server::start(&place).await;
    let log = api::log(there.address, &claim.session_id).await;
    assert_eq!(text(log.last().unwrap(), "event_id"), "e49");
    on_database(&place, &["doctor"]).await.exits(0);
    // With the server there, too.
    fed(&place, &import, Some(whole.as_bytes())).await.exits(4);
}
