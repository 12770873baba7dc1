//! Logs, which always go to stderr.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};
use crate::exit::Failed;

/// Writes log records from here on.
pub(crate) fn start(config: &Config, default_filter: &str) -> anyhow::Result<()> {
    let filter = config.log.filter.as_deref().unwrap_or(default_filter);
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failed::usage(format!("the log filter `{filter}`: {error}")))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // A reader of the log that has gone, or its full disk, must not end what is logged.
        .log_internal_errors(false)
        .with_ansi(false);
    let started = match config.log.format {
        LogFormat::Text => logs.try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logs can't be written: {error}"))
}
