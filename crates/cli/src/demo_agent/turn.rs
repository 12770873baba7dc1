//! One turn: the steps of a script, one after another, as updates to the client. It owns when a
//! cancel is heard and that no tool call stays open at the end, and must never answer the prompt
//! or end the process itself: it says how the turn ended.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use agent_client_protocol::v1::schema::{
    Diff, MessageId, RequestPermissionOutcome, RequestPermissionResponse, SessionId,
    SessionNotification, SessionUpdate, StopReason, ToolCallContent, ToolCallId, ToolCallStatus,
};
use agent_client_protocol::v1::{ConnectionTo, SentRequest};
use agent_client_protocol::{Client, Error, ErrorCode};
use serde_json::{Value, json};
use tapedeck_acp_agent::wire::Wire;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::script::{Call, Script, Step};
use super::{files, updates};

const TICK: Duration = Duration::from_millis(100);
const REMEMBERED_BYTES: usize = 64 << 10;
const NOISE: &[u8] = b"this line is no JSON-RPC\n{\"jsonrpc\": \n\n[1, 2\n\xff\xfe not UTF-8\n";

/// How a turn ended.
#[derive(Debug)]
pub(super) enum Ending {
    Stopped(StopReason),
    Failed(Error),
    Died(Death),
}

/// How the process is to end in mid-turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Death {
    Abort,
    Exit(u8),
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a turn works with, and what it has done so far.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) connection: ConnectionTo<Client>,
    pub(super) wire: Wire,
    pub(super) session: SessionId,
    pub(super) cwd: PathBuf,
    pub(super) cancel: CancellationToken,
    /// The prompts of the turns before this one.
    pub(super) earlier: Vec<String>,
    /// The text said in this turn, as far as it is remembered.
    pub(super) said: String,
    pub(super) open_calls: Vec<ToolCallId>,
    pub(super) named: u32,
}

impl Turn {
    /// Performs the script to its end, or until it is cancelled.
    pub(super) async fn perform(&mut self, script: Script) -> Ending {
        let ending = match self.perform_all(script).await {
            Ok(()) => Ending::Stopped(StopReason::EndTurn),
            Err(ending) => ending,
        };
        // Whoever dies leaves its calls as they are.
        if matches!(ending, Ending::Died(_)) {
            return ending;
        }
        for id in std::mem::take(&mut self.open_calls) {
            let shown = updates::shown_text("cancelled");
            let update = updates::tool_ended(&id, ToolCallStatus::Failed, shown, None);
            let _ = self.send(update).await;
        }
        ending
    }

    async fn perform_all(&mut self, script: Script) -> Result<(), Ending> {
        match script {
            Script::Prose(text) => {
                self.until_cancelled(async |turn| turn.answer(&text).await)
                    .await
            }
            Script::Steps(steps) => {
                for step in steps {
                    if matches!(step, Step::IgnoreCancel(_) | Step::LateAsk(_)) {
                        self.step(step).await?;
                    } else {
                        self.until_cancelled(async |turn| turn.step(step).await)
                            .await?;
                    }
                }
                self.until_cancelled(async |_turn| Ok(())).await
            }
        }
    }

