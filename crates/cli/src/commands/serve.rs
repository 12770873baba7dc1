//! `tapedeck serve`: a server on the configured database, from the listener to the drain.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tapedeck_client::{Client, Secret};
use tapedeck_control_plane::ids::TimeOrdered;
use tapedeck_control_plane::{ControlPlane, Hints, Lifecycle, Options};
use tapedeck_domain::owner::Authority;
use tapedeck_protocol::ErrorCode;
use tapedeck_server::{BearerToken, HostPolicy, Limits, ServerState, TokenPolicy};
use tokio::net::TcpListener;

use crate::commands::doctor;
use crate::commands::signals::{Signals, Tether};
use crate::config::{self, Config, Given, HintFate};
use crate::context::{Context, Database, Need, ServerFile, own_token, unneeded};
use crate::exit::{Exit, Failed};
use crate::whole_file::{self, Output};

/// Events and bytes of each followed session that are kept in memory (stores §6).
const RING: (usize, usize) = (256, 1 << 20);
/// For tasks that outlive the connections; the drain as a whole takes at most 25 s.
const FINISH: Duration = Duration::from_secs(4);

/// Run a server, on the data directory or on a PostgreSQL database.
///
/// Any number of servers may share a database on PostgreSQL; each serves every session. A data
/// directory has one server. Addresses other than loopback need `--token-file`, or a token that
/// `tapedeck token create` made. SIGTERM ends streams and held polls, lets requests finish and exits
/// within 25 s; a second signal exits at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tapedeck serve
  tapedeck serve --listen 127.0.0.1:0 --data-dir ./data --ready-file ./ready
  tapedeck serve --listen 0.0.0.0:7070 --token-file ~/.config/tapedeck/token")]
pub(crate) struct Args {
    /// Address and port; port 0 takes any free one [default: 127.0.0.1:7070]
    /// [env: `TAPEDECK_LISTEN`]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Write the base URL into this file once the server answers [env: `TAPEDECK_READY_FILE`]
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    tether: Tether,
}

