//! The real binary as child processes: a server, executors, and single commands. Each process is
//! ended with its owner, also when a test fails; its log is shown then.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::http::{Answer, Request};
use crate::postgres::{Cluster, Database};
use crate::wait::{eventually, within};

/// For a process to start or to end.
const LIMIT: Duration = Duration::from_secs(30);
/// Lines of a log that are shown when a test fails.
const LOG_LINES: usize = 30;

/// The directories of one test, and its database where that isn't in one of them.
#[derive(Debug)]
pub(crate) struct Place {
    dir: TempDir,
    database: Option<Database>,
}

impl Place {
    /// On the disk of the build: elsewhere a file system may be in memory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in ["home", "data", "state", "work"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self {
            dir,
            database: None,
        }
    }

    /// Another place with a copy of the database, which nobody may have open.
    pub(crate) async fn copy(&self) -> Self {
        let copy = Self::new();
        let Some(database) = &self.database else {
            for file in fs::read_dir(self.data()).unwrap() {
                let (file, name) = file.map(|file| (file.path(), file.file_name())).unwrap();
                if name.to_string_lossy().starts_with("tapedeck.db") {
                    fs::copy(file, copy.data().join(name)).unwrap();
                }
            }
            return copy;
        };
        Self {
            database: Some(Cluster::shared().await.copy_of(database).await),
            ..copy
        }
    }

    /// With an empty database on PostgreSQL, which the servers of the test share.
    pub(crate) async fn on_postgres() -> Self {
        Self {
            database: Some(Cluster::shared().await.database().await),
            ..Self::new()
        }
    }

    /// The same, on a server that the test may stop.
    pub(crate) async fn on_cluster(cluster: &Cluster) -> Self {
        Self {
            database: Some(cluster.database().await),
            ..Self::new()
        }
    }

    /// What every process that is started here carries in its environment.
    pub(crate) fn mark(&self) -> String {
        format!("HOME={}", self.path("home").display())
    }

    /// The database on PostgreSQL.
    pub(crate) fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    /// The same where there may be none.
    pub(crate) fn postgres(&self) -> Option<&Database> {
        self.database.as_ref()
    }

    /// Whether its database is there.
    pub(crate) fn is_on_postgres(&self) -> bool {
        self.database.is_some()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The server's and the embedding commands' directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A directory that executors may work in.
    pub(crate) fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// The binary with an environment that only this test knows.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapedeck"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.path("home"))
            .env("TAPEDECK_STATE_DIR", self.path("state"))
            .current_dir(self.path("work"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        for name in ["PATH", "TMPDIR"] {
            #[expect(clippy::disallowed_methods, reason = "a child needs a part of ours")]
            if let Ok(value) = std::env::var(name) {
                command.env(name, value);
            }
        }
        command
    }

    /// Fails unless `tapedeck doctor` finds nothing, now.
    pub(crate) async fn is_healthy(&self, scale: f64) {
        let mut command = self.command(&["doctor", "--json"]);
        self.name_database(&mut command);
        command.env("TAPEDECK_TIMING_SCALE", scale.to_string());
        let output = within("tapedeck doctor", Duration::from_mins(1), command.output()).await;
        let output = output.unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "doctor: {out}\n{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["findings"], 0, "{report}");
        assert!(report["checks"].as_array().unwrap().len() > 30, "{report}");
    }

    /// Tells a command which database it is about.
    pub(crate) fn name_database(&self, command: &mut Command) {
        match &self.database {
            // Not as a flag: there is a password in it.
            Some(database) => command.env("TAPEDECK_DATABASE", database.url()),
            None => command.arg("--data-dir").arg(self.data()),
        };
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        self.run_for(arguments, Duration::from_mins(1)).await
    }

    pub(crate) async fn run_for(&self, arguments: &[&str], limit: Duration) -> Output {
        let what = format!("tapedeck {}", arguments.join(" "));
        let output = within(&what, limit, self.command(arguments).output()).await;
        Output::of(&what, &output.unwrap())
    }

    /// Starts a command whose output goes to a file.
    pub(crate) fn start(&self, name: &str, mut command: Command) -> Process {
        let log = self.path(&format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
        Process { child, pid, log }
    }
}

/// What a command left.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    what: String,
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    pub(crate) fn of(what: &str, output: &std::process::Output) -> Self {
        Self {
            what: what.to_owned(),
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "`{}`\n{}\n{}",
            self.what,
            self.out,
            self.err
        );
        self
    }

    /// The lines of stdout as JSON.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let read = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        self.out.lines().map(read).collect()
    }
}

/// A child process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: Pid,
    log: PathBuf,
}

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid, signal).unwrap();
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) {
        if self.exited().is_none() {
            self.child.start_kill().unwrap();
            self.ended(LIMIT).await;
        }
    }

    /// SIGTERM, and waits for the end.
    pub(crate) async fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended(limit).await
    }

    pub(crate) async fn ended(&mut self, limit: Duration) -> ExitStatus {
        within("the end of a process", limit, self.child.wait())
            .await
            .unwrap()
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error only says that it has ended before.
        let _ended = self.child.start_kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!("--- {}\n{}", self.log.display(), shown.join("\n"));
        }
    }
}

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerOptions {
    /// Tells the servers of one place apart; `server` by default.
    pub(crate) name: Option<&'static str>,
    /// Multiplies every lease, period and deadline.
    pub(crate) scale: Option<f64>,
    pub(crate) token_file: Option<PathBuf>,
    /// Only polls notice what has changed.
    pub(crate) drops_hints: bool,
}