    async fn until_cancelled(
        &mut self,
        work: impl AsyncFnOnce(&mut Self) -> Result<(), Ending>,
    ) -> Result<(), Ending> {
        let cancel = self.cancel.clone();
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Ending::Stopped(StopReason::Cancelled)),
            result = work(self) => result,
        }
    }

    async fn step(&mut self, step: Step) -> Result<(), Ending> {
        match step {
            Step::Say(text) => self.say(&text).await,
            Step::Think(text) => self.send(updates::thought(&text)).await,
            Step::Plan(entries) => self.send(updates::plan(&entries, 0)).await,
            Step::Tool(call) => self.call(&call).await,
            Step::Begin(call) => {
                let id = self.begin(&call).await?;
                self.send(updates::tool_running(&id)).await
            }
            Step::LateAsk(call) => self.late_ask(&call).await,
            Step::Ask(call) => self.ask(&[call]).await,
            Step::TwoAsks => {
                let call = |tool: &str| Call {
                    tool: tool.to_owned(),
                    arguments: json!({}),
                };
                self.ask(&[call("first"), call("second")]).await
            }
            Step::Stream { count, every } => self.stream("chunk", count, every).await,
            Step::Flood { count } => self.stream("update", count, Duration::ZERO).await,
            Step::Slow(time) | Step::IgnoreCancel(time) => self.tick(time).await,
            Step::Write { path, text } => self.write(path, text).await,
            Step::Read { path } => self.read(&path).await,
            Step::Usage => self.send(updates::usage(self.said.len() as u64)).await,
            Step::Remember => self.remember().await,
            Step::Noise => {
                self.wire.noise(NOISE).await;
                Ok(())
            }
            Step::Long { bytes } => self.say(&"x".repeat(bytes)).await,
            Step::Crash { code: None } => Err(Ending::Died(Death::Abort)),
            Step::Crash { code: Some(code) } => Err(Ending::Died(Death::Exit(code))),
            Step::Exit => Err(Ending::Died(Death::Exit(0))),
            Step::Hang => std::future::pending().await,
            Step::Spawn => self.spawn().await,
            Step::Fail { message } => Err(Ending::Failed(Error::new(
                ErrorCode::INTERNAL_ERROR,
                message,
            ))),
        }
    }

    pub(super) async fn send(&self, update: SessionUpdate) -> Result<(), Ending> {
        self.wire.admit().await;
        let notification = SessionNotification::new(self.session.clone(), update);
        Ok(self.connection.send_notification(notification)?)
    }

    /// One whole message.
    pub(super) async fn say(&mut self, text: &str) -> Result<(), Ending> {
        let id = self.message_id();
        self.say_piece(&id, text).await
    }

    /// One piece of the message `id`.
    pub(super) async fn say_piece(&mut self, id: &MessageId, text: &str) -> Result<(), Ending> {
        if self.said.len() + text.len() <= REMEMBERED_BYTES {
            self.said.push_str(text);
        }
        self.send(updates::message(id, text)).await
    }

    pub(super) fn message_id(&mut self) -> MessageId {
        MessageId::from(self.name("message"))
    }

    fn name(&mut self, what: &str) -> String {
        self.named += 1;
        format!("{what}-{}-{}", self.earlier.len() + 1, self.named)
    }

    async fn stream(&mut self, word: &str, count: u32, every: Duration) -> Result<(), Ending> {
        let id = self.message_id();
        for number in 1..=count {
            self.say_piece(&id, &format!("{word} {number}\n")).await?;
            if !every.is_zero() {
                sleep(every).await;
            }
        }
        Ok(())
    }

    async fn tick(&mut self, time: Duration) -> Result<(), Ending> {
        let ticks = time.as_millis().div_ceil(TICK.as_millis());
        self.stream("tick", u32::try_from(ticks).unwrap_or(u32::MAX), TICK)
            .await
    }

    /// A tool call from beginning to end.
    async fn call(&mut self, call: &Call) -> Result<(), Ending> {
        let id = self.begin(call).await?;
        self.finish(&id, call).await
    }

    /// Shows a tool call that has not begun.
    pub(super) async fn begin(&mut self, call: &Call) -> Result<ToolCallId, Ending> {
        let id = ToolCallId::new(self.name("call"));
        self.open_calls.push(id.clone());
        self.send(updates::tool_pending(&id, call)).await?;
        Ok(id)
    }

    async fn finish(&mut self, id: &ToolCallId, call: &Call) -> Result<(), Ending> {
        self.send(updates::tool_running(id)).await?;
        let shown = updates::shown_text(&format!("{} done", call.tool));
        self.end(
            id,
            Ok((shown, json!({"ok": true, "arguments": call.arguments}))),
        )
        .await
    }

    /// Shows a tool call's result, or why there is none.
    pub(super) async fn end(
        &mut self,
        id: &ToolCallId,
        result: std::io::Result<(Vec<ToolCallContent>, Value)>,
    ) -> Result<(), Ending> {
        self.open_calls.retain(|open| open != id);
        let update = match result {
            Ok((shown, output)) => {
                updates::tool_ended(id, ToolCallStatus::Completed, shown, Some(output))
            }
            Err(error) => {
                let shown = updates::shown_text(&error.to_string());
                updates::tool_ended(id, ToolCallStatus::Failed, shown, None)
            }
        };
        self.send(update).await
    }

    /// Asks for all calls at once, then makes those that were allowed.
    async fn ask(&mut self, calls: &[Call]) -> Result<(), Ending> {
        let mut asked: Vec<(&Call, ToolCallId, SentRequest<RequestPermissionResponse>)> =
            Vec::new();
        for call in calls {
            let id = self.begin(call).await?;
            let question = updates::question(&self.session, &id, call);
            asked.push((call, id, self.connection.send_request(question)));
        }
        for (call, id, answer) in asked {
            match answer.block_task().await?.outcome {
                RequestPermissionOutcome::Selected(chosen)
                    if updates::allows(&chosen.option_id.0) =>
                {
                    self.finish(&id, call).await?;
                    self.say(&format!("`{}` was allowed.\n", call.tool)).await?;
                }
                RequestPermissionOutcome::Selected(_) => {
                    self.end(&id, Err(std::io::Error::other("not allowed")))
                        .await?;
                    let text = format!("`{}` was not allowed; going on without it.\n", call.tool);
                    self.say(&text).await?;
                }
                _ => return Err(Ending::Stopped(StopReason::Cancelled)),
            }
        }
        Ok(())
    }

    /// Asks when nobody wants to be asked any more.
    async fn late_ask(&mut self, call: &Call) -> Result<(), Ending> {
        let cancel = self.cancel.clone();
        cancel.cancelled().await;
        self.ask(std::slice::from_ref(call)).await
    }

    async fn write(&mut self, path: String, text: String) -> Result<(), Ending> {
        let arguments = json!({"path": path, "content": text});
        let id = self
            .begin(&Call {
                tool: "write".to_owned(),
                arguments,
            })
            .await?;
        self.send(updates::tool_running(&id)).await?;
        let result = files::write(&self.cwd, &path, &text).await.map(|before| {
            let output = json!({"path": path, "bytes": text.len()});
            let diff = Diff::new(self.cwd.join(&path), text).old_text(before);
            (vec![ToolCallContent::Diff(diff)], output)
        });
        self.end(&id, result).await
    }

    async fn read(&mut self, path: &str) -> Result<(), Ending> {
        let call = Call {
            tool: "read".to_owned(),
            arguments: json!({"path": path}),
        };
        let id = self.begin(&call).await?;
        self.send(updates::tool_running(&id)).await?;
        let result = files::read(&self.cwd, path).await.map(|text| {
            let output = json!({"path": path, "bytes": text.len()});
            (updates::shown_text(&text), output)
        });
        self.end(&id, result).await
    }

    async fn remember(&mut self) -> Result<(), Ending> {
        if self.earlier.is_empty() {
            return self.say("I remember no earlier prompt.\n").await;
        }
        let mut text = format!("I remember {} earlier prompts:\n", self.earlier.len());
        for (at, prompt) in self.earlier.iter().enumerate() {
            // Writing to a string doesn't fail.
            let _ = writeln!(text, "{}. {prompt}", at + 1);
        }
        self.say(&text).await
    }

    /// Leaves a child where the signals of the agent's process group don't reach it, as agents do
    /// with the commands they run.
    async fn spawn(&mut self) -> Result<(), Ending> {
        let child = tokio::process::Command::new("setsid")
            .args(["sleep", "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(false)
            .spawn()
            .map_err(Error::into_internal_error)?;
        let pid = child.id().unwrap_or_default();
        self.say(&format!("spawned {pid}\n")).await
    }
}
