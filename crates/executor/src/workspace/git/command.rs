//! The git binary as a subprocess. It owns what git is allowed to do: no shell, no prompt, no
//! settings but ours, a bounded time and a bounded output. It must never run what a repository's
//! hooks or settings name, nor let a credential into an error.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tapedeck_domain::display::redact;
use tapedeck_domain::git::Transport;
use tapedeck_domain::text::tail;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::GitOptions;
use crate::files::private_dir;

/// For calls that only look at a repository on this disk.
pub(super) const LOOK_LIMIT: Duration = Duration::from_mins(1);
/// What a call may put out, in bytes.
const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
/// What of git's complaints is told, in bytes from their end.
const TOLD_BYTES: usize = 2_000;
/// What of git's complaints is read.
const STDERR_BYTES: u64 = 256 * 1024;

/// What git needs to find its programs, proxies, certificates and keys.
const VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// Settings of every call. A repository may hold others; these win.
const SETTINGS: [&str; 15] = [
    // Nothing that a repository names is run.
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.sshCommand=ssh -oBatchMode=yes",
    "core.askPass=",
    "commit.gpgSign=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    // Only what a call allows is reached.
    "protocol.allow=never",
    "protocol.ext.allow=never",
    // Whoever owns the directory: nothing of it is run.
    "safe.directory=*",
    // Nothing goes on in the background.
    "gc.auto=0",
    "maintenance.auto=false",
    "core.untrackedCache=false",
    // A server that went silent is given up.
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
];

/// Why a call of git came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git, or it can't be started.
    #[error("git can't be started: {0}")]
    Start(std::io::Error),
    /// It ended with an error.
    #[error("`git {what}` failed: {told}")]
    Failed {
        /// The subcommand.
        what: String,
        /// The end of what it said, without credentials.
        told: String,
    },
    /// It took too long and was killed.
    #[error("`git {what}` took more than {seconds} seconds and was ended")]
    TimedOut {
        /// The subcommand.
        what: String,
        /// The bound.
        seconds: u64,
    },
    /// It put out too much, or what can't be understood.
    #[error("`git {what}`: {why}")]
    Output {
        /// The subcommand.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The pipes to it broke, or its files can't be used.
    #[error("git's files can't be used: {0}")]
    Io(#[from] std::io::Error),
}

impl GitError {
    /// Whether the other side has no branch that is its own.
    pub(super) fn is_without_head(&self) -> bool {
        matches!(self, Self::Failed { told, .. } if told.contains("remote ref HEAD"))
    }
}

/// Starts git.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    options: Arc<GitOptions>,
}

impl Git {
    pub(crate) fn new(options: Arc<GitOptions>) -> Self {
        Self { options }
    }

    pub(crate) fn options(&self) -> &GitOptions {
        &self.options
    }

    /// A bare repository in the directory `path`, with nothing of anybody's template. `arguments`
    /// are more of `git init`.
    pub(crate) async fn init(&self, path: &Path, arguments: &[&str]) -> Result<(), GitError> {
        private_dir(path)?;
        let call = self.call(path, "init", LOOK_LIMIT);
        let call = call.args(["--quiet", "--bare", "--template=", "--initial-branch=none"]);
        call.args(arguments).arg(".").output().await.map(drop)
    }

    /// A call of `subcommand` in `directory`, bounded by `limit`.
    pub(crate) fn call(&self, directory: &Path, subcommand: &str, limit: Duration) -> Call {
        let mut command = Command::new("git");
        command.current_dir(directory).env_clear();
        for (name, value) in &self.options.environment {
            let wanted = name.to_str().is_some_and(|name| VARIABLES.contains(&name));
            if wanted {
                command.env(name, value);
            }
        }
        let config_file = self.options.config_file.as_deref();
        command
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env(
                "GIT_CONFIG_GLOBAL",
                config_file.unwrap_or("/dev/null".as_ref()),
            )
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("SSH_ASKPASS_REQUIRE", "force")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("LC_ALL", "C");
        command.arg("--no-pager").arg("--literal-pathspecs");
        for setting in SETTINGS {
            command.arg("-c").arg(setting);
        }
        Call {
            command,
            subcommand: subcommand.to_owned(),
            arguments: Vec::new(),
            input: Vec::new(),
            limit,
        }
    }
}

/// One call of git.
#[derive(Debug)]
pub(crate) struct Call {
    command: Command,
    subcommand: String,
    arguments: Vec<OsString>,
    input: Vec<u8>,
    limit: Duration,
}