impl Args {
    /// The settings that the command line gives.
    pub(crate) fn flags(&self) -> Vec<Given> {
        [
            Given::option("--listen", "serve.listen", self.listen.as_ref()),
            Given::option("--ready-file", "serve.ready_file", self.ready_file.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Serves until a signal comes.
pub(crate) async fn run(args: Args, context: Context) -> anyhow::Result<Exit> {
    let config = &context.config;
    config.without_named_server("this is a server, on `--listen`")?;
    let ready_file = config.serve.ready_file.as_deref();
    let ready_file = ready_file.map(config::expand).transpose()?;
    if let Some(stale) = &ready_file {
        whole_file::remove_stale(stale)
            .with_context(|| format!("`{}` can't be written", stale.display()))?;
    }
    let token = config.token()?;
    let listener = bind(&config.serve.listen).await?;
    let terms = Terms {
        token,
        token_file: config
            .token_file
            .as_deref()
            .map(config::absolute)
            .transpose()?,
        ready_file,
        is_background: false,
    };
    let signals = Signals::listen_at(args.tether)?;
    serve(&context, listener, terms, signals).await
}

/// Serves on this machine, with a token of its own, until nobody needs that any more.
pub(crate) async fn run_in_background(context: Context) -> anyhow::Result<Exit> {
    let dir = config::make_private_dir(&context.config.data_dir)?;
    // Clients of one that was killed look for it where it was.
    let before = ServerFile::read(&dir).filter(|file| file.is_background);
    let before = before.and_then(|file| Some(file.url.strip_prefix("http://")?.to_owned()));
    let listener = match before {
        Some(address) => bind(&address).await.ok(),
        None => None,
    };
    let listener = match listener {
        Some(listener) => listener,
        None => bind("127.0.0.1:0").await?,
    };
    let terms = Terms {
        token: None,
        token_file: None,
        ready_file: None,
        is_background: true,
    };
    serve(&context, listener, terms, Signals::listen()?).await
}

/// How a server is started.
struct Terms {
    token: Option<Secret>,
    token_file: Option<PathBuf>,
    ready_file: Option<PathBuf>,
    is_background: bool,
}

async fn serve(
    context: &Context,
    listener: TcpListener,
    terms: Terms,
    mut signals: Signals,
) -> anyhow::Result<Exit> {
    let config = &context.config;
    let address = listener.local_addr()?;
    let (url, is_local) = (base_url(address), address.ip().to_canonical().is_loopback());
    let database = Database::open(config).await?;
    let own = match (&terms.token, database.dir()) {
        (None, Some(dir)) => Some(own_token(dir)?),
        (Some(_), _) | (None, None) => None,
    };
    let (own_token, own_file) = own.unzip();
    // Nobody but who may read the directory has business with one in the background.
    let token = terms
        .token
        .as_ref()
        .or(own_token.as_ref().filter(|_| terms.is_background));
    let lifecycle = Lifecycle::new();
    let control = control_plane(config, &database, &lifecycle);
    if !is_local && token.is_none() && !control.has_live_tokens().await? {
        return Err(Failed::usage(format!(
            "`{}` can be reached from other machines; that needs `--token-file`, or a token that \
             `tapedeck token create` made",
            config.serve.listen
        )));
    }
    control.start().await?;
    doctor::reconcile(database.audit()).await;
    let state = state(&control, token, own_token.as_ref(), is_local);
    let serving = lifecycle.spawn(tapedeck_server::serve(listener, state, lifecycle.clone()));
    // The answer shows that clients will get one, too. That a token is asked for is one.
    let answered = Client::http(&url, token.or(own_token.as_ref()))?;
    let answered = answered.health().await;
    if let Err(error) = answered
        && error.code() != Some(ErrorCode::Unauthorized)
    {
        return Err(error).context("the server does not answer");
    }
    let file = ServerFile {
        url: url.clone(),
        pid: std::process::id(),
        started_at: control.now().await?.wall,
        token_file: terms.token_file.or(own_file),
        is_background: terms.is_background,
    };
    // Without it clients need `--server`; that is no reason not to serve.
    if let Some(dir) = database.dir()
        && let Err(error) = file.write(dir)
    {
        tracing::warn!(error = format!("{error:#}"), "serve.server_file_failed");
    }
    if let Some(path) = &terms.ready_file {
        write_ready_file(path, &url)
            .with_context(|| format!("`{}` can't be written", path.display()))?;
    }
    tracing::info!(url, %database, "serve.ready");
    if context.printer.is_json() {
        context.printer.object(&file)?;
    }
    let unneeded = async {
        match database.dir() {
            Some(dir) if terms.is_background => unneeded(dir, config.timing.scale).await,
            Some(_) | None => std::future::pending().await,
        }
    };
    let exit = until_the_end(&mut signals, &database, serving, &lifecycle, unneeded).await?;
    if let Some(dir) = database.dir() {
        file.remove(dir);
    }
    tracing::info!("serve.ended");
    Ok(exit)
}

fn state(
    control: &ControlPlane,
    token: Option<&Secret>,
    own_token: Option<&Secret>,
    is_local: bool,
) -> ServerState {
    let bearer = |token: &Secret| BearerToken::new(token.expose());
    ServerState {
        token: token.and_then(bearer),
        own_token: own_token.and_then(bearer),
        // Where others can call, what was asked for at the start stays so, whatever becomes of the
        // tokens.
        token_policy: if is_local {
            TokenPolicy::WhileAnyIsLive
        } else {
            TokenPolicy::Always
        },
        hosts: if token.is_some() || !is_local {
            HostPolicy::Any
        } else {
            HostPolicy::Loopback
        },
        limits: Limits::STANDARD,
        ..ServerState::local(control.clone(), env!("CARGO_PKG_VERSION"))
    }
}

fn control_plane(config: &Config, database: &Database, lifecycle: &Lifecycle) -> ControlPlane {
    let timing = config.timings();
    let store = database.store();
    // Every instance writes as the deployment: which of them it is decides nothing.
    let deployment = store.reader().identity().deployment_id;
    ControlPlane::new(Options {
        store,
        authority: Authority {
            owner_id: format!("server:{deployment}"),
            epoch: None,
            lease_ms: timing.owner_lease_ms,
        },
        timing,
        ids: Arc::new(TimeOrdered),
        lifecycle: lifecycle.clone(),
        ring_events: RING.0,
        ring_bytes: RING.1,
        hints: match config.testing.hints {
            HintFate::Sent => Hints::Sent,
            HintFate::Dropped => Hints::Dropped,
        },
    })
}

fn write_ready_file(path: &Path, url: &str) -> io::Result<()> {
    let mut output = Output::to(path)?;
    writeln!(output, "{url}")?;
    output.finish()
}

/// Binds the address.
async fn bind(listen: &str) -> anyhow::Result<TcpListener> {
    let found = tokio::net::lookup_host(listen).await;
    let found: Vec<SocketAddr> = found
        .map_err(|error| Failed::usage(format!("`{listen}` is no address to listen on: {error}")))?
        .collect();
    TcpListener::bind(found.as_slice())
        .await
        .with_context(|| format!("can't listen on `{listen}`"))
}

/// Where this machine's clients find a listener.
fn base_url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}")
}

/// Waits for a signal, for the listener's end, for a disk that failed or until nobody needs the
/// server, then drains.
async fn until_the_end(
    signals: &mut Signals,
    database: &Database,
    serving: tokio::task::JoinHandle<io::Result<()>>,
    lifecycle: &Lifecycle,
    unneeded: impl Future<Output = Option<Need>>,
) -> anyhow::Result<Exit> {
    let mut serving = serving;
    let mut outcome = Ok(Exit::Success);
    let mut has_ended = false;
    // Until this process has ended, nobody takes its server for one that serves.
    let mut _nobody = None;
    tokio::select! {
        asked = signals.next() => tracing::info!(?asked, "serve.draining"),
        nobody = unneeded => {
            tracing::info!("serve.unneeded");
            _nobody = nobody;
        }
        () = database.fatal() => {
            outcome = Err(Failed::with(Exit::Internal, "the disk failed; start again to recover"));
        }
        ended = &mut serving => {
            has_ended = true;
            outcome = Err(match ended {
                Ok(Ok(())) => Failed::with(Exit::Internal, "the listener ended by itself"),
                Ok(Err(error)) => anyhow::Error::from(error).context("the listener failed"),
                Err(error) => anyhow::Error::from(error).context("the listener failed"),
            });
        }
    }
    lifecycle.drain();
    let drained = async {
        if !has_ended && let Err(error) = (&mut serving).await {
            tracing::error!(%error, "serve.failed");
        }
        lifecycle.finish(FINISH).await;
        database.store().close().await;
    };
    tokio::select! {
        () = drained => {}
        asked = signals.next() => {
            tracing::warn!(?asked, "serve.aborted");
            lifecycle.abort();
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[tokio::test]
    async fn what_is_no_address_is_a_usage_error() {
        for listen in ["127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0"] {
            let bound = bind(listen).await;
            assert!(bound.is_ok() || listen.starts_with('['), "{listen}");
        }
        let error = bind("nonsense").await.unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Usage);
    }

    #[tokio::test]
    async fn an_address_in_use_is_a_conflict() {
        let first = bind("127.0.0.1:0").await.unwrap();
        let taken = first.local_addr().unwrap().to_string();
        let error = bind(&taken).await.unwrap_err();
        assert_eq!(Exit::of_error(&error), Exit::Conflict);
    }

    #[test]
    fn a_listener_on_every_address_is_found_on_loopback() {
        assert_eq!(base_url(([0, 0, 0, 0], 7).into()), "http://127.0.0.1:7");
        assert_eq!(base_url("[::]:7".parse().unwrap()), "http://[::1]:7");
        assert_eq!(base_url(([10, 0, 0, 1], 7).into()), "http://10.0.0.1:7");
    }

    #[test]
    fn a_ready_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path: &Path = &dir.path().join("ready");
        write_ready_file(path, "http://a").unwrap();
        write_ready_file(path, "http://b").unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "http://b\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
