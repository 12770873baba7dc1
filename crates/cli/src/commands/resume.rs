//! `tapedeck resume`: a new run that goes on where an earlier one ended.

use tapedeck_client::{Client, Paging};
use tapedeck_domain::SessionId;
use tapedeck_domain::resume::CONTINUE_PROMPT;
use tapedeck_protocol::run::{AcceptedResponse, PromptRequest, ResumeRequest};
use tapedeck_protocol::session::SessionResponse;

use crate::commands::agents::AgentArgs;
use crate::commands::following::{Followed, OnInterrupt};
use crate::commands::run::{answers, follow_with};
use crate::commands::signals::Signals;
use crate::commands::starting::{agent_is_the_servers, start_executor};
use crate::context::{Connection, Context};
use crate::exit::{Exit, Failed};

/// Sessions among which the last one is looked for.
const RECENT: u32 = 200;

/// Go on with a session after its run ended or was interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck resume --last
  tapedeck resume --session SESSION --prompt 'Now the tests'")]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub(crate) struct Args {
    /// The session
    #[arg(long, value_name = "ID", group = "which")]
    session: Option<SessionId>,
    /// The session that was last active
    #[arg(long, group = "which")]
    last: bool,
    /// What the agent should do now; without it it continues
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Resumes and follows.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work = async |connection: &Connection| {
        resume_and_follow(args, &context, connection, &mut signals).await
    };
    context.connected(work).await
}

async fn resume_and_follow(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    if connection.local_dir().is_none() && args.agent.is_given() {
        return Err(agent_is_the_servers());
    }
    let session = match args.session {
        Some(id) => connection.client.session(id).await?,
        None => last_session(connection).await?,
    };
    let id = session.session_id;
    let executor = start_executor(context, connection, &session)?;
    connection.touch(id);
    let accepted = match admit(&connection.client, &session, args.prompt).await {
        Ok(accepted) => accepted,
        Err(error) => {
            if let Some(executor) = executor {
                executor.end().await;
            }
            return Err(error.into());
        }
    };
    let followed = Followed {
        session_id: id,
        run_id: accepted.run_id,
        after: accepted.session_seq.saturating_sub(1),
        on_interrupt: OnInterrupt::CancelRun,
        answers: answers(context, connection),
        is_prompt_next: false,
    };
    follow_with(context, connection, executor, followed, signals).await
}

/// A session without a run of its own, as a fork is at first, has nothing to resume: it is prompted.
pub(crate) async fn admit(
    client: &Client,
    session: &SessionResponse,
    prompt: Option<String>,
) -> tapedeck_client::Result<AcceptedResponse> {
    let is_new = session.last_run_id.is_none();
    if is_new && (prompt.is_some() || session.forked_from.is_some()) {
        let prompt = prompt.unwrap_or_else(|| CONTINUE_PROMPT.to_owned());
        let request = PromptRequest {
            prompt: Some(prompt),
            ..PromptRequest::default()
        };
        return client.prompt(session.session_id, &request).await;
    }
    let request = ResumeRequest {
        prompt,
        ..ResumeRequest::default()
    };
    client.resume(session.session_id, &request).await
}

/// The open session that was last active.
pub(crate) async fn last_session(connection: &Connection) -> anyhow::Result<SessionResponse> {
    let paging = Paging {
        limit: Some(RECENT),
        cursor: None,
    };
    let list = connection.client.sessions(&paging).await?;
    let open = list
        .sessions
        .into_iter()
        .filter(|session| session.closed_at.is_none());
    open.max_by_key(|session| session.last_activity_at)
        .ok_or_else(|| Failed::with(Exit::NotFound, "there is no session yet"))
}
