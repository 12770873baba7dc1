//! The executor of one session, in a process that outlives the editor whose prompt it executes. It
//! ends once the session has had nothing to do for as long as an agent stays.

use std::path::Path;
use std::time::Duration;

use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tokio::time::{Instant, sleep};

use crate::commands::agents::Agent;
use crate::commands::local::{self, LocalExecutor};
use crate::commands::signals::Signals;
use crate::context::{Background, Context, ExecutorLock};
use crate::exit::Exit;

/// Between two looks at the session.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a server may be away. One that comes back elsewhere is another one.
const GIVE_UP_AFTER: Duration = Duration::from_mins(5);
/// For an executor that has lost its server to let go of its agent.
const LAST_TRY: Duration = Duration::from_secs(5);
/// A session that has nothing to do for less than this may be about to get its next prompt.
const SHORTEST_STAY: Duration = Duration::from_secs(3);

/// Executes a session's runs.
pub(super) async fn run(id: SessionId, context: &Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let background = Background::enter(&context.config).await?;
    let Some(_lock) = lock(background.dir(), id).await? else {
        return Ok(Exit::Success);
    };
    let holder = background.holder().await?;
    let client = holder.client()?;
    let session = client.session(id).await?;
    let remembered = local::remembered(background.dir(), id)?;
    let agent = remembered.or_else(|| Agent::configured(&context.config));
    let agent = agent.ok_or_else(local::unnamed)?;
    let mut settings = (*context.config).clone();
    // The person's own editor names them, on the person's own machine.
    settings.executor.allow_session_command = true;
    let clients = (&client, holder.client()?);
    let mut executor = LocalExecutor::start(&settings, clients, &session, &agent)?;
    let stay = Duration::from_secs(settings.executor.warm_seconds.into()).max(SHORTEST_STAY);
    tokio::select! {
        error = executor.failed() => return Err(error),
        _asked = signals.next() => executor.end().await,
        is_lost = until_idle(&background, (&client, &holder.url), id, stay) => {
            if is_lost {
                // What it still has to tell is told by the next executor of the session.
                let _late = tokio::time::timeout(LAST_TRY, executor.end()).await;
            } else {
                executor.finish().await;
            }
        }
    }
    Ok(Exit::Success)
}

/// The session's lock. Who only looks whether somebody has it holds it for a moment.
async fn lock(dir: &Path, id: SessionId) -> anyhow::Result<Option<ExecutorLock>> {
    let deadline = Instant::now() + PERIOD;
    loop {
        let lock = ExecutorLock::take(dir, id)?;
        if lock.is_some() || Instant::now() >= deadline {
            return Ok(lock);
        }
        sleep(PERIOD / 20).await;
    }
}

/// Waits until the session has had no run for a while, or is gone, or its server is for good. The
/// server is kept alive meanwhile: a run may be under way. Gives whether another server has the
/// directory now, at another address: then this executor is of no use.
async fn until_idle(
    background: &Background,
    (client, url): (&Client, &str),
    id: SessionId,
    stay: Duration,
) -> bool {
    let mut idle_since = Instant::now();
    let mut heard_at = Instant::now();
    while idle_since.elapsed() < stay && heard_at.elapsed() < GIVE_UP_AFTER {
        sleep(PERIOD).await;
        match background.holder().await {
            Ok(holder) if holder.url != url => return true,
            Ok(_) => {}
            Err(error) => tracing::warn!(error = format!("{error:#}"), "acp.server_lost"),
        }
        match client.session(id).await {
            Ok(session) => {
                heard_at = Instant::now();
                if session.active_run_id.is_some() || session.queued_runs > 0 {
                    idle_since = heard_at;
                }
            }
            // Deleted.
            Err(error) if error.problem().is_some_and(|problem| problem.status == 404) => {
                return false;
            }
            // A run may go on while the server is away.
            Err(_away) => idle_since = Instant::now(),
        }
    }
    false
}
