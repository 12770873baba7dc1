//! What is open at the prompt: the session, and the executor that serves it where no server has
//! executors. It follows runs; what they show is the rendering's affair.

use std::future::pending;

use tapedeck_domain::owner::is_deployment;
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_protocol::run::{AcceptedResponse, PromptRequest};
use tapedeck_protocol::session::SessionResponse;

use super::input::Input;
use crate::commands::agents::Agent;
use crate::commands::attach::newest_run;
use crate::commands::following::{self, Answers, Ended, Followed, OnInterrupt};
use crate::commands::keyboard::{Keyboard, forget_typed};
use crate::commands::local::LocalExecutor;
use crate::commands::resume::admit;
use crate::commands::run::answers;
use crate::commands::signals::{Asked, Signals};
use crate::commands::starting::{NewSession, start_executor};
use crate::context::{Connection, Context, GOES_ON, ServerIsGone};
use crate::exit::{Exit, Failed};
use crate::output::{Tone, short, time};

/// Characters of a prompt that is named.
const SHOWN: usize = 60;

/// What is open at the prompt.
pub(super) struct Desk<'a> {
    pub(super) context: &'a Context,
    pub(super) connection: &'a Connection,
    pub(super) signals: &'a mut Signals,
    new: NewSession,
    /// The open session.
    pub(super) session: Option<SessionId>,
    executor: Option<LocalExecutor>,
    /// The sessions of the last list, which can be named by their places.
    pub(super) listed: Vec<SessionId>,
    /// What the last thing that did not go well leads to.
    pub(super) exit: Exit,
    /// A signal that ends the process came while a run was followed.
    pub(super) is_terminated: bool,
}

impl<'a> Desk<'a> {
    /// With nothing open.
    pub(super) fn new(
        context: &'a Context,
        connection: &'a Connection,
        signals: &'a mut Signals,
        new: NewSession,
    ) -> Self {
        Self {
            context,
            connection,
            signals,
            new,
            session: None,
            executor: None,
            listed: Vec::new(),
            exit: Exit::Success,
            is_terminated: false,
        }
    }

    /// Says something beside the conversation, unless a program listens.
    pub(super) fn note(&self, text: impl std::fmt::Display) -> anyhow::Result<()> {
        if !self.context.printer.is_json() {
            self.context.printer.note(text)?;
        }
        Ok(())
    }

    /// Says where prompts go.
    pub(super) fn greet(&self, input: &Input) -> anyhow::Result<()> {
        if !input.is_editor() {
            return Ok(());
        }
        let place = match (
            self.connection.local_dir(),
            Agent::configured(&self.context.config),
        ) {
            (None, _) => format!("the server at {}", self.connection.client.base_url()),
            (Some(_), Some(agent)) => format!("`{}`, in this process", agent.name()),
            (Some(_), None) => "the session's agent; a new session needs `--agent`".to_owned(),
        };
        self.note(format!("prompts go to {place}; `/help` lists commands"))
    }

    /// Asks a person, who may say no by Ctrl-C; a script is never asked, and has said no.
    async fn agrees(&mut self, input: &Input, question: &str) -> anyhow::Result<bool> {
        if !input.is_editor() {
            return Ok(false);
        }
        let printer = self.context.printer;
        forget_typed();
        printer.text(printer.paint(Tone::Alert, format!("{question} [Y/n] ")))?;
        let mut keyboard = Keyboard::wait()?;
        let line = tokio::select! {
            line = keyboard.line() => line?,
            asked = self.signals.next() => {
                printer.line("")?;
                self.is_terminated = asked == Asked::Terminate;
                None
            }
        };
        let line = line.map(|line| line.trim().to_lowercase());
        Ok(matches!(line.as_deref(), Some("" | "y" | "yes")))
    }

    /// The open session's id.
    pub(super) fn opened(&self) -> anyhow::Result<SessionId> {
        self.session.ok_or_else(|| {
            Failed::with(
                Exit::NotFound,
                "no session is open: a prompt begins one, `/open` goes to another",
            )
        })
    }

    /// Goes to a session, and takes up what is under way or was interrupted.
    pub(super) async fn open(
        &mut self,
        session: SessionResponse,
        input: &Input,
    ) -> anyhow::Result<()> {
        let id = session.session_id;
        self.leave_session().await;
        self.session = Some(id);
        let title = session.title.as_deref().unwrap_or("without a title");
        self.note(format!("session {id}: {}", short(title, SHOWN)))?;
        if let Some(elsewhere) = self.connection.keep(id).await? {
            self.note(format!("{}; here it can only be read", owned(&elsewhere)))?;
            if session.active_run_id.is_some() && self.agrees(input, "read along?").await? {
                return self.attach().await;
            }
            return Ok(());
        }
        // Taking the session over may have ended a run whose process is gone.
        let session = self.connection.client.session(id).await?;
        if session.active_run_id.is_some() {
            self.note("a run is under way; Ctrl-C cancels it")?;
            let mut followed = newest_run(self.connection, &session, self.answers()).await?;
            followed.on_interrupt = OnInterrupt::CancelRun;
            return self.follow(followed).await;
        }
        let (Some(run_id), Some(status)) = (session.last_run_id, session.last_run_status) else {
            return Ok(());
        };
        let run = self.connection.client.run(run_id).await?;
        let prompt = short(&run.prompt, SHOWN);
        if status != RunStatus::Interrupted {
            return self.note(format!(
                "its last run {status}: {prompt} (`/attach` shows it)"
            ));
        }
        self.note(format!("its last run was interrupted: {prompt}"))?;
        if self.agrees(input, "resume it?").await? {
            return self.resume().await;
        }
        self.note("`/resume` goes on with it")
    }

