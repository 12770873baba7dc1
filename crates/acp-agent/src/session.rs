//! A session that an editor has open: its log is followed from where the editor begins, told to the
//! editor in order, and everything else (answers, questions) takes its place in that order. It holds
//! no truth of its own: what it loses with its process is told again by the log.

mod asking;
mod attaching;
mod commands;
mod turn;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    LoadSessionResponse, ResumeSessionResponse, SessionId as AcpSessionId, SessionInfoUpdate,
    SessionNotification, SessionUpdate,
};
use agent_client_protocol::{Client as Editor, Error};
use futures::future::{AbortHandle, BoxFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;
use tapedeck_client::{Client, Follower, Frame, Start as From, StreamEvent};
use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::{InteractionId, RunId, SessionId};
use tapedeck_protocol::session::SessionResponse;
use tapedeck_protocol::stream::StreamOpen;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::choices::Choices;
use crate::desk::{Desk, Place};
use crate::failure::{of_call, unfit, unknown_session};
use crate::mapping::Mapping;
use crate::question::{Left, Question};
use attaching::follow;
pub(crate) use attaching::{Attaching, Start, attach};
pub(crate) use commands::Command;
use turn::Turn;

/// What goes out, in its order.
enum Out {
    Update(Box<SessionUpdate>),
    /// The answer to the request that opened the session.
    Opened,
    Ask(Question),
    /// A run of which the editor awaits the end.
    TurnEnded(StreamEvent),
}

/// What was waited for while the log stood still.
enum Worked {
    Admitted(turn::Admitted, TaskTrackerToken),
    Result(Box<turn::Outcome>),
}

/// What was done beside the log.
enum Done {
    /// A question left the editor.
    Question(Question, Left, TaskTrackerToken),
    /// A run waits, and for whom.
    Waits(RunId, String),
    /// A run waits in vain, and why.
    Hopeless(RunId, String),
    /// The session as it stands, after somebody changed it.
    Changed(Box<SessionResponse>),
    Nothing,
}

type Task = BoxFuture<'static, Done>;

struct Session {
    desk: Arc<Desk>,
    client: Client,
    id: SessionId,
    acp_id: AcpSessionId,
    editor: ConnectionTo<Editor>,
    follower: Follower,
    mapping: Mapping,
    choices: Choices,
    put_aside: HashSet<RunId>,
    last_seq: Option<u64>,
    active_run: Option<RunId>,
    /// The request that opened the session, until it is answered.
    opening: Option<Start>,
    /// Whether what comes is news.
    is_live: bool,
    title: Option<String>,
    /// Whether the session's settings were changed after its agent last said what it offers.
    are_choices_old: bool,
    /// The prompt that the editor awaits the end of.
    turn: Option<Turn>,
    /// What has to be known before the log goes on.
    work: Option<BoxFuture<'static, Worked>>,
    tasks: FuturesUnordered<Task>,
    /// Questions that stand at the editor, with their withdrawal.
    asked: HashMap<InteractionId, (RunId, AbortHandle)>,
    /// Open questions of a past that is still being told.
    pending: Vec<Question>,
    out: VecDeque<Out>,
}

impl Session {
    async fn run(&mut self, place: &mut Place) {
        loop {
            if !self.settle_out() {
                return;
            }
            let is_told = self.out.is_empty() && self.work.is_none();
            tokio::select! {
                biased;
                () = place.stop.cancelled() => {
                    self.give_up(&unfit(if self.desk.gone.is_cancelled() {
                        "the editor has gone; the run goes on"
                    } else {
                        "the session was opened again; the run goes on"
                    }));
                    return;
                }
                command = place.commands.recv() => match command {
                    Some((Command::Close, _)) | None => {
                        self.end_turn_as_cancelled();
                        self.give_up(&unfit("the session was closed"));
                        return;
                    }
                    Some((command, errand)) => {
                        self.command(command);
                        drop(errand);
                    }
                },
                worked = maybe(&mut self.work) => {
                    self.work = None;
                    self.worked(worked);
                }
                Some(done) = self.tasks.next() => self.done(done),
                () = self.desk.wire.admit(), if !self.out.is_empty() && self.work.is_none() => {
                    if !self.send_update() {
                        return;
                    }
                }
                frame = self.follower.next(), if is_told => {
                    if !self.frame(frame) {
                        return;
                    }
                }
            }
        }
    }

    /// Handles what needs no waiting at the front of the queue. `false` once the editor has gone.
    fn settle_out(&mut self) -> bool {
        while self.work.is_none() {
            match self.out.front() {
                None | Some(Out::Update(_)) => return true,
                Some(Out::Opened | Out::Ask(_) | Out::TurnEnded(_)) => {}
            }
            let sent = match self.out.pop_front() {
                Some(Out::Opened) => self.opened(),
                Some(Out::Ask(question)) => {
                    self.ask(question);
                    Ok(())
                }
                Some(Out::TurnEnded(event)) => self.turn_ended(&event),
                Some(Out::Update(_)) | None => Ok(()),
            };
            if sent.is_err() {
                return false;
            }
        }
        true
    }

    fn send_update(&mut self) -> bool {
        let Some(Out::Update(update)) = self.out.pop_front() else {
            return true;
        };
        let notification = SessionNotification::new(self.acp_id.clone(), *update);
        self.editor.send_notification(notification).is_ok()
    }

    fn push(&mut self, updates: impl IntoIterator<Item = SessionUpdate>) {
        let updates = updates
            .into_iter()
            .map(|update| Out::Update(Box::new(update)));
        self.out.extend(updates);
    }

    /// Takes what the log brings. `false` at its end.
    fn frame(&mut self, frame: Option<Result<Frame, tapedeck_client::Error>>) -> bool {
        match frame {
            Some(Ok(Frame::Event(event))) => self.event(event),
            Some(Ok(Frame::Open(open))) => self.connected(open),
            Some(Ok(Frame::Live(_))) => self.live(),
            Some(Ok(Frame::End(_))) | None => {
                self.give_up(&unknown_session(&self.acp_id.0));
                return false;
            }
            Some(Err(error)) => {
                let failure = of_call(&error, &self.acp_id.0);
                if let Some(after) = error.restart_after() {
                    self.follower = follow(&self.client, self.id, From::After(after));
                } else if error.is_transient() && self.opening.is_none() {
                    self.fail_turn(failure);
                    let start = self.last_seq.map_or(From::Head, From::After);
                    self.follower = follow(&self.client, self.id, start);
                } else {
                    self.give_up(&failure);
                    return false;
                }
            }
        }
        true
    }

    /// A connection to the log stands, the first or a later one.
    fn connected(&mut self, open: StreamOpen) {
        self.active_run = open.active_run_id;
        let is_resumed = matches!(self.opening, Some(Start::Resume(_))) && self.last_seq.is_none();
        if is_resumed {
            self.last_seq = Some(open.head_seq);
            let pending = open.interactions.into_iter();
            let pending = pending.filter(|asked| asked.status == InteractionStatus::Pending);
            self.pending.extend(pending.map(|asked| Question {
                id: asked.interaction_id,
                run_id: asked.run_id,
                request: asked.request,
            }));
        }
        // A cancel that didn't get through is sent once more.
        self.cancel_turn();
    }

    /// The past is told: the editor gets its answer, and the questions that are open.
    fn live(&mut self) {
        if self.is_live {
            return;
        }
        self.is_live = true;
        self.out.push_back(Out::Opened);
        let pending = std::mem::take(&mut self.pending);
        self.out.extend(pending.into_iter().map(Out::Ask));
    }

    /// Works with another server from now on, if it is another.
    fn moved_to(&mut self, client: Client) {
        if client.base_url() != self.client.base_url() {
            let start = self.last_seq.map_or(From::Head, From::After);
            self.follower = follow(&client, self.id, start);
            self.client = client;
        }
    }

    fn event(&mut self, event: StreamEvent) {
        self.last_seq = Some(event.session_seq);
        if event
            .run_id
            .is_some_and(|run| self.put_aside.contains(&run))
        {
            return;
        }
        let is_own = self
            .turn
            .as_ref()
            .is_some_and(|turn| turn.is_of(event.run_id));
        match event.kind.as_str() {
            "RunRequested" => {
                self.active_run = event.run_id;
                if !is_own {
                    self.tell_active_run();
                }
            }
            "RunClaimed" => self.claimed(event.run_id),
            "ApprovalRequest" => self.asked_for(&event),
            "ApprovalResponse" => self.answered(&event),
            "SessionConfigChanged" if self.is_live => self.look_at_settings(),
            // What the session asks for since is told in place of what its agent said before.
            "SessionConfigChanged" => self.are_choices_old = true,
            "agent.options" | "agent.mode" => {
                let update = match (event.data.get("options"), event.text("mode")) {
                    (Some(options), _) => self.choices.reported(options),
                    (None, Some(mode)) => self.choices.mode_reported(mode),
                    (None, None) => None,
                };
                self.are_choices_old = false;
                // The answer to the request that opens the session tells the last of them.
                self.push(update.filter(|_| self.opening.is_none()));
            }
            _ => {}
        }
        let updates = self.mapping.event(&event, is_own);
        self.push(updates);
        if event.kind == "TurnEnd" {
            self.run_ended(event, is_own);
        }
    }

    fn run_ended(&mut self, event: StreamEvent, is_own: bool) {
        if self.active_run == event.run_id {
            self.active_run = None;
        }
        self.withdraw_all_of(event.run_id);
        if is_own {
            self.out.push_back(Out::TurnEnded(event));
        } else {
            self.tell_active_run();
        }
    }

    /// Says which run goes on that the editor awaits no answer of.
    fn tell_active_run(&mut self) {
        if self.is_live {
            let info = SessionInfoUpdate::new().meta(self.state());
            self.push([SessionUpdate::SessionInfoUpdate(info)]);
        }
    }

    /// What the protocol has no place for.
    fn state(&self) -> serde_json::Map<String, serde_json::Value> {
        let state = json!({"activeRunId": self.active_run});
        serde_json::Map::from_iter([("tapedeck".to_owned(), state)])
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Question(question, left, errand) => {
                self.left(question, left);
                drop(errand);
            }
            Done::Waits(run_id, why) => self.waits(run_id, why),
            Done::Hopeless(run_id, reason) => self.is_hopeless(run_id, &reason),
            Done::Changed(session) => {
                let changed = self
                    .choices
                    .changed(session.approval_policy, &session.agent);
                self.push(changed);
                if self.title != session.title {
                    self.title.clone_from(&session.title);
                    let info = SessionInfoUpdate::new().title(session.title);
                    self.push([SessionUpdate::SessionInfoUpdate(info)]);
                }
            }
            Done::Nothing => {}
        }
    }

    /// Somebody has changed the session's settings.
    fn look_at_settings(&mut self) {
        let (client, id) = (self.client.clone(), self.id);
        let task = async move {
            match client.session(id).await {
                Ok(session) => Done::Changed(Box::new(session)),
                Err(_unknown) => Done::Nothing,
            }
        };
        self.tasks.push(task.boxed());
    }

    /// Answers the request that opened the session.
    fn opened(&mut self) -> Result<(), Error> {
        if self.are_choices_old {
            self.choices.show_wishes();
        }
        let (modes, options) = (self.choices.modes(), self.choices.options());
        let meta = self.state();
        match self.opening.take() {
            Some(Start::Load(responder)) => {
                let answer = LoadSessionResponse::new().modes(modes);
                responder.respond(answer.config_options(options).meta(meta))
            }
            Some(Start::Resume(responder)) => {
                let answer = ResumeSessionResponse::new().modes(modes);
                responder.respond(answer.config_options(options).meta(meta))
            }
            Some(Start::New) | None => Ok(()),
        }
    }

    /// The session isn't open here any longer.
    fn give_up(&mut self, error: &Error) {
        self.fail_turn(error.clone());
        if let Some(start) = self.opening.take() {
            let _closed = start.refuse(error.clone());
        }
    }
}

async fn maybe<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
