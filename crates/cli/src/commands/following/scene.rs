//! What is on the screen while a run is followed: its events, and the questions that wait for the
//! person here. Whether an answer holds is the server's to say.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tapedeck_client::{Client, StreamEvent};
use tapedeck_domain::interaction::Scope;
use tapedeck_protocol::interaction::{ApproveRequest, ResolveRequest};
use tokio::time::Instant;

use super::{Answers, Ended, Followed};
use crate::commands::forms::{Filled, Filling, form_of};
use crate::commands::keyboard::{Keyboard, forget_typed};
use crate::commands::rendering::{Asks, Question, Rendering};
use crate::output::{Printer, Working};

/// Without a word for so long, a person wonders whether anything goes on.
const SILENCE: Duration = Duration::from_secs(1);

/// What a person types at a question to cancel the run.
const CANCEL: &str = "/cancel";
const ANSWERS: &str = "answer `y`, `s`, `a`, `n` or `n WHY`; `/cancel` cancels the run";
const MAY_STAY: &str = ", Ctrl-D leaves the question open";
const ONLY_HERE: &str =
    "nobody else can answer it: this process runs the agent; Ctrl-C cancels the run";

/// What is on the screen, and which questions are open.
pub(super) struct Scene<'a> {
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
    keyboard: Option<Keyboard>,
    /// Shows that the run goes on where the screen doesn't.
    working: Option<Working>,
    last_event: Instant,
    /// How the run ended, once it has.
    pub(super) ended: Option<Ended>,
    /// What the person wants instead of an answer.
    pub(super) wanted: Option<Wanted>,
}

/// What a person can want at a question beside answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The run to be cancelled.
    Cancel,
    /// To be asked no more.
    Quiet,
}

impl<'a> Scene<'a> {
    pub(super) fn new(client: &'a Client, printer: Printer, followed: Followed) -> Self {
        Self {
            client,
            printer,
            followed,
            rendering: Rendering::new(printer),
            open: VecDeque::new(),
            is_asked: false,
            filling: None,
            is_live: false,
            keyboard: None,
            working: None,
            last_event: Instant::now(),
            ended: None,
            wanted: None,
        }
    }

    pub(super) async fn event(&mut self, event: &StreamEvent) -> anyhow::Result<()> {
        self.working = None;
        self.last_event = Instant::now();
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
                let is_it = |question: &Question| Some(&*question.request_id) == request_id;
                if self.open.front().is_some_and(is_it) {
                    self.is_asked = false;
                    self.filling = None;
                    self.keyboard = None;
                }
                self.open.retain(|question| !is_it(question));
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

    /// When it shall be shown that the run goes on, unless something comes before or the screen waits
    /// for the rest of a line or for an answer.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let has_place = self.open.is_empty() && !self.rendering.is_open();
        (has_place && self.working.is_none()).then(|| self.last_event + SILENCE)
    }

    /// Shows what is waited for.
    pub(super) fn wait(&mut self, what: &'static str) {
        self.working = Some(self.printer.silent(what));
    }

    /// Leaves the screen to whoever prints next.
    pub(super) fn close(&mut self) -> anyhow::Result<()> {
        self.working = None;
        Ok(self.rendering.close()?)
    }

