//! Following a run to its end: prints its events, asks its questions, and turns Ctrl-C into a
//! cancel. The run goes on when we leave; only a cancel ends it.

use std::collections::VecDeque;
use std::io::BufRead as _;
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tapedeck_client::{Client, Follow, Frame, Start, StreamEvent, StreamOptions};
use tapedeck_domain::interaction::Scope;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::interaction::{ApproveRequest, ResolveRequest};
use tokio::sync::mpsc;

use crate::commands::forms::{Filled, Filling, form_of};
use crate::commands::rendering::{Asks, Question, Rendering};
use crate::commands::signals::{Asked, Signals};
use crate::commands::waiting::Waiting;
use crate::exit::Exit;
use crate::output::{Printer, Tone};

/// How long a server may be away before we stop waiting for it.
const GIVE_UP_AFTER: Duration = Duration::from_mins(2);

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
    /// The person at this terminal.
    Here,
    /// Nobody can: they are denied, so that the run goes on.
    Nobody,
    /// Somebody elsewhere.
    Elsewhere,
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
    Left,
}

impl Ended {
    /// The exit that this is.
    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Settled { status, .. } => Exit::of_run(*status),
            Self::Left => Exit::Interrupted,
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
    let stream = StreamOptions {
        give_up_after: Some(GIVE_UP_AFTER),
        ..StreamOptions::default()
    };
    let selection = Follow {
        start: Start::After(followed.after),
        run_id: Some(followed.run_id),
        kinds: Vec::new(),
    };
    let mut frames = client.follow(followed.session_id, selection, stream);
    let mut scene = Scene::new(client, printer, followed);
    let mut cancel: Option<BoxFuture<'_, anyhow::Result<()>>> = None;
    let mut interrupts = 0;
    let mut waiting = Waiting::new(followed.run_id);
    loop {
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
            () = waiting.tick() => waiting.look(client, printer).await?,
            answer = scene.answer() => scene.answered(&answer).await?,
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
                    scene.rendering.close()?;
                    return Ok(Ended::Left);
                }
                scene.rendering.close()?;
                printer.note("cancelling the run; Ctrl-C again leaves it")?;
                cancel = Some(cancel_run(client, followed.run_id).boxed());
            }
        }
    }
    scene.rendering.close()?;
    let ended = if let Some(ended) = scene.ended {
        ended
    } else {
        // The stream ended for another reason than the run's own end.
        let run = client.run(followed.run_id).await?;
        Ended::Settled {
            status: run.status,
            error: run.error,
        }
    };
    report(printer, &followed, &ended)?;
    Ok(ended)
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

/// What is on the screen, and which questions are open.
struct Scene<'a> {
    client: &'a Client,
    printer: Printer,
    followed: Followed,
    rendering: Rendering,
    open: VecDeque<Question>,
    /// Whether the first open question stands on the screen.
    is_asked: bool,
    /// The first open question's form, as far as it is filled in.
    filling: Option<Filling>,
    is_live: bool,
    lines: Option<mpsc::Receiver<String>>,
    ended: Option<Ended>,
}

impl<'a> Scene<'a> {
    fn new(client: &'a Client, printer: Printer, followed: Followed) -> Self {
        Self {
            client,
            printer,
            followed,
            rendering: Rendering::new(printer),
            open: VecDeque::new(),
            is_asked: false,
            filling: None,
            is_live: false,
            lines: None,
            ended: None,
        }
    }

    async fn event(&mut self, event: &StreamEvent) -> anyhow::Result<()> {
        if self.printer.is_json() {
            self.printer.object(&event.data)?;
        } else {
            self.rendering.event(event)?;
        }
        match event.kind.as_str() {
            // What a policy or a rule has answered already needs nobody.
            "ApprovalRequest" if event.text("status") == Some("pending") => {
                self.open.push_back(Question::of(event));
            }
            "ApprovalResponse" => {
                let request_id = event.text("request_id");
                let before = self.open.len();
                self.open
                    .retain(|question| Some(question.request_id.as_str()) != request_id);
                if before != self.open.len() {
                    self.is_asked = false;
                    self.filling = None;
                }
            }
            "TurnEnd" => {
                let status = event.data.get("run_status").cloned().unwrap_or_default();
                let status = serde_json::from_value(status).context("a run ended oddly")?;
                let error = event.text("error").map(str::to_owned);
                self.ended = Some(Ended::Settled { status, error });
            }
            _ => {}
        }
        self.ask().await
    }

    async fn live(&mut self) -> anyhow::Result<()> {
        self.is_live = true;
        self.ask().await
    }