impl Call {
    pub(crate) fn git_dir(mut self, path: &Path) -> Self {
        self.command.env("GIT_DIR", path);
        self
    }

    pub(crate) fn common_dir(mut self, path: &Path) -> Self {
        self.command.env("GIT_COMMON_DIR", path);
        self
    }

    pub(crate) fn work_tree(mut self, path: &Path) -> Self {
        self.command.env("GIT_WORK_TREE", path);
        self
    }

    pub(crate) fn index(mut self, path: &Path) -> Self {
        self.command.env("GIT_INDEX_FILE", path);
        self
    }

    /// Lets this call use the network, or directories, in this way.
    pub(crate) fn allow(mut self, transport: Transport) -> Self {
        let setting = format!("protocol.{}.allow=always", transport.as_str());
        self.command.arg("-c").arg(setting);
        self
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter();
        self.arguments
            .extend(arguments.map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// What it puts out.
    pub(crate) async fn output(self) -> Result<Vec<u8>, GitError> {
        let what = self.subcommand.clone();
        let whole = |mut stdout: Box<dyn AsyncRead + Send + Unpin>| async move {
            let mut output = Vec::new();
            let mut bounded = (&mut stdout).take(OUTPUT_BYTES + 1);
            bounded.read_to_end(&mut output).await?;
            Ok(output)
        };
        let output = self.read(whole).await?;
        if output.len() as u64 > OUTPUT_BYTES {
            let why = format!("put out more than {OUTPUT_BYTES} bytes");
            return Err(GitError::Output { what, why });
        }
        Ok(output)
    }

    /// The first line that it puts out.
    pub(crate) async fn line(self) -> Result<String, GitError> {
        let what = self.subcommand.clone();
        let output = String::from_utf8(self.output().await?);
        let text = output.map_err(|_error| GitError::Output {
            what,
            why: "put out no text".to_owned(),
        })?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// The first line that it puts out, or nothing where it says by its exit code that there is
    /// none.
    pub(crate) async fn found(self) -> Result<Option<String>, GitError> {
        match self.line().await {
            Ok(line) => Ok(Some(line)),
            Err(GitError::Failed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks a name up: the id of what it names is what it puts out.
    pub(crate) fn verify(self, name: &str) -> Self {
        self.args(["--verify", "--quiet", "--end-of-options", name])
    }

    /// Lets `read` have the output as it comes. What is left unread is not wanted.
    pub(crate) async fn read<T, F>(
        mut self,
        read: impl FnOnce(Box<dyn AsyncRead + Send + Unpin>) -> F,
    ) -> Result<T, GitError>
    where
        F: Future<Output = Result<T, GitError>>,
    {
        self.command
            .arg(&self.subcommand)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its helpers are killed with it.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = self.command.spawn().map_err(GitError::Start)?;
        let mut group = Group::of(&child);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(GitError::Start(std::io::Error::other("a pipe is missing")));
        };
        let input = self.input;
        let give = async move {
            // A call that ends early says why by its exit code.
            drop(stdin.write_all(&input).await);
            drop(stdin);
        };
        let work = async {
            let ((), value, told) = tokio::join!(give, read(Box::new(stdout)), complaints(stderr));
            let status = child.wait().await?;
            Ok::<_, GitError>((status, value, told))
        };
        let ended = timeout(self.limit, work).await;
        let (status, value, told) = ended.map_err(|_elapsed| GitError::TimedOut {
            what: self.subcommand.clone(),
            seconds: self.limit.as_secs(),
        })??;
        group.ended();
        if status.success() {
            return value;
        }
        let what = self.subcommand;
        let told = if told.is_empty() {
            status.to_string()
        } else {
            told
        };
        Err(GitError::Failed { what, told })
    }
}

/// What it wrote to stderr, the end of it, fit for people.
async fn complaints(stderr: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    let mut bounded = stderr.take(STDERR_BYTES);
    // What was read until an error is told.
    drop(bounded.read_to_end(&mut bytes).await);
    let text = String::from_utf8_lossy(&bytes);
    let text = redact::text(text.trim());
    tail(&text, TOLD_BYTES).trim().to_owned()
}

/// A process group that is killed unless its leader has ended.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let leader = child.id().map(|id| Pid::from_raw(id.cast_signed()));
        Self(leader)
    }

    /// The leader is gone, and its number may be another's.
    fn ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // Nobody is left to kill as a rule.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}
