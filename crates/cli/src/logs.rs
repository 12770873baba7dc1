//! Logs, which always go to stderr, and hold no prompt text whatever is asked for.

use std::io;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Config, LogFormat};
use crate::exit::Failed;

/// The crate that writes whole messages of editors and agents into its most detailed records.
const TALKATIVE: &str = "agent_client_protocol";

/// Writes log records from here on.
pub(crate) fn start(config: &Config, default_filter: &str) -> anyhow::Result<()> {
    let filter = config.log.filter.as_deref().unwrap_or(default_filter);
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failed::usage(format!("the log filter `{filter}`: {error}")))?;
    let filter = filter.and(filter_fn(is_discreet));
    let logs = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        // A reader of the log that has gone, or its full disk, must not end what is logged.
        .log_internal_errors(false)
        .with_ansi(false);
    let logs = match config.log.format {
        LogFormat::Text => logs.with_filter(filter).boxed(),
        LogFormat::Json => logs.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let started = tracing_subscriber::registry().with(logs).try_init();
    started.map_err(|error| anyhow::anyhow!("logs can't be written: {error}"))
}

fn is_discreet(record: &Metadata<'_>) -> bool {
    *record.level() != Level::TRACE || !record.target().starts_with(TALKATIVE)
}
