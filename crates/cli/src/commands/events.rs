//! `tapedeck events`: the log over all sessions, for dashboards and archives. Each line names the
//! cursor with which the next command goes on.

use std::time::Duration;

use serde_json::json;
use tapedeck_client::{FeedFrame, FeedStart, FollowAll, StreamEvent, StreamOptions};

use crate::commands::rendering::payload;
use crate::commands::signals::Signals;
use crate::context::{Connection, Context};
use crate::exit::Exit;
use crate::output::{Printer, time};

/// Who only wants what is there doesn't wait longer for a server that is away.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// Print the events of all sessions, the oldest first.
///
/// With `--json` each line is `{"cursor": …, "event": …}`. Keep the cursor of the last line that was
/// dealt with: with it, `--after` goes on exactly behind that event.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck events --follow
  tapedeck events --kind TurnEnd --after CURSOR --json")]
pub(crate) struct Args {
    /// Go on with new events until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Only this kind; may be given several times, or with commas
    #[arg(
        long = "kind",
        alias = "kinds",
        value_name = "KIND",
        value_delimiter = ','
    )]
    kinds: Vec<String>,
    /// Only what comes after this cursor; `head` is the end of the log
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

/// Prints.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let work = async |connection: &Connection| {
        print(args, connection, context.printer, &mut signals).await
    };
    context.connected(work).await
}

async fn print(
    args: Args,
    connection: &Connection,
    printer: Printer,
    signals: &mut Signals,
) -> anyhow::Result<Exit> {
    let selection = FollowAll {
        start: match args.after {
            None => FeedStart::Beginning,
            Some(word) if word == "head" => FeedStart::Head,
            Some(cursor) => FeedStart::After(cursor),
        },
        kinds: args.kinds,
    };
    let options = StreamOptions {
        give_up_after: (!args.follow).then_some(GIVE_UP_AFTER),
        ..StreamOptions::default()
    };
    let mut frames = connection.client.follow_all(selection, options);
    let exit = loop {
        let frame = tokio::select! {
            frame = frames.next() => frame,
            _asked = signals.next() => break Exit::Interrupted,
        };
        match frame.transpose()? {
            Some(FeedFrame::Event { cursor, event }) => show(printer, &cursor, &event)?,
            Some(FeedFrame::Live(_)) if !args.follow => break Exit::Success,
            Some(FeedFrame::Open(_) | FeedFrame::Live(_)) => {}
            None => break Exit::Success,
        }
    };
    if let (false, Some(cursor)) = (printer.is_json(), frames.cursor()) {
        printer.note(format!("`--after {cursor}` goes on from here"))?;
    }
    Ok(exit)
}

fn show(printer: Printer, cursor: &str, event: &StreamEvent) -> std::io::Result<()> {
    if printer.is_json() {
        return printer.object(&json!({"cursor": cursor, "event": event.data}));
    }
    let (at, session) = (time(Some(event.timestamp)), event.session_id);
    let (seq, kind) = (event.session_seq, &event.kind);
    let payload = payload(event);
    printer.line(format!("{at}  {session}  {seq:>6}  {kind:<18}  {payload}").trim_end())
}
