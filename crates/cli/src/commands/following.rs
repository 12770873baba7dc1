//! Following a run to its end: prints its events, asks its questions, and turns Ctrl-C into a
//! cancel. The run goes on when we leave; only a cancel ends it.

mod scene;

use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;
use tapedeck_client::{Client, Follow, Follower, Frame, Start, StreamOptions};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{RunId, SessionId};
use tokio::time::{Instant, interval, sleep_until};

use self::scene::{Scene, Wanted};
use crate::commands::keyboard::Muted;
use crate::commands::signals::{Asked, Signals};
use crate::commands::waiting::Waiting;
use crate::exit::Exit;
use crate::output::Printer;

/// How long a server may be away before we stop waiting for it.
const GIVE_UP_AFTER: Duration = Duration::from_mins(2);

/// After this long a person is told that the server is away.
const AWAY: Duration = Duration::from_secs(2);

/// What Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    /// Cancels the run first, leaves the second time.
    CancelRun,
    /// Leaves.
    Leave,
}

/// Who answers questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The person at this terminal, or somebody elsewhere.
    Here,
    /// The person at this terminal alone: no server can be asked for the question.
    OnlyHere,
    /// Nobody can: they are denied, so that the run goes on.
    Nobody,
    /// Somebody elsewhere.
    Elsewhere,
    /// The person at the terminal of the process that works on the session.
    Owner,
}

impl Answers {
    /// Whether the person at this terminal answers.
    const fn are_here(self) -> bool {
        matches!(self, Self::Here | Self::OnlyHere)
    }
}

/// Which run to follow, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Followed {
    /// The session.
    pub(crate) session_id: SessionId,
    /// The run.
    pub(crate) run_id: RunId,
    /// Its events come after this number.
    pub(crate) after: u64,
    /// What Ctrl-C does.
    pub(crate) on_interrupt: OnInterrupt,
    /// Who answers questions.
    pub(crate) answers: Answers,
    /// Whether a question that the person puts away can be answered behind this, which then is over.
    pub(crate) is_prompt_next: bool,
}

/// How following ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The run ended.
    Settled {
        /// How.
        status: RunStatus,
        /// Why, if not well.
        error: Option<String>,
    },
    /// The person left; the run may go on.
    Left {
        /// Because the whole process shall end.
        is_terminated: bool,
    },
}

impl Ended {
    /// The exit that this is.
    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Settled { status, .. } => Exit::of_run(*status),
            Self::Left { .. } => Exit::Interrupted,
        }
    }
}

/// Follows a run until it ends or the person leaves.
pub(crate) async fn follow(
    client: &Client,
    printer: Printer,
    followed: Followed,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let mut frames = frames_of(client, followed);
    let _muted = Muted::keys();
    let mut scene = Scene::new(client, printer, followed);
    let mut cancel: Option<BoxFuture<'_, anyhow::Result<()>>> = None;
    let mut interrupts = 0;
    let mut waiting = Waiting::new(followed.run_id);
    let mut looks = interval(AWAY);
    let mut presence = Presence::default();
    loop {
        let silent_at = scene.silent_at();
        tokio::select! {
            frame = frames.next() => match frame.transpose()? {
                Some(Frame::Event(event)) => {
                    waiting.seen(&event.kind);
                    scene.event(&event).await?;
                }
                Some(Frame::Live(_)) => scene.live().await?,
                Some(Frame::Open(_)) => {}
                Some(Frame::End(_)) | None => break,
            },
            () = waiting.tick() => {
                if let Some(news) = waiting.look(client).await {
                    scene.note(&news).await?;
                }
            }
            () = maybe_at(silent_at) => scene.wait(if waiting.is_over() {
                "working"
            } else {
                "waiting for an executor"
            }),
            _ = looks.tick() => {
                if let Some(news) = presence.news(frames.away_since()) {
                    scene.note(news).await?;
                }
            }
            answer = scene.answer() => {
                scene.answered(answer?).await?;
                match scene.wanted.take() {
                    Some(Wanted::Cancel) => {
                        cancel = Some(cancel_run(client, followed.run_id).boxed());
                    }
                    Some(Wanted::Quiet) if followed.is_prompt_next => {
                        return Ok(Ended::Left { is_terminated: false });
                    }
                    Some(Wanted::Quiet) | None => {}
                }
            }
            outcome = maybe(&mut cancel) => {
                cancel = None;
                outcome?;
            }
            asked = signals.next() => {
                interrupts += 1;
                let leaves = followed.on_interrupt == OnInterrupt::Leave
                    || interrupts > 1
                    || asked == Asked::Terminate;
                if leaves {
                    scene.close()?;
                    let is_terminated = asked == Asked::Terminate;
                    return Ok(Ended::Left { is_terminated });
                }
                scene.note("cancelling the run; Ctrl-C again leaves it").await?;
                cancel = Some(cancel_run(client, followed.run_id).boxed());
            }
        }
    }
    scene.close()?;
    let ended = match scene.ended {
        Some(ended) => ended,
        None => settled(client, followed.run_id).await?,
    };
    report(printer, &followed, &ended)?;
    Ok(ended)
}

fn frames_of(client: &Client, followed: Followed) -> Follower {
    let stream = StreamOptions {
        give_up_after: Some(GIVE_UP_AFTER),
        ..StreamOptions::default()
    };
    let selection = Follow {
        start: Start::After(followed.after),
        run_id: Some(followed.run_id),
        kinds: Vec::new(),
    };
    client.follow(followed.session_id, selection, stream)
}

/// How a run ended whose stream ended for another reason than that.
async fn settled(client: &Client, run_id: RunId) -> anyhow::Result<Ended> {
    let run = client.run(run_id).await?;
    Ok(Ended::Settled {
        status: run.status,
        error: run.error,
    })
}

/// Whether the server is there, as far as a person has been told.
#[derive(Debug, Default)]
struct Presence {
    is_away: bool,
}

impl Presence {
    /// What there is to tell.
    fn news(&mut self, away_since: Option<Instant>) -> Option<&'static str> {
        let was_away = self.is_away;
        self.is_away = away_since.is_some_and(|since| since.elapsed() >= AWAY);
        match (was_away, self.is_away) {
            (false, true) => Some("the server is away; trying again"),
            (true, false) => Some("the server is back"),
            (true, true) | (false, false) => None,
        }
    }
}

async fn cancel_run(client: &Client, run_id: RunId) -> anyhow::Result<()> {
    client
        .cancel_run(run_id)
        .await
        .map(drop)
        .context("the run can't be cancelled")
}

async fn maybe<T>(future: &mut Option<BoxFuture<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn maybe_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn report(printer: Printer, followed: &Followed, ended: &Ended) -> anyhow::Result<()> {
    if let (true, Ended::Settled { status, error }) = (printer.is_json(), ended) {
        printer.object(&json!({
            "type": "result",
            "session_id": followed.session_id,
            "run_id": followed.run_id,
            "status": status,
            "error": error,
        }))?;
    }
    Ok(())
}
