//! `tapedeck repl`: a conversation with an agent at one prompt. Each prompt is a run of the session,
//! followed to its end; lines that begin with `/` are commands.

mod desk;
mod doing;
mod input;
mod slash;

use std::future::pending;

use tapedeck_domain::SessionId;
use tapedeck_protocol::ErrorCode;
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::desk::Desk;
use self::input::{Input, Typed};
use self::slash::Said;
use crate::app;
use crate::commands::resume::last_session;
use crate::commands::signals::{Asked, Signals};
use crate::commands::starting::NewSession;
use crate::config;
use crate::context::{Connection, Context};
use crate::exit::{self, Exit, Failed};
use crate::hints;

/// Converse with an agent, prompt by prompt.
///
/// At a terminal lines are edited and remembered. Enter sends; Alt-Enter begins a new line, and so do
/// a `\` at a line's end and an open block between code fences. Lines that begin with `/` are
/// commands: `/help` lists them. Ctrl-C cancels the run and keeps the session, a second one leaves
/// the run to itself; Ctrl-D ends. Where stdin or stdout is no terminal, prompts are read line by
/// line, and the exit code is that of the last one that did not go well.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck repl --agent claude
  tapedeck repl --last
  tapedeck --remote home repl --session SESSION
  printf 'say hello\\n/checkpoint greeted\\n' | tapedeck repl --agent demo --json")]
pub(crate) struct Args {
    /// Go on with this session
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["last", "workspace", "scratch", "approval_policy"]
    )]
    session: Option<SessionId>,
    /// Go on with the session that was last active
    #[arg(long, conflicts_with_all = ["workspace", "scratch", "approval_policy"])]
    last: bool,
    #[command(flatten)]
    pub(crate) new: NewSession,
}

/// Converses.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work =
        async |connection: &Connection| converse(args, &context, connection, &mut signals).await;
    context.connected(work).await
}

async fn converse(
    args: Args,
    context: &Context,
    connection: &Connection,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let session = match args.session {
        Some(id) => Some(connection.client.session(id).await?),
        None if args.last => Some(last_session(connection).await?),
        None => None,
    };
    let history = config::expand(&context.config.history_file)?;
    let mut input = Input::open(context.printer, &history)?;
    let mut desk = Desk::new(context, connection, signals, args.new);
    let outcome = async {
        desk.greet(&input)?;
        if let Some(session) = session {
            let opened = desk.open(session, &input).await;
            desk.told(opened)?;
            if desk.is_terminated {
                return Ok(Exit::Interrupted);
            }
        }
        listen(&mut desk, &mut input).await
    };
    let outcome = outcome.await;
    // An editor gives the terminal back before the last words.
    let is_editor = input.is_editor();
    drop(input);
    desk.leave(is_editor).await?;
    outcome
}

/// Takes lines until the last one.
async fn listen(desk: &mut Desk<'_>, input: &mut Input) -> anyhow::Result<Exit> {
    let mut renewal = renewal(desk.connection);
    loop {
        let typed = tokio::select! {
            typed = input.next() => typed?,
            asked = desk.signals.next() => match asked {
                // At an editor Ctrl-C is a key; what comes here was meant for a run that has ended.
                Asked::Interrupt if input.is_editor() => continue,
                Asked::Interrupt | Asked::Terminate => return Ok(Exit::Interrupted),
            },
            () = tick(&mut renewal) => {
                desk.keep().await;
                continue;
            }
        };
        let text = match typed {
            Typed::Text(text) => text,
            Typed::Interrupted => {
                desk.note("Ctrl-D or `/quit` ends")?;
                continue;
            }
            Typed::Unreadable => {
                // Stray bytes are no reason to end.
                desk.told(Err(Failed::usage("that was no UTF-8 text and is dropped")))?;
                continue;
            }
            Typed::Ended => return Ok(ended(desk, input)),
        };
        let done = match slash::read(&text) {
            Ok(Said::Nothing) => continue,
            Ok(Said::Command(slash::Slash::Quit)) => return Ok(ended(desk, input)),
            Ok(Said::Command(command)) => desk.command(command, input).await,
            Ok(Said::Prompt(prompt)) => desk.prompt(prompt).await,
            Err(mistake) => Err(Failed::usage(mistake)),
        };
        desk.told(done)?;
        if desk.is_terminated {
            return Ok(Exit::Interrupted);
        }
    }
}

/// A person has seen what did not go well; a script's caller has only the exit.
fn ended(desk: &Desk<'_>, input: &Input) -> Exit {
    if input.is_editor() {
        Exit::Success
    } else {
        desk.exit
    }
}

/// A session that is open here stays this process's, also while nothing runs.
fn renewal(connection: &Connection) -> Option<Interval> {
    let embedded = connection.embedded.as_ref()?;
    let mut ticks = interval(embedded.renewal());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(ticks)
}

async fn tick(renewal: &mut Option<Interval>) {
    match renewal {
        Some(ticks) => drop(ticks.tick().await),
        None => pending().await,
    }
}

/// What to do about a refusal here.
const fn hint(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::SessionBusy => Some("`/attach` follows the active run, `/cancel` cancels it"),
        ErrorCode::OwnedElsewhere => Some("`/attach` reads along"),
        ErrorCode::CheckpointSuperseded => Some("`/checkpoints` lists the active ones"),
        ErrorCode::NothingToResume => Some("a prompt begins the session's first run"),
        other => hints::of_code(other),
    }
}

impl Desk<'_> {
    /// Tells a mistake and goes on; only output that nobody reads any more ends the conversation.
    fn told(&mut self, done: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = done else { return Ok(()) };
        if exit::reader_has_gone(&error) {
            return Err(error);
        }
        let exit = Exit::of_error(&error);
        app::report(self.context.printer, &error, exit, hint);
        self.exit = exit;
        Ok(())
    }
}