    /// Puts the first open question, unless it may be answered already further down the log.
    async fn ask(&mut self) -> anyhow::Result<()> {
        let Some(question) = self.open.front() else {
            return Ok(());
        };
        if !self.is_live || self.is_asked {
            return Ok(());
        }
        self.is_asked = true;
        match self.followed.answers {
            Answers::Here => {
                self.rendering.close()?;
                let prompt = match &question.asks {
                    Asks::Tool { .. } => {
                        format!("  {question}: [y]es, [s]ession, [a]lways or [n]o? ")
                    }
                    Asks::Form { schema, .. } => {
                        if self.filling.is_none() {
                            let form = form_of(&json!({"form": schema}))?;
                            self.filling = Some(Filling::new(form));
                        }
                        self.filling
                            .as_ref()
                            .map(Filling::prompt)
                            .unwrap_or_default()
                    }
                };
                self.printer.text(self.printer.paint(Tone::Alert, prompt))?;
                if self.lines.is_none() {
                    self.lines = Some(terminal_lines()?);
                }
                Ok(())
            }
            Answers::Elsewhere => {
                let id = question.interaction_id.as_deref().unwrap_or("ID");
                let (yes, no) = match &question.asks {
                    Asks::Tool { .. } => ("approve", "deny"),
                    Asks::Form { .. } => ("answer", "decline"),
                };
                let text = format!("answer it with `tapedeck approvals {yes} {id}` (or `{no}`)");
                Ok(self.printer.note(text)?)
            }
            Answers::Nobody => {
                self.printer
                    .note("nobody can be asked here; denied (see `--approval-policy`)")?;
                let feedback = "nobody was there to be asked".to_owned();
                self.resolve(false, Scope::Once, Some(feedback)).await
            }
        }
    }

    /// The next line from the terminal while a question stands there.
    async fn answer(&mut self) -> String {
        match &mut self.lines {
            Some(lines) if self.is_asked => match lines.recv().await {
                Some(line) => line,
                None => std::future::pending().await,
            },
            _ => std::future::pending().await,
        }
    }

    async fn answered(&mut self, line: &str) -> anyhow::Result<()> {
        if let Some(filling) = &mut self.filling {
            return match filling.take(line) {
                Filled::More { fault } => {
                    if let Some(fault) = fault {
                        self.printer.note(fault)?;
                    }
                    self.is_asked = false;
                    self.ask().await
                }
                Filled::Whole(response) => self.fill_in(Some(response)).await,
                Filled::Declined => self.fill_in(None).await,
            };
        }
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => self.resolve(true, Scope::Once, None).await,
            "s" | "session" => self.resolve(true, Scope::Session, None).await,
            "a" | "always" => self.resolve(true, Scope::Always, None).await,
            "n" | "no" => self.resolve(false, Scope::Once, None).await,
            _ => {
                self.is_asked = false;
                self.ask().await
            }
        }
    }

    /// Sends the first open question's form, filled in or left blank.
    async fn fill_in(&mut self, response: Option<Value>) -> anyhow::Result<()> {
        self.filling = None;
        let id = self.open.front().and_then(|question| {
            let id = question.interaction_id.as_deref()?;
            id.parse().ok()
        });
        let id = id.context("the question has no id to answer it by")?;
        let request = ResolveRequest {
            declined: response.is_none().then_some(true),
            response,
            ..ResolveRequest::default()
        };
        match self.client.resolve(id, &request).await {
            Ok(_) => Ok(()),
            // Somebody was faster, or the question has ended: the log says so.
            Err(error) if error.problem().is_some() => Ok(self.printer.note(error)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the answer to the first open question; what becomes of it comes back as an event.
    async fn resolve(
        &mut self,
        approved: bool,
        scope: Scope,
        feedback: Option<String>,
    ) -> anyhow::Result<()> {
        let Some(question) = self.open.front() else {
            return Ok(());
        };
        let request = ApproveRequest {
            request_id: Some(question.request_id.clone()),
            approved: Some(approved),
            feedback,
            scope: Some(scope),
        };
        match self
            .client
            .approve(self.followed.session_id, &request)
            .await
        {
            Ok(_) => Ok(()),
            // Somebody was faster, or the question has ended: the log says so.
            Err(error) if error.problem().is_some() => Ok(self.printer.note(error)?),
            Err(error) => Err(error.into()),
        }
    }
}

/// Lines from the terminal. Their thread ends with the process: nothing can interrupt its read.
fn terminal_lines() -> anyhow::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("terminal".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        })?;
    Ok(receiver)
}