    /// Says something beside the events.
    pub(super) async fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.close()?;
        self.printer.note(text)?;
        self.ask().await
    }

    pub(super) async fn live(&mut self) -> anyhow::Result<()> {
        self.is_live = true;
        self.ask().await
    }

    /// Puts the first open question, unless it may be answered already further down the log. One that
    /// something was printed below stands there once more: an answer is for what was read last.
    async fn ask(&mut self) -> anyhow::Result<()> {
        let Some(question) = self.open.front() else {
            return Ok(());
        };
        let is_below = self.keyboard.is_some() && !self.rendering.is_prompt();
        if !self.is_live || (self.is_asked && !is_below) {
            return Ok(());
        }
        self.is_asked = true;
        match self.followed.answers {
            Answers::Here | Answers::OnlyHere => {
                self.rendering.close()?;
                if self.filling.is_none() && !is_below {
                    forget_typed();
                }
                let prompt = match &question.asks {
                    Asks::Tool { .. } => {
                        format!("  {question}: [y]es, [s]ession, [a]lways, [n]o or n WHY? ")
                    }
                    Asks::Form { schema, .. } => {
                        let filling = match self.filling.take() {
                            Some(filling) => filling,
                            None => Filling::new(form_of(&json!({"form": schema}))?),
                        };
                        if is_below {
                            self.rendering.question(question)?;
                        }
                        self.filling.insert(filling).prompt()
                    }
                };
                self.rendering.prompt(&prompt)?;
                // A line that is being typed is still waited for.
                if self.keyboard.is_none() {
                    self.keyboard = Some(Keyboard::wait()?);
                }
                Ok(())
            }
            Answers::Elsewhere => self.elsewhere(question),
            Answers::Owner => {
                let text = "the question is for the terminal that runs it";
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

    fn elsewhere(&self, question: &Question) -> anyhow::Result<()> {
        let id = question.interaction_id.as_deref().unwrap_or("ID");
        let (yes, no) = match &question.asks {
            Asks::Tool { .. } => ("approve", "deny"),
            Asks::Form { .. } => ("answer", "decline"),
        };
        let command = self.printer.command(format_args!("approvals {yes} {id}"));
        let text = format!("answer it with {command} (or `{no}`)");
        Ok(self.printer.note(text)?)
    }

    /// The next line from the terminal while a question stands there; none if the person closed it.
    pub(super) async fn answer(&mut self) -> anyhow::Result<Option<String>> {
        match &mut self.keyboard {
            Some(keyboard) if self.is_asked => keyboard.line().await,
            _ => std::future::pending().await,
        }
    }

    pub(super) async fn answered(&mut self, line: Option<String>) -> anyhow::Result<()> {
        self.keyboard = None;
        let Some(line) = line else {
            return self.left_open().await;
        };
        self.rendering.entered();
        let line = line.as_str();
        if line.trim() == CANCEL {
            // The question goes with the run; until then it may still be answered.
            self.wanted = Some(Wanted::Cancel);
            self.is_asked = false;
            return self.ask().await;
        }
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
        match Reply::of(line) {
            Some(Reply::Approve(scope)) => self.resolve(true, scope, None).await,
            Some(Reply::Deny(why)) => self.resolve(false, Scope::Once, why).await,
            None => {
                if !line.trim().is_empty() {
                    let is_only_here = self.followed.answers == Answers::OnlyHere;
                    let may_stay = if is_only_here { "" } else { MAY_STAY };
                    self.printer.note(format_args!("{ANSWERS}{may_stay}"))?;
                }
                self.is_asked = false;
                self.ask().await
            }
        }
    }

    /// The person wants to be asked no more here, which takes somebody else who can be asked.
    async fn left_open(&mut self) -> anyhow::Result<()> {
        self.rendering.close()?;
        if self.followed.answers == Answers::OnlyHere {
            self.printer.note(ONLY_HERE)?;
            self.is_asked = false;
            return self.ask().await;
        }
        self.followed.answers = Answers::Elsewhere;
        self.wanted = Some(Wanted::Quiet);
        match self.open.front() {
            Some(Question {
                asks: Asks::Tool { .. },
                ..
            }) if self.followed.is_prompt_next => {
                let text = "the question stays open: `/approve` or `/deny` answers it";
                Ok(self.printer.note(text)?)
            }
            Some(question) => self.elsewhere(question),
            None => Ok(()),
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
        let sent = self.client.resolve(id, &request).await;
        self.sent(sent.map(drop)).await
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
        let session = self.followed.session_id;
        let sent = self.client.approve(session, &request).await;
        self.sent(sent.map(drop)).await
    }

    async fn sent(&mut self, outcome: tapedeck_client::Result<()>) -> anyhow::Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            // The server is away for longer than a call waits: the question is still open.
            Err(error) if error.is_transient() && self.followed.answers.are_here() => {
                self.printer.note(error)?;
                self.is_asked = false;
                Box::pin(self.ask()).await
            }
            // Somebody was faster, or the question has ended: the log says so.
            Err(error) if error.problem().is_some() => Ok(self.printer.note(error)?),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a person says to a tool that wants to run.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Approve(Scope),
    Deny(Option<String>),
}

impl Reply {
    /// Reads a line; anything unknown is asked again.
    fn of(line: &str) -> Option<Self> {
        let (word, rest) = match line.trim().split_once(char::is_whitespace) {
            Some((word, rest)) => (word, Some(rest.trim().to_owned())),
            None => (line.trim(), None),
        };
        match (word.to_lowercase().as_str(), rest) {
            ("y" | "yes" | "/approve", None) => Some(Self::Approve(Scope::Once)),
            ("s" | "session", None) => Some(Self::Approve(Scope::Session)),
            ("a" | "always", None) => Some(Self::Approve(Scope::Always)),
            ("n" | "no" | "/deny", why) => Some(Self::Deny(why)),
            // As the conversation's command has it.
            ("/approve", Some(scope)) => Some(Self::Approve(scope.parse().ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_a_letter_or_a_word_and_a_no_may_say_why() {
        for (line, reply) in [
            ("y", Some(Reply::Approve(Scope::Once))),
            (" YES ", Some(Reply::Approve(Scope::Once))),
            ("s", Some(Reply::Approve(Scope::Session))),
            ("always", Some(Reply::Approve(Scope::Always))),
            ("n", Some(Reply::Deny(None))),
            (
                "no  not on main",
                Some(Reply::Deny(Some("not on main".to_owned()))),
            ),
            // A yes with words beside it is no plain yes.
            ("y but not there", None),
            ("", None),
            ("perhaps", None),
            ("/approve", Some(Reply::Approve(Scope::Once))),
            ("/approve always", Some(Reply::Approve(Scope::Always))),
            ("/approve perhaps", None),
            (
                "/deny not now",
                Some(Reply::Deny(Some("not now".to_owned()))),
            ),
            ("/sessions", None),
        ] {
            assert_eq!(Reply::of(line), reply, "{line}");
        }
    }
}