    /// Sends a prompt, in a new session if none is open, and follows its run.
    pub(super) async fn prompt(&mut self, prompt: String) -> anyhow::Result<()> {
        let id = match self.session {
            Some(id) => id,
            None => self.begin(&prompt).await?,
        };
        self.be_served(id).await?;
        let request = PromptRequest {
            prompt: Some(prompt),
            ..PromptRequest::default()
        };
        let client = &self.connection.client;
        let accepted = patiently(self.signals, client.prompt(id, &request)).await?;
        self.follow_new(&accepted).await
    }

    /// Goes on where the session's last run ended.
    pub(super) async fn resume(&mut self) -> anyhow::Result<()> {
        let id = self.opened()?;
        self.be_served(id).await?;
        let session = self.connection.client.session(id).await?;
        let client = &self.connection.client;
        let accepted = patiently(self.signals, admit(client, &session, None)).await?;
        self.follow_new(&accepted).await
    }

    /// Follows the session's newest run without touching it.
    pub(super) async fn attach(&mut self) -> anyhow::Result<()> {
        let session = self.connection.client.session(self.opened()?).await?;
        let mut followed = newest_run(self.connection, &session, self.answers()).await?;
        if self.connection.keep(session.session_id).await?.is_none() {
            followed.answers = self.answers();
        }
        self.follow(followed).await
    }

    /// Keeps the open session this process's. What stands against it is said when it matters.
    pub(super) async fn keep(&mut self) {
        if let Some(id) = self.session
            && let Err(error) = self.connection.keep(id).await
        {
            tracing::debug!(%error, "the session was not kept");
        }
    }

    /// Leaves the open session; a run that this process executes is handed back.
    pub(super) async fn leave_session(&mut self) {
        self.session = None;
        if let Some(executor) = self.executor.take() {
            executor.end().await;
        }
    }

    /// The last words: how to come back.
    pub(super) async fn leave(mut self, says_how: bool) -> anyhow::Result<()> {
        let id = self.session;
        self.leave_session().await;
        match id {
            Some(id) if says_how => {
                let printer = self.context.printer;
                let command = printer.command(format_args!("repl --session {id}"));
                self.note(format!("go on with it: {command}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Makes the session that a first prompt begins.
    async fn begin(&mut self, prompt: &str) -> anyhow::Result<SessionId> {
        let session = self.new.create(prompt, self.context, self.connection);
        let id = session.await?.session_id;
        self.session = Some(id);
        self.note(format!("session {id}"))?;
        Ok(id)
    }

    /// Sees to it that the session is this process's and that somebody serves its runs.
    async fn be_served(&mut self, id: SessionId) -> anyhow::Result<()> {
        if let Some(elsewhere) = self.connection.keep(id).await? {
            let text = format!("{}; `/attach` reads along", owned(&elsewhere));
            return Err(Failed::with(Exit::Conflict, text));
        }
        if self.executor.is_none() {
            let session = self.connection.client.session(id).await?;
            self.executor = start_executor(self.context, self.connection, &session)?;
        }
        Ok(())
    }

    fn answers(&self) -> Answers {
        answers(self.context, self.connection)
    }

    /// Follows a run from behind its prompt, which has just been typed.
    async fn follow_new(&mut self, accepted: &AcceptedResponse) -> anyhow::Result<()> {
        let told = u64::from(!self.context.printer.can_ask());
        self.follow(Followed {
            session_id: accepted.session_id,
            run_id: accepted.run_id,
            after: accepted.session_seq.saturating_sub(told),
            on_interrupt: OnInterrupt::CancelRun,
            answers: self.answers(),
            is_prompt_next: false,
        })
        .await
    }

    async fn follow(&mut self, mut followed: Followed) -> anyhow::Result<()> {
        followed.is_prompt_next = true;
        let executor = &mut self.executor;
        let failed = async {
            match executor {
                Some(executor) => executor.failed().await,
                None => pending().await,
            }
        };
        let client = &self.connection.client;
        let printer = self.context.printer;
        let outcome = tokio::select! {
            ended = following::follow(client, printer, followed, self.signals) => ended,
            error = failed => Err(error),
        };
        if let (Err(_), Some(executor)) = (&outcome, self.executor.take_if(|it| it.has_ended())) {
            executor.end().await;
        }
        let ended = outcome?;
        if ended.exit() != Exit::Success {
            self.exit = ended.exit();
        }
        match ended {
            Ended::Left { is_terminated } => {
                self.is_terminated = is_terminated;
                self.note("it goes on without you; `/attach` follows it, `/cancel` cancels it")
            }
            Ended::Settled { .. } => Ok(()),
        }
    }
}

/// Waits for a run to be admitted for as long as the person has patience.
async fn patiently(
    signals: &mut Signals,
    call: impl Future<Output = tapedeck_client::Result<AcceptedResponse>>,
) -> anyhow::Result<AcceptedResponse> {
    tokio::select! {
        accepted = call => Ok(accepted?),
        _asked = signals.next() => {
            let text = "nobody has taken the prompt yet; `/show` says whether it arrived";
            Err(Failed::with(Exit::Interrupted, text))
        }
    }
}

fn owned(elsewhere: &Rejection) -> String {
    match elsewhere {
        // A server that lived would have been asked in place of the database.
        Rejection::OwnedElsewhere { owner_id, .. } if is_deployment(owner_id) => {
            format!("{ServerIsGone}, {GOES_ON}")
        }
        Rejection::OwnedElsewhere { owner_id, until } => format!(
            "another process works on the session: {owner_id}, at least until {}",
            time(Some(*until))
        ),
        other => other.to_string(),
    }
}
