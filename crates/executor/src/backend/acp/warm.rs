//! Agents that stay between two runs of a session. It owns them from the good end of one run to the
//! begin of the next: nobody holds a lease then, so they live by this process's own pulse, their
//! workspace is free for anybody, and whoever takes it ends them. An agent must never be handed to
//! a run that wants anything else than it was left with.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::fs::File;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::session::Opened;
use super::{AcpOptions, Agent};
use crate::backend::{AgentSettings, Turn};

/// How long a resting agent outlives this process's last pulse, should it freeze.
const PULSE: Duration = Duration::from_secs(15);

/// What an agent was left with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Left {
    session_id: String,
    workspace: PathBuf,
    settings: AgentSettings,
    /// The state that the run reported: another run in between would have reported another.
    state: Option<Value>,
}

impl Left {
    /// As a turn wants to find it.
    pub(super) fn wanted(turn: &Turn) -> Self {
        Self::after(turn, turn.agent_state.clone())
    }

    /// As a turn leaves it.
    pub(super) fn after(turn: &Turn, state: Option<Value>) -> Self {
        Self {
            session_id: turn.session_id.clone(),
            workspace: turn.workspace.clone(),
            settings: turn.settings.clone(),
            state,
        }
    }
}

/// The directory that an agent was started in. It is held open, so that no other can come to look
/// the same: an agent whose own was removed has none, whatever lies at its path by now.
#[derive(Debug)]
pub(super) struct Home(Option<File>);

impl Home {
    pub(super) async fn open(path: &Path) -> Self {
        Self(File::open(path).await.ok())
    }

    async fn is_at(&self, path: &Path) -> bool {
        let Some(home) = &self.0 else { return false };
        let (Ok(home), Ok(found)) = (home.metadata().await, tokio::fs::metadata(path).await) else {
            return false;
        };
        (home.dev(), home.ino()) == (found.dev(), found.ino())
    }
}

/// An agent that rests.
#[derive(Debug)]
pub(super) struct Resting {
    pub(super) agent: Agent,
    pub(super) opened: Opened,
}

/// The agents that rest.
#[derive(Debug)]
pub(super) struct Pool {
    stay: Duration,
    most: usize,
    end_grace: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    closed: bool,
    /// The one that rests longest comes first.
    entries: Vec<Entry>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Entry {
    left: Left,
    order: oneshot::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    HandOver(oneshot::Sender<Resting>),
    /// The sender is dropped once the agent is gone.
    End(oneshot::Sender<()>),
}

impl Pool {
    pub(super) fn new(options: &AcpOptions) -> Self {
        Self {
            stay: options.warm_stay,
            most: options.warm_most,
            end_grace: options.end_grace,
            kept: Mutex::default(),
        }
    }

    /// Whether an agent could stay at all.
    pub(super) fn keeps(&self) -> bool {
        !self.stay.is_zero() && self.most > 0 && !self.kept().closed
    }

    /// Keeps an agent, if its guard lets it rest; else it is ended. The one that rests longest makes
    /// room.
    pub(super) async fn keep(&self, resting: Resting, left: Left) {
        let (pulse, alive) = watch::channel(Instant::now() + PULSE);
        if !resting.agent.process.park(alive).await {
            return end(resting, self.end_grace).await;
        }
        let (order, orders) = oneshot::channel();
        let (surplus, refused) = {
            let mut kept = self.kept();
            while kept.tasks.try_join_next().is_some() {}
            kept.entries.retain(|entry| !entry.order.is_closed());
            if kept.closed {
                (None, Some(resting))
            } else {
                let full = kept.entries.len() >= self.most;
                let surplus = full.then(|| kept.entries.remove(0));
                kept.entries.push(Entry { left, order });
                let (stay, grace) = (self.stay, self.end_grace);
                kept.tasks.spawn(rest(resting, orders, pulse, stay, grace));
                (surplus, None)
            }
        };
        if let Some(resting) = refused {
            end(resting, self.end_grace).await;
        }
        if let Some(surplus) = surplus {
            end_all(vec![surplus]).await;
        }
    }

    /// The agent that was left as `wanted`. All others of its session and in its workspace are
    /// ended first, in good order, for they would be killed by the new one's guard.
    pub(super) async fn take(&self, wanted: &Left) -> Option<Resting> {
        let (found, others) = {
            let mut kept = self.kept();
            let concerns = |entry: &Entry| {
                entry.left.session_id == wanted.session_id
                    || entry.left.workspace == wanted.workspace
            };
            let mut concerned: Vec<Entry> = kept
                .entries
                .extract_if(.., |entry| concerns(entry))
                .collect();
            let at = concerned.iter().position(|entry| entry.left == *wanted);
            let found = at.map(|at| concerned.swap_remove(at));
            (found, concerned)
        };
        end_all(others).await;
        let (sender, resting) = oneshot::channel();
        found?.order.send(Order::HandOver(sender)).ok()?;
        let resting = resting.await.ok()?;
        if !resting.agent.home.is_at(&wanted.workspace).await {
            tracing::info!("the agent that stayed is ended: its directory is not there any more");
            end(resting, self.end_grace).await;
            return None;
        }
        Some(resting)
    }

    /// Ends all agents; none stays from now on.
    pub(super) async fn close(&self) {
        let (entries, mut tasks) = {
            let mut kept = self.kept();
            kept.closed = true;
            (
                std::mem::take(&mut kept.entries),
                std::mem::take(&mut kept.tasks),
            )
        };
        end_all(entries).await;
        while tasks.join_next().await.is_some() {}
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells all to end before it waits for any.
async fn end_all(entries: Vec<Entry>) {
    let ends: Vec<oneshot::Receiver<()>> = entries
        .into_iter()
        .filter_map(|entry| {
            let (sender, ended) = oneshot::channel();
            // One that doesn't listen has ended.
            entry.order.send(Order::End(sender)).ok().map(|()| ended)
        })
        .collect();
    for ended in ends {
        drop(ended.await);
    }
}

/// One agent's rest.
async fn rest(
    resting: Resting,
    mut orders: oneshot::Receiver<Order>,
    pulse: watch::Sender<Instant>,
    stay: Duration,
    end_grace: Duration,
) {
    let over = sleep(stay);
    let mut over = std::pin::pin!(over);
    let mut beat = interval(PULSE / 5);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = resting.agent.process.exit();
    let mut ended = std::pin::pin!(ended);
    let mut done = None;
    loop {
        tokio::select! {
            biased;
            order = &mut orders => match order {
                Ok(Order::HandOver(sender)) => {
                    // The last pulse has to last until the run's own lease counts.
                    pulse.send_replace(Instant::now() + PULSE);
                    return drop(sender.send(resting));
                }
                Ok(Order::End(sender)) => {
                    done = Some(sender);
                    break;
                }
                Err(_) => break,
            },
            _ = &mut ended => break,
            () = &mut over => break,
            _ = beat.tick() => drop(pulse.send_replace(Instant::now() + PULSE)),
        }
    }
    // Nobody can take it from now on, and whoever waits for its end waits until it is over.
    orders.close();
    if let Ok(Order::End(sender)) = orders.try_recv() {
        done = Some(sender);
    }
    pulse.send_replace(Instant::now() + PULSE + end_grace);
    end(resting, end_grace).await;
    drop(done);
}

async fn end(mut resting: Resting, grace: Duration) {
    resting.agent.connection.finish_input().await;
    resting.agent.process.kill_tree(grace).await;
}
