//! One directory, one server: who may open the database, and who is told what (rules R8).

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::api::{self, session_in};
use crate::database;
use crate::server::{Place, Server};
use crate::wait::within;

const NEWER: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (9999, 'from the future', 1, x'00', 0)";

#[tokio::test]
async fn a_second_server_is_refused_and_told_who_holds_the_directory() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let link = place.path("link");
    std::os::unix::fs::symlink(place.data(), &link).unwrap();
    // Equivalent paths are one database.
    for data in [
        place.data().to_str().unwrap(),
        link.to_str().unwrap(),
        "../data",
        "~/../data",
    ] {
        let second = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data];
        let refused = place.run(&second).await.exits(4);
        assert!(
            refused.err.contains(&server.process.pid.to_string()),
            "{}",
            refused.err
        );
    }
    assert_eq!(server.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_command_finds_the_server_that_holds_its_directory() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    let session = session_in(server.address, "p").await;
    let data = place.data();
    let list = [
        "sessions",
        "list",
        "--json",
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let ids = |output: &crate::server::Output| {
        let sessions = output.json_lines()[0]["sessions"]
            .as_array()
            .unwrap()
            .clone();
        sessions
            .iter()
            .map(|session| api::text(session, "session_id"))
            .collect::<Vec<_>>()
    };
    let by_server = place.run(&list).await.exits(0);
    assert_eq!(ids(&by_server), std::slice::from_ref(&session));
    // What a dead server left behind misleads nobody: the command works on the directory itself.
    server.process.kill().await;
    assert!(data.join("server.json").exists());
    let by_itself = place.run(&list).await.exits(0);
    assert_eq!(ids(&by_itself), [session]);
    // And a server that ends in good order leaves nothing.
    server.restart().await;
    let status = server.process.terminate(Duration::from_secs(25)).await;
    assert!(status.success());
    assert!(!data.join("server.json").exists());
    place.run(&list).await.exits(0);
}

#[tokio::test]
async fn a_newer_schema_is_refused_in_plain_words() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    server.process.kill().await;
    database::change(&place.data(), NEWER).await;
    let data = place.data();
    let data = data.to_str().unwrap();
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "--data-dir", data][..],
        &["sessions", "list", "--data-dir", data][..],
    ] {
        let refused = place.run(arguments).await.exits(4);
        assert!(
            refused.err.contains("9999") && refused.err.contains("newer"),
            "{}",
            refused.err
        );
    }
}

#[tokio::test]
async fn a_killed_server_starts_again_on_what_it_left() {
    let place = Arc::new(Place::new());
    let mut server = Server::start(&place).await;
    for _ in 0..3 {
        session_in(server.address, "p").await;
        server.process.kill().await;
        database::check(&place.data()).await;
        server.restart().await;
    }
    assert_eq!(
        api::list(server.address, "/sessions", "sessions")
            .await
            .len(),
        3
    );
}

/// Another process may hold the file's write lock for a while, e.g. to copy it (faults 20).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_for_the_lock_of_another_process() {
    let place = Arc::new(Place::new());
    let server = Server::start(&place).await;
    let address = server.address;
    let claim = api::spoken(&server, "lock", 5).await;
    let held = database::WriteLock::take(&place.data()).await;
    let mut writes = JoinSet::new();
    for number in 0..20 {
        let claim = claim.clone();
        writes.spawn(async move {
            let event = api::words(&format!("late-{number}"), "waits");
            claim.upload(address, &[event]).await;
        });
    }
    // Readers go on meanwhile, and no write is answered before it is done.
    for _ in 0..20 {
        let log = api::log(address, &claim.session_id).await;
        assert!(
            log.iter()
                .all(|event| event["payload"]["content"] != "waits")
        );
    }
    assert!(writes.try_join_next().is_none());
    held.release().await;
    while let Some(written) =
        within("writes end", Duration::from_secs(30), writes.join_next()).await
    {
        written.unwrap();
    }
    let log = api::log(address, &claim.session_id).await;
    assert_eq!(
        log.iter()
            .filter(|event| event["payload"]["content"] == "waits")
            .count(),
        20
    );
    api::assert_dense(&log);
}
