//! An executor that dies, and the next one on its state directory. Its death is the drop of all it
//! was doing, which runs no more of its code than SIGKILL lets run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tapedeck_protocol::ErrorCode;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::LEASE;
use crate::backend::{Backend, OutcomeStatus};
use crate::config::{EveryRun, ExecutorError, Options};
use crate::executor::{Drained, Executor, Shutdown};
use crate::testing::{FakeServer, Fault, ScriptedAgent, claim, outcome, piece};

fn start(
    server: &FakeServer,
    dir: &Path,
    agent: Arc<dyn Backend>,
) -> (Shutdown, JoinHandle<Result<Drained, ExecutorError>>) {
    let backends = Arc::new(EveryRun(agent));
    let options = Options::new(server.client(), "box", dir, backends);
    let shutdown = Shutdown::default();
    let executor = Executor::new(options).unwrap();
    let run = executor.run_with(Handle::current(), shutdown.clone());
    (shutdown, Handle::current().spawn(run))
}

/// Says one piece a second and never ends.
fn talking() -> Arc<ScriptedAgent> {
    ScriptedAgent::new(|_, io| async move {
        for number in 0.. {
            if io.events.send(piece(number)).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        outcome(OutcomeStatus::Cancelled)
    })
}

fn idle() -> Arc<ScriptedAgent> {
    ScriptedAgent::new(|_, _| async move { panic!("there is nothing to run") })
}

async fn die(task: JoinHandle<Result<Drained, ExecutorError>>) {
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

/// Ends an executor that has nothing to do.
async fn end(shutdown: Shutdown, task: JoinHandle<Result<Drained, ExecutorError>>) {
    shutdown.drain.cancel();
    assert_eq!(task.await.unwrap().unwrap(), Drained::default());
}

fn text(server: &FakeServer) -> String {
    let events = server.events().into_iter();
    events
        .filter_map(|(_, event)| event["data"]["content"].as_str().map(str::to_owned))
        .collect()
}

fn files_in(dir: &Path) -> usize {
    let folders = std::fs::read_dir(dir.join("spool")).unwrap();
    folders
        .map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count())
        .sum()
}

#[tokio::test(start_paused = true)]
async fn what_was_spooled_is_delivered_unchanged_and_the_run_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::new(LEASE);
    server.offer(claim(1));
    // The first batch arrives, its answer does not; then nothing arrives.
    server.fail_next("events", &[Fault::LostAnswer]);
    let (_, task) = start(&server, dir.path(), talking());
    server.wait_for("events", 1).await;
    server.fail("events", Fault::Unreachable);
    sleep(Duration::from_secs(10)).await;
    die(task).await;
    let spooled = std::fs::read_dir(dir.path().join("spool")).unwrap().count();
    assert_eq!((spooled, server.end()), (1, None));

    server.heal();
    let (shutdown, task) = start(&server, dir.path(), idle());
    let settled = server.wait_for_end().await;
    assert_eq!(settled["status"], "interrupted");
    assert_eq!(settled["error"], "the executor was restarted");
    let events = server.events();
    assert_eq!(settled["event_count"], events.len());
    // What it had said in ten seconds, but for the last words that were not sealed yet.
    let said = text(&server);
    assert!((8..=11).contains(&said.len()), "{said}");
    let sent = server.seen("events");
    assert_eq!(sent[0].body, sent[1].body, "the same bytes again");
    end(shutdown, task).await;
    assert_eq!(files_in(dir.path()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_had_nothing_spooled_is_interrupted_without_a_count() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::new(LEASE);
    server.offer(claim(1));
    let silent = ScriptedAgent::new(|_, io| async move {
        io.kill.cancelled().await;
        outcome(OutcomeStatus::Cancelled)
    });
    let (_, task) = start(&server, dir.path(), silent);
    server.wait_for("events", 1).await;
    sleep(Duration::from_secs(5)).await;
    die(task).await;
    let (shutdown, task) = start(&server, dir.path(), idle());
    let settled = server.wait_for_end().await;
    assert_eq!(settled["status"], "interrupted");
    assert_eq!(settled["event_count"], Value::Null);
    end(shutdown, task).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_over_is_not_spoken_for_and_its_spool_goes() {
    for action in ["events", "complete"] {
        let dir = tempfile::tempdir().unwrap();
        let server = FakeServer::new(LEASE);
        server.offer(claim(1));
        server.fail("events", Fault::Unreachable);
        let (_, task) = start(&server, dir.path(), talking());
        server.wait_for("heartbeat", 2).await;
        sleep(Duration::from_secs(5)).await;
        die(task).await;

        server.heal();
        server.fail(action, Fault::Refused(ErrorCode::ClaimLost));
        let (shutdown, task) = start(&server, dir.path(), idle());
        server.wait_for(action, 1).await;
        end(shutdown, task).await;
        assert_eq!(server.end(), None);
        assert_eq!(server.seen(action).len(), 1, "stopped at once");
        assert_eq!(files_in(dir.path()), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_reported_is_left_to_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::new(LEASE);
    server.offer(claim(1));
    let (_, task) = start(&server, dir.path(), talking());
    server.wait_for("events", 2).await;
    server.fail("*", Fault::Unreachable);
    sleep(Duration::from_secs(5)).await;
    die(task).await;
    let (shutdown, task) = start(&server, dir.path(), idle());
    sleep(Duration::from_mins(2)).await;
    shutdown.drain.cancel();
    task.await.unwrap().unwrap();
    assert_eq!((files_in(dir.path()), server.end()), (2, None));

    server.heal();
    let (shutdown, task) = start(&server, dir.path(), idle());
    assert_eq!(server.wait_for_end().await["status"], "interrupted");
    end(shutdown, task).await;
    assert_eq!(files_in(dir.path()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_was_cut_off_was_never_sent_and_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::new(LEASE);
    server.offer(claim(1));
    server.fail("events", Fault::Unreachable);
    let (_, task) = start(&server, dir.path(), talking());
    server.wait_for("heartbeat", 2).await;
    sleep(Duration::from_secs(5)).await;
    die(task).await;
    let mut folders = std::fs::read_dir(dir.path().join("spool")).unwrap();
    let files = std::fs::read_dir(folders.next().unwrap().unwrap().path()).unwrap();
    let events = files
        .map(|file| file.unwrap().path())
        .find(|path| path.extension().is_some_and(|is| is == "events"))
        .unwrap();
    let file = std::fs::File::options().write(true).open(&events).unwrap();
    let whole = std::fs::read_to_string(&events).unwrap();
    assert!(whole.lines().count() >= 1);
    std::io::Write::write_all(&mut &file, whole.as_bytes()).unwrap();
    std::io::Write::write_all(&mut &file, b"[{\"event_id\":\"1-99\",\"ev").unwrap();

    server.heal();
    let (shutdown, task) = start(&server, dir.path(), idle());
    let settled = server.wait_for_end().await;
    assert_eq!(settled["status"], "interrupted");
    assert_eq!(settled["event_count"], server.events().len());
    end(shutdown, task).await;
}
