//! The story: eight steps over the public interface, each checked.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Map, json};
use tapedeck_client::{Client, Follower};
use tapedeck_domain::run::RunStatus;
use tapedeck_domain::session::WorkspaceKind;
use tapedeck_domain::{RunId, SessionId};
use tapedeck_protocol::ErrorCode;
use tapedeck_protocol::interaction::ResolveRequest;
use tapedeck_protocol::run::{PromptRequest, ResumeRequest};
use tapedeck_protocol::run_target::{RunTargetRequest, WorkspaceBody};
use tapedeck_protocol::session::CreateSessionRequest;
use tokio::time::Instant;

use super::processes::{LEASE_SECONDS, Stage};
use super::telling::{Step, Telling};
use super::watching::{STEP, Watch};
use crate::commands::rendering::Question;

const FIRST: &str = "demo-one";
const SECOND: &str = "demo-two";
/// What the agent is asked first: it works for as long as nobody stops it.
const GOAL: &str = "plan Read the notes | Write the report | Run the tests; read notes.txt; \
                    say Now the report, line by line:; stream 600 100";
/// What it is asked after the resume.
const CONTINUE: &str = "say I have what was said before, and go on.; \
                        ask shell {\"command\": \"make test\"}; stream 12 80; say The report is done.";
/// Pieces of the agent's message that are shown before its executor is killed.
const PIECES: usize = 12;
/// The sweep's period with its jitter, and some time for a busy machine.
const SWEEP: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(250);

/// Tells the story to its end.
pub(super) async fn tell(stage: &mut Stage, telling: Telling) -> anyhow::Result<()> {
    telling.begin()?;
    let url = start_server(stage, telling).await?;
    let client = Client::http(&url, None)?;
    let watch = Watch::new(client.clone(), telling);
    let mut story = Story {
        stage,
        telling,
        client,
        url,
        watch,
    };
    story.start_executor().await?;
    let (session, first, mut frames) = story.start_run().await?;
    story.kill().await?;
    story.wait_for_the_sweep(first, &mut frames).await?;
    let (second, mut frames) = story.resume(session, first).await?;
    story.answer(&mut frames).await?;
    story.reach_the_end(session, second, &mut frames).await?;
    story.check_the_log(session, first, second).await
}

async fn start_server(stage: &mut Stage, telling: Telling) -> anyhow::Result<String> {
    let title = "A server starts on an empty directory";
    telling.heading(1, title)?;
    let url = stage.start_server().await?;
    let data_dir = stage.data_dir.display();
    telling.told(&Step {
        number: 1,
        title,
        text: format!("It answers at {url} and keeps everything in SQLite."),
        cli: format!("tapedeck serve --listen 127.0.0.1:0 --data-dir {data_dir}"),
        curl: Some(format!("curl {url}/readyz")),
    })?;
    Ok(url)
}

struct Story<'a> {
    stage: &'a mut Stage,
    telling: Telling,
    client: Client,
    url: String,
    watch: Watch,
}