/// A server that can be killed and started again under the same address.
#[derive(Debug)]
pub(crate) struct Server {
    options: ServerOptions,
    place: Arc<Place>,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
}

impl Server {
    pub(crate) async fn start(place: &Arc<Place>) -> Self {
        Self::start_with(place, ServerOptions::default()).await
    }

    pub(crate) async fn scaled(place: &Arc<Place>, scale: f64) -> Self {
        let scale = Some(scale);
        Self::start_with(
            place,
            ServerOptions {
                scale,
                ..ServerOptions::default()
            },
        )
        .await
    }

    pub(crate) async fn start_with(place: &Arc<Place>, options: ServerOptions) -> Self {
        let (process, address) = launch(place, &options, "127.0.0.1:0").await.unwrap();
        Self {
            options,
            place: Arc::clone(place),
            address,
            process,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts again where it was, after it was ended.
    pub(crate) async fn restart(&mut self) {
        self.process.kill().await;
        let listen = self.address.to_string();
        // A passing client may have got our port as its own for a moment.
        for _ in 0..20 {
            if let Some((process, address)) = launch(&self.place, &self.options, &listen).await {
                assert_eq!(address, self.address);
                self.process = process;
                return;
            }
        }
        panic!(
            "the server does not start on {listen} again: {}",
            self.process.log()
        );
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        Request::get(path).send(self.address).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Request::post(path, body).send(self.address).await
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        resident_kib(self.process.pid)
    }
}

/// The resident memory of a process, in KiB.
pub(crate) fn resident_kib(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Starts a server and waits until it answers; `None` if its address is taken.
async fn launch(
    place: &Place,
    options: &ServerOptions,
    listen: &str,
) -> Option<(Process, SocketAddr)> {
    let name = options.name.unwrap_or("server");
    let ready = place.path(&format!("{name}.ready"));
    if let Err(error) = fs::remove_file(&ready) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
    let mut command = place.command(&["serve", "--listen", listen]);
    command.arg("--ready-file").arg(&ready);
    place.name_database(&mut command);
    if options.drops_hints {
        command.env("TAPEDECK_TESTING_HINTS", "dropped");
    }
    if let Some(scale) = options.scale {
        command.env("TAPEDECK_TIMING_SCALE", scale.to_string());
    }
    if let Some(file) = &options.token_file {
        command.arg("--token-file").arg(file);
    }
    let mut process = place.start(name, command);
    eventually("the server answers", LIMIT, async || {
        if let Some(status) = process.exited() {
            // Exit code 4 is a conflict, see `tapedeck --help`.
            assert_eq!(
                status.code(),
                Some(4),
                "the server ended: {status}\n{}",
                process.log()
            );
            return Some(None);
        }
        let url = fs::read_to_string(&ready).ok()?;
        let address = url
            .trim()
            .strip_prefix("http://")?
            .trim_end_matches('/')
            .parse()
            .ok()?;
        Some(Some(address))
    })
    .await
    .map(|address| (process, address))
}

/// How an executor is started.
#[derive(Debug, Clone)]
pub(crate) struct ExecutorOptions {
    pub(crate) id: String,
    pub(crate) pool: String,
    pub(crate) lease_seconds: u32,
    pub(crate) max_runs: u32,
    /// How long its agents stay after a run.
    pub(crate) warm_seconds: u32,
    pub(crate) token_file: Option<PathBuf>,
}

impl ExecutorOptions {
    pub(crate) fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            pool: "default".to_owned(),
            lease_seconds: 10,
            max_runs: 1,
            warm_seconds: 0,
            token_file: None,
        }
    }
}

/// Starts an executor with the demo agent.
pub(crate) fn executor(place: &Place, url: &str, options: &ExecutorOptions) -> Process {
    let agent = format!("{} demo-agent", env!("CARGO_BIN_EXE_tapedeck"));
    executor_with(place, url, options, &["--agent", &agent])
}

/// Starts an executor with the agent that these arguments name.
pub(crate) fn executor_with(
    place: &Place,
    url: &str,
    options: &ExecutorOptions,
    agent: &[&str],
) -> Process {
    let mut command = place.command(&["executor", "--server", url]);
    command
        .args(agent)
        .args(["--executor-id", &options.id, "--pool", &options.pool])
        .args(["--lease-seconds", &options.lease_seconds.to_string()])
        .args(["--max-runs", &options.max_runs.to_string()])
        .args(["--warm-seconds", &options.warm_seconds.to_string()])
        .arg("--state-dir")
        .arg(place.path("state"))
        .arg("--workspace-root")
        .arg(place.work());
    if let Some(file) = &options.token_file {
        command.arg("--token-file").arg(file);
    }
    place.start(&options.id, command)
}

/// The processes that carry this mark in their environment, e.g. `TAPEDECK_RUN=…`.
pub(crate) fn processes_marked(mark: &str) -> Vec<i32> {
    let of = |pid: i32| {
        let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ"));
        let environment = environment.unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|pair| pair == mark.as_bytes())
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| of(*pid))
        .collect()
}

/// Waits until no process that carries this mark is left.
pub(crate) async fn none_marked(mark: &str, limit: Duration) {
    let look = async || processes_marked(mark).is_empty().then_some(());
    eventually(&format!("no process with {mark} is left"), limit, look).await;
}

/// Whether a process was ended by this signal.
pub(crate) fn ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal as i32)
}
