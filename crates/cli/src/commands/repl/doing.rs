//! What the commands of the prompt do. Each is what a command of the binary does, on the open session.

use serde_json::json;
use tapedeck_client::Paging;
use tapedeck_domain::SessionId;
use tapedeck_domain::interaction::{InteractionKind, InteractionStatus, Scope};
use tapedeck_domain::session::ApprovalPolicy;
use tapedeck_protocol::interaction::ResolveRequest;
use tapedeck_protocol::session::{Change, SessionResponse, UpdateSessionRequest};

use super::desk::Desk;
use super::input::Input;
use super::slash::{COMMANDS, Slash};
use crate::commands::approvals;
use crate::commands::sessions::changes::{self, DiffArgs};
use crate::commands::sessions::checkpoints::{self, CaptureArgs, ForkArgs, ListArgs};
use crate::commands::sessions::{self, PageArgs};
use crate::exit::{Exit, Failed};

/// Sessions of a list.
const LISTED: u32 = 20;
/// Checkpoints and questions that are looked through.
const LOOKED_AT: u32 = 200;
/// Says that there shall be no model.
const NO_MODEL: &str = "-";

impl Desk<'_> {
    /// Does what a command says.
    pub(super) async fn command(&mut self, command: Slash, input: &Input) -> anyhow::Result<()> {
        match command {
            Slash::Approve(scope) => self.answer(true, scope, None).await,
            Slash::Deny(why) => self.answer(false, Scope::Once, why).await,
            Slash::Attach => self.attach().await,
            Slash::Cancel => self.cancel().await,
            Slash::Checkpoint(label) => {
                let session = self.opened()?;
                let args = CaptureArgs { session, label };
                checkpoints::capture(args, self.connection, self.context.printer).await
            }
            Slash::Checkpoints => {
                let args = ListArgs {
                    session: self.opened()?,
                    all: false,
                    page: PageArgs::default(),
                };
                checkpoints::list(args, self.connection, self.context.printer).await
            }
            Slash::Diff { is_patch } => {
                let args = DiffArgs {
                    session: self.opened()?,
                    patch: is_patch,
                    stat: false,
                    run: None,
                    whole: false,
                };
                changes::diff(args, self.connection, self.context.printer).await
            }
            Slash::Fork(title) => self.fork(title, input).await,
            // The conversation ends at `/quit` itself.
            Slash::Help | Slash::Quit => self.help(),
            Slash::Model(name) => self.model(name).await,
            Slash::New => {
                self.leave_session().await;
                self.note("the next prompt begins a session")
            }
            Slash::Open(which) => {
                let session = self.named(&which).await?;
                self.open(session, input).await
            }
            Slash::Policy(policy) => self.policy(policy).await,
            Slash::Restore(which) => {
                let (session, which) = (self.opened()?, which.as_deref());
                checkpoints::restore(session, which, self.connection, self.context.printer).await
            }
            Slash::Resume(None) => self.resume().await,
            Slash::Resume(Some(which)) => {
                let session = self.named(&which).await?;
                self.leave_session().await;
                self.session = Some(session.session_id);
                self.resume().await
            }
            Slash::Sessions => self.sessions().await,
            Slash::Show => {
                let session = self.connection.client.session(self.opened()?).await?;
                self.shown(&session)
            }
        }
    }

    fn shown(&self, session: &SessionResponse) -> anyhow::Result<()> {
        let printer = self.context.printer;
        if printer.is_json() {
            return Ok(printer.object(session)?);
        }
        Ok(sessions::show(printer, session)?)
    }

    fn help(&self) -> anyhow::Result<()> {
        let printer = self.context.printer;
        if printer.is_json() {
            let command = |(name, arguments, does): &(&str, &str, &str)| json!({"name": name, "arguments": arguments, "does": does});
            let commands: Vec<_> = COMMANDS.iter().map(command).collect();
            return Ok(printer.object(&json!({"commands": commands}))?);
        }
        let line = |(name, arguments, does): &(&str, &str, &str)| {
            let command = format!("/{name} {arguments}");
            vec![command.trim_end().to_owned(), (*does).to_owned()]
        };
        let rows: Vec<_> = COMMANDS.iter().map(line).collect();
        Ok(printer.table(&["COMMAND", "DOES"], &rows, "")?)
    }

    async fn sessions(&mut self) -> anyhow::Result<()> {
        let paging = Paging {
            limit: Some(LISTED),
            cursor: None,
        };
        let list = self.connection.client.sessions(&paging).await?;
        let sessions = &list.sessions;
        self.listed = sessions.iter().map(|session| session.session_id).collect();
        let printer = self.context.printer;
        if printer.is_json() {
            return Ok(printer.object(&list)?);
        }
        let row = |(session, place): (&SessionResponse, usize)| {
            let mut row = sessions::row(session);
            let mark = if Some(session.session_id) == self.session {
                "*"
            } else {
                ""
            };
            // A number names it here, and leaves room for its title.
            row[0] = format!("{place}{mark}");
            row
        };
        let rows: Vec<_> = sessions.iter().zip(1..).map(row).collect();
        let head = ["#", "STATUS", "TITLE", "EVENTS", "LAST ACTIVITY"];
        Ok(printer.table(&head, &rows, "there are no sessions")?)
    }

    /// A session by its id, or by its place in the last list.
    async fn named(&self, which: &str) -> anyhow::Result<SessionResponse> {
        let place = which.parse::<usize>().ok();
        let listed = place.and_then(|place| self.listed.get(place.checked_sub(1)?).copied());
        let id = listed.or_else(|| which.parse::<SessionId>().ok());
        let Some(id) = id else {
            return Err(Failed::usage(format!(
                "`{}` is no session's id, and no number in the last `/sessions`",
                which.escape_debug()
            )));
        };
        Ok(self.connection.client.session(id).await?)
    }

    async fn fork(&mut self, title: Option<String>, input: &Input) -> anyhow::Result<()> {
        let args = ForkArgs {
            session: self.opened()?,
            checkpoint: None,
            seq: None,
            title,
        };
        let fork = checkpoints::fork(args, self.connection, self.context.printer).await?;
        self.open(fork, input).await
    }

    async fn cancel(&self) -> anyhow::Result<()> {
        let session = self.opened()?;
        self.connection.touch(session);
        let cancelled = self.connection.client.cancel_session(session).await?;
        let printer = self.context.printer;
        if printer.is_json() {
            return Ok(printer.object(&cancelled)?);
        }
        Ok(printer.line(match cancelled.run_id {
            Some(run) => format!("run {run}: {}", cancelled.status),
            None => "no run is active".to_owned(),
        })?)
    }

    async fn model(&self, name: Option<String>) -> anyhow::Result<()> {
        let change = name.map(|name| UpdateSessionRequest {
            model: if name == NO_MODEL {
                Change::Remove
            } else {
                Change::Set(name)
            },
            ..UpdateSessionRequest::default()
        });
        let session = self.changed(change).await?;
        let model = session.model.as_deref();
        let model = model.unwrap_or("the agent's own choice");
        self.told_setting(&session, "model", model)
    }

    async fn policy(&self, policy: Option<ApprovalPolicy>) -> anyhow::Result<()> {
        let change = policy.map(|policy| UpdateSessionRequest {
            approval_policy: Some(policy),
            ..UpdateSessionRequest::default()
        });
        let session = self.changed(change).await?;
        self.told_setting(&session, "approvals", session.approval_policy.as_str())
    }

    /// The session, after a change if there is one.
    async fn changed(
        &self,
        change: Option<UpdateSessionRequest>,
    ) -> anyhow::Result<SessionResponse> {
        let (client, id) = (&self.connection.client, self.opened()?);
        let Some(change) = change else {
            return Ok(client.session(id).await?);
        };
        self.connection.touch(id);
        Ok(client.update_session(id, &change).await?)
    }

    fn told_setting(
        &self,
        session: &SessionResponse,
        name: &str,
        value: &str,
    ) -> anyhow::Result<()> {
        let printer = self.context.printer;
        if printer.is_json() {
            return Ok(printer.object(session)?);
        }
        Ok(printer.fields(&[(name, value.to_owned())])?)
    }

    /// Answers the session's oldest open question.
    async fn answer(
        &self,
        approved: bool,
        scope: Scope,
        feedback: Option<String>,
    ) -> anyhow::Result<()> {
        let session = self.opened()?;
        let paging = Paging {
            limit: Some(LOOKED_AT),
            cursor: None,
        };
        let client = &self.connection.client;
        let pending = Some(InteractionStatus::Pending);
        let open = client.interactions(pending, Some(session), &paging).await?;
        let Some(question) = open.interactions.last() else {
            return Err(Failed::with(Exit::NotFound, "no question is open"));
        };
        let id = question.interaction_id;
        let request = match (question.kind, approved) {
            (InteractionKind::Approval, _) => ResolveRequest {
                approved: Some(approved),
                scope: Some(scope),
                feedback,
                ..ResolveRequest::default()
            },
            (InteractionKind::Question, false) => ResolveRequest {
                declined: Some(true),
                feedback,
                ..ResolveRequest::default()
            },
            (InteractionKind::Question, true) => {
                let text = "the question is a form: `/attach` asks for its fields";
                return Err(Failed::usage(text));
            }
        };
        approvals::resolve(self.connection, self.context.printer, id, &request).await
    }
}
