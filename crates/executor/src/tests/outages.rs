use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{LEASE, start, start_with, until_stopped};
use crate::backend::{AgentEvent, OutcomeStatus};
use crate::config::{EveryRun, Options};
use crate::executor::{Executor, Shutdown};
use crate::testing::{FakeServer, Fault, ScriptedAgent, claim, outcome, piece};

/// Says one piece a second until it is stopped, and tells when that is.
fn talking_agent(stopped: mpsc::Sender<Instant>) -> Arc<ScriptedAgent> {
    ScriptedAgent::new(move |_, io| {
        let stopped = stopped.clone();
        async move {
            let talk = async {
                for number in 0.. {
                    io.events.send(piece(number)).await.unwrap();
                    sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::select! {
                biased;
                () = io.kill.cancelled() => {}
                () = talk => {}
            }
            stopped.send(Instant::now()).await.unwrap();
            outcome(OutcomeStatus::Cancelled)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_34_s_is_invisible_to_the_agent() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        for number in 0..120 {
            io.events.send(piece(number)).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            assert!(!io.kill.is_cancelled(), "killed after {number} s");
        }
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    // Worst case: it begins right before a heartbeat.
    sleep(Duration::from_millis(39_900)).await;
    server.fail("*", Fault::Unreachable);
    sleep(Duration::from_secs(34)).await;
    server.heal();
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "completed");
    assert_eq!(end["event_count"], 121);
    assert_eq!(running.text(), "x".repeat(120));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_kills_the_agent_in_time_and_hands_the_run_back() {
    let server = FakeServer::new(LEASE);
    let (sent, mut times) = mpsc::channel(1);
    let running = start(&server, talking_agent(sent));
    server.wait_for("events", 1).await;
    sleep(Duration::from_secs(50)).await;
    server.fail("*", Fault::Unreachable);
    let killed = times.recv().await.unwrap();
    let renewed = server.seen("heartbeat").last().unwrap().at;
    let margin = (renewed + LEASE).checked_duration_since(killed).unwrap();
    assert_eq!(
        margin.as_secs(),
        5,
        "the tree has time to die before the lease ends"
    );
    let before = server.all_seen().len();
    sleep(Duration::from_mins(5)).await;
    server.heal();
    let end = server.wait_for_end().await;
    assert_eq!(end["status"], "interrupted");
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("could not renew its lease"), "{error}");
    assert_eq!(end["agent_state"]["session_id"], "remembered");
    let said = server.events().len() as u64;
    assert_eq!(end["event_count"], said);
    assert!(said > 50, "what it said before it was stopped is kept");
    // As the run's holder it only delivers and hands back.
    let after: Vec<_> = server.all_seen().split_off(before);
    let own = after.iter().filter(|seen| seen.what != "claim");
    assert!(
        own.clone()
            .all(|seen| ["events", "complete"].contains(&seen.what.as_str()))
    );
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_output_a_run_is_released_after_the_outage() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move { until_stopped(&io).await });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    server.fail("*", Fault::Unreachable);
    sleep(Duration::from_mins(2)).await;
    server.heal();
    server.wait_for("release", 1).await;
    assert_eq!(server.seen("complete").len(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_no_better_than_none() {
    let server = FakeServer::new(LEASE);
    let (sent, mut times) = mpsc::channel(1);
    let running = start(&server, talking_agent(sent));
    server.wait_for("events", 1).await;
    server.fail("*", Fault::Silence);
    let silent = Instant::now();
    let killed = times.recv().await.unwrap() - silent;
    assert!(killed <= Duration::from_secs(55), "{killed:?}");
    running.shutdown.now.cancel();
    let drained = running.task.await.unwrap().unwrap();
    assert_eq!(drained.lost, 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_in_the_outage_keeps_its_own_end() {
    let server = FakeServer::new(LEASE);
    let agent = ScriptedAgent::new(|_, io| async move {
        io.events.send(piece(1)).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        io.events.send(piece(2)).await.unwrap();
        outcome(OutcomeStatus::Completed)
    });
    let running = start(&server, agent);
    server.wait_for("events", 1).await;
    server.fail("*", Fault::Unreachable);
    sleep(Duration::from_mins(3)).await;
    server.heal();
    assert_eq!(server.wait_for_end().await["status"], "completed");
    assert_eq!(running.text(), "xx");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_spool_makes_the_agent_wait_and_nothing_is_lost() {
    const PIECES: u32 = 400;
    let said = Arc::new(AtomicU32::new(0));
    let server = FakeServer::new(Duration::from_mins(5));
    let count = Arc::clone(&said);
    let agent = ScriptedAgent::new(move |_, io| {
        let count = Arc::clone(&count);
        async move {
            for number in 0..PIECES {
                let mut event: AgentEvent = piece(number);
                event.payload["pad"] = "p".repeat(64 * 1024).into();
                io.events.send(event).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            outcome(OutcomeStatus::Completed)
        }
    });
    let small = |options: &mut Options| options.spool_bytes = 1024 * 1024;
    let running = start_with(&server, agent, small);
    server.fail("events", Fault::Unreachable);
    sleep(Duration::from_mins(1)).await;
    let held = said.load(Ordering::Relaxed);
    // The queue, an open batch, and what fits into the spool with one batch more.
    assert!((256..256 + 4 + 24 + 4).contains(&held), "{held}");
    server.heal();
    let end = server.wait_for_end().await;
    assert_eq!(end["event_count"], u64::from(PIECES) + 1);
    assert_eq!(running.text().len(), PIECES as usize);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_stays_full_makes_the_agent_wait_and_then_ends_the_run_with_the_reason() {
    let server = FakeServer::new(LEASE);
    let (sent, mut times) = mpsc::channel(1);
    let begun = Instant::now();
    let full = |options: &mut Options| {
        let folder = options.state_dir.join("spool").join(&options.instance_id);
        std::fs::create_dir_all(&folder).unwrap();
        let claim = claim(1);
        let spool = folder.join(format!("{}-{}.events", claim.run_id, claim.attempt));
        std::os::unix::fs::symlink("/dev/full", spool).unwrap();
    };
    let running = start_with(&server, talking_agent(sent), full);
    let killed = times.recv().await.unwrap() - begun;
    assert!((30..40).contains(&killed.as_secs()), "{killed:?}");
    let end = server.wait_for_end().await;
    assert_eq!(
        (&end["status"], &end["event_count"]),
        (&"failed".into(), &0.into())
    );
    let error = end["error"].as_str().unwrap();
    assert!(
        error.contains("spool") && error.contains("No space left"),
        "{error}"
    );
    running.stop().await;
}

/// Real time: the runtime of the executor has one thread, and the agent's backend blocks it.
#[tokio::test]
async fn heartbeats_go_on_while_the_workers_are_blocked() {
    let server = FakeServer::new(Duration::from_millis(900));
    server.offer(claim(1));
    let agent = ScriptedAgent::new(|_, io| async move {
        std::thread::sleep(Duration::from_secs(2));
        tokio::task::yield_now().await;
        assert!(!io.kill.is_cancelled());
        outcome(OutcomeStatus::Completed)
    });
    let dir = tempfile::tempdir().unwrap();
    let backends = Arc::new(EveryRun(agent));
    let options = Options::new(server.client(), "box", dir.path(), backends);
    let shutdown = Shutdown::default();
    let executor = Executor::new(options).unwrap();
    let run = executor.run(shutdown.clone());
    let ended = async {
        let end = server.wait_for_end().await;
        shutdown.drain.cancel();
        end
    };
    let (drained, end) = tokio::join!(run, ended);
    drained.unwrap();
    assert_eq!(end["status"], "completed");
    let beats = server.seen("heartbeat").len();
    assert!(beats >= 6, "{beats}");
}
