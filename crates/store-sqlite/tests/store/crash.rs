//! What was acknowledged is there after a SIGKILL at any moment.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tapedeck_store::Store as _;
use tapedeck_store_sqlite::{Mode, Options, SqliteStore};
use tempfile::TempDir;

use crate::support::{owner, run, session, session_id};

const DIR: &str = "TAPEDECK_TEST_CRASH_DIR";

/// Not a test by itself: the process that is killed. It says each number only once it is committed.
#[tokio::test]
#[ignore = "run by the test below in a process of its own"]
async fn writer_to_be_killed() {
    #[expect(
        clippy::disallowed_methods,
        reason = "how the test names the directory to its child"
    )]
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    let store = SqliteStore::open(Options::new(dir, Mode::Server))
        .await
        .unwrap();
    for number in 1.. {
        run(&store, move |tx| {
            Box::pin(async move {
                let mut session = session(number);
                session.key = tx.insert_session(&session).await?;
                let head = tapedeck_domain::owner::SessionHead::new(
                    session.key,
                    session.session_id,
                    &owner(),
                    tx.now(),
                );
                Ok(tx.insert_head(&head).await?)
            })
        })
        .await
        .unwrap();
        println!("committed {number}");
    }
}

/// Kills a writer after it has said so many numbers; gives the last one that it said.
fn killed_after(dir: &Path, lines: usize) -> u128 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "crash::writer_to_be_killed"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut said = out
        .lines()
        .map(Result::unwrap)
        .filter_map(|line| line.strip_prefix("committed ")?.parse().ok());
    let mut last = said.by_ref().take(lines).last().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Said before it died, though read after.
    for number in said {
        last = number;
    }
    last
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    for lines in [1, 7, 60] {
        let dir = TempDir::new().unwrap();
        let acknowledged = killed_after(dir.path(), lines);
        assert!(acknowledged >= lines as u128);
        let store = SqliteStore::open(Options::new(dir.path(), Mode::Server))
            .await
            .unwrap();
        for number in 1..=acknowledged {
            let found = store.reader().session("default", session_id(number)).await;
            assert!(
                found.unwrap().is_some(),
                "session {number} of {acknowledged}"
            );
        }
        store.close().await;
    }
}