impl Story<'_> {
    fn tapedeck(&self, rest: &str) -> String {
        format!("tapedeck --server {} {rest}", self.url)
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> String {
        let body = shell_words::quote(&body.to_string()).into_owned();
        let header = "-H 'content-type: application/json'";
        format!("curl -X POST {}{path} {header} -d {body}", self.url)
    }

    async fn start_executor(&mut self) -> anyhow::Result<()> {
        let title = "An executor connects: the process that drives agents";
        self.telling.heading(2, title)?;
        let pid = self.stage.start_executor(FIRST, &self.url)?;
        self.until_seen(FIRST, pid).await?;
        let rest = format!(
            "executor --agent demo --lease-seconds {LEASE_SECONDS} --executor-id {FIRST} \
             --workspace-root {}",
            self.stage.workspace.display()
        );
        self.telling.told(&Step {
            number: 2,
            title,
            text: "It may be on any machine; it waits for runs and speaks ACP to its agent.\n\
                   `demo` is an agent in this binary; put your own there: --agent \"opencode acp\""
                .to_owned(),
            cli: self.tapedeck(&rest),
            curl: Some(format!("curl {}/executors", self.url)),
        })?;
        Ok(())
    }

    /// Waits until the server knows this very process.
    async fn until_seen(&self, executor: &str, pid: u32) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.client.executor(executor).await {
                Ok(known) if known.process_id == Some(pid.into()) => return Ok(()),
                Err(error) if error.code() != Some(ErrorCode::ExecutorNotFound) => {
                    return Err(error.into());
                }
                Ok(_) | Err(_) => {
                    ensure!(began.elapsed() < STEP, "the executor does not connect");
                }
            }
            tokio::time::sleep(TICK / 5).await;
        }
    }

    async fn start_run(&mut self) -> anyhow::Result<(SessionId, RunId, Follower)> {
        let title = "A session begins, and its run is followed live";
        self.telling.heading(3, title)?;
        let path = self
            .stage
            .workspace
            .to_str()
            .context("the path is no text")?;
        let request = CreateSessionRequest {
            title: Some("The demo".to_owned()),
            run_target: Some(RunTargetRequest {
                workspace: Some(WorkspaceBody {
                    kind: WorkspaceKind::LocalPath,
                    fields: Map::from_iter([("path".to_owned(), path.into())]),
                }),
                ..RunTargetRequest::default()
            }),
            ..CreateSessionRequest::default()
        };
        let session = self.client.create_session(&request).await?.session_id;
        let request = PromptRequest {
            prompt: Some(GOAL.to_owned()),
            ..PromptRequest::default()
        };
        let accepted = self.client.prompt(session, &request).await?;
        let mut frames = self
            .watch
            .follow(session, accepted.run_id, accepted.session_seq);
        let mut pieces = 0;
        self.watch
            .events(&mut frames, |event| {
                pieces += usize::from(event.kind == "StreamDelta");
                pieces >= PIECES
            })
            .await?;
        let goal = shell_words::quote(GOAL).into_owned();
        self.telling.told(&Step {
            number: 3,
            title,
            text: format!(
                "Every event has a number and is on disk before you see it: {} so far.",
                self.watch.seen()
            ),
            cli: self.tapedeck(&format!("run --goal {goal}")),
            curl: Some(self.post(
                &format!("/sessions/{session}/prompt"),
                &json!({"prompt": GOAL}),
            )),
        })?;
        Ok((session, accepted.run_id, frames))
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        let title = "The executor dies in the middle of it: SIGKILL";
        self.telling.heading(4, title)?;
        let pid = self.stage.kill_executor(FIRST).await?;
        self.telling.told(&Step {
            number: 4,
            title,
            text: "It could say nothing any more. A guard beside the agent ends that at once,\n\
                   so that no agent works on behalf of nobody."
                .to_owned(),
            cli: format!("kill -9 {pid}"),
            curl: None,
        })?;
        Ok(())
    }

    async fn wait_for_the_sweep(
        &mut self,
        run: RunId,
        frames: &mut Follower,
    ) -> anyhow::Result<()> {
        let title = "The server notices by itself: the run's lease runs out";
        self.telling.heading(5, title)?;
        let (telling, began) = (self.telling, Instant::now());
        let lease = Duration::from_secs(LEASE_SECONDS.into());
        self.watch.is_counting = true;
        let waiting = self
            .watch
            .events_for(lease + SWEEP, frames, |event| event.kind == "TurnEnd");
        let counting = async {
            loop {
                let left = lease.saturating_sub(began.elapsed()).as_secs();
                let text = match left {
                    0 => "the lease is over; the next sweep settles the run".to_owned(),
                    left => format!("the lease ends within {left} s"),
                };
                telling.passing(&text)?;
                tokio::time::sleep(TICK).await;
            }
        };
        let waited: anyhow::Result<()> = tokio::select! {
            waited = waiting => waited,
            counted = counting => counted,
        };
        self.watch.is_counting = false;
        telling.passed()?;
        waited.context("the run was not recovered")?;
        let settled = self.client.run(run).await?;
        ensure!(
            settled.status == RunStatus::Interrupted,
            "the run is {} and not interrupted",
            settled.status
        );
        let reason = settled.recovery_reason.unwrap_or_default();
        self.telling.told(&Step {
            number: 5,
            title,
            text: format!(
                "After {} s the run is interrupted ({reason}): what it said stays, and it takes no more.",
                began.elapsed().as_secs()
            ),
            cli: self.tapedeck(&format!("runs show {run}")),
            curl: Some(format!("curl {}/runs/{run}", self.url)),
        })?;
        Ok(())
    }

    async fn resume(
        &mut self,
        session: SessionId,
        first: RunId,
    ) -> anyhow::Result<(RunId, Follower)> {
        let title = "Another executor takes over: the session is resumed";
        self.telling.heading(6, title)?;
        let pid = self.stage.start_executor(SECOND, &self.url)?;
        self.until_seen(SECOND, pid).await?;
        let request = ResumeRequest {
            prompt: Some(CONTINUE.to_owned()),
            ..ResumeRequest::default()
        };
        let accepted = self.client.resume(session, &request).await?;
        let run = self.client.run(accepted.run_id).await?;
        ensure!(
            run.parent_run_id == Some(first),
            "the new run does not continue the first"
        );
        let frames = self
            .watch
            .follow(session, accepted.run_id, accepted.session_seq);
        let prompt = shell_words::quote(CONTINUE).into_owned();
        self.telling.told(&Step {
            number: 6,
            title,
            text: "A new run, linked to the first, that is told what was said. The first never changes."
                .to_owned(),
            cli: self.tapedeck(&format!("resume --session {session} --prompt {prompt}")),
            curl: Some(self.post(&format!("/sessions/{session}/resume"), &json!({"prompt": CONTINUE}))),
        })?;
        Ok((accepted.run_id, frames))
    }

    async fn answer(&mut self, frames: &mut Follower) -> anyhow::Result<()> {
        let title = "The agent asks for permission; anybody may answer, from anywhere";
        self.telling.heading(7, title)?;
        let mut asked = None;
        self.watch
            .events(frames, |event| {
                if event.kind == "ApprovalRequest" {
                    asked = Question::of(event).interaction_id;
                }
                asked.is_some()
            })
            .await?;
        let id = asked.context("the question has no id")?;
        let request = ResolveRequest {
            approved: Some(true),
            ..ResolveRequest::default()
        };
        let interaction = id.parse().context("the question's id can't be read")?;
        self.client.resolve(interaction, &request).await?;
        self.watch
            .events(frames, |event| event.kind == "ApprovalResponse")
            .await?;
        self.telling.told(&Step {
            number: 7,
            title,
            text: "The question waits in the database: it survives restarts, and takes one answer."
                .to_owned(),
            cli: self.tapedeck(&format!("approvals approve {id}")),
            curl: Some(self.post(
                &format!("/interactions/{id}/resolve"),
                &json!({"approved": true}),
            )),
        })?;
        Ok(())
    }

    async fn reach_the_end(
        &mut self,
        session: SessionId,
        run: RunId,
        frames: &mut Follower,
    ) -> anyhow::Result<()> {
        let title = "The run goes on to its end";
        self.telling.heading(8, title)?;
        self.watch
            .events(frames, |event| event.kind == "TurnEnd")
            .await?;
        let settled = self.client.run(run).await?;
        ensure!(
            settled.status == RunStatus::Completed,
            "the resumed run is {}: {}",
            settled.status,
            settled.error.unwrap_or_default()
        );
        self.telling.told(&Step {
            number: 8,
            title,
            text: "A stream that breaks is picked up after the last number you saw.".to_owned(),
            cli: self.tapedeck(&format!("attach {session}")),
            curl: Some(format!(
                "curl -N -H 'accept: text/event-stream' -H 'last-event-id: 7' {}/sessions/{session}/events",
                self.url
            )),
        })?;
        Ok(())
    }

    async fn check_the_log(
        &mut self,
        session: SessionId,
        first: RunId,
        second: RunId,
    ) -> anyhow::Result<()> {
        let title = "The log is whole";
        self.telling.heading(9, title)?;
        let count = self.watch.check_log(session, &[first, second]).await?;
        self.telling.told(&Step {
            number: 9,
            title,
            text: format!(
                "Events 1 to {count} without a gap, each seen live exactly once, one end for each \
                 run."
            ),
            cli: self.tapedeck(&format!("sessions events {session}")),
            curl: Some(format!(
                "curl -H 'accept: application/json' {}/sessions/{session}/events",
                self.url
            )),
        })?;
        Ok(())
    }
}
