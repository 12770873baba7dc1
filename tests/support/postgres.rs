//! Throw-away PostgreSQL servers for tests: one a process, started on first use, and further ones
//! for tests that stop theirs. A server never outlives the test process, however that ends. Nothing
//! here knows Tapedeck's schema.
//!
//! Needs the server's programs (`postgresql` in Debian), found in `TAPEDECK_TEST_PG_BIN`, in `PATH`
//! or where Debian keeps them; or a server that runs already, in `TAPEDECK_TEST_POSTGRES_URL`.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, chown, geteuid};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::sync::OnceCell;
use url::Url;

/// A server that runs already; it must let its user make databases.
const SERVER: &str = "TAPEDECK_TEST_POSTGRES_URL";
/// The directory of `initdb`, `pg_ctl` and `postgres`.
const PROGRAMS: &str = "TAPEDECK_TEST_PG_BIN";
const DEBIAN: &str = "/usr/lib/postgresql";
const MISSING: &str = "the tests need PostgreSQL: install its server programs (Debian: `apt-get \
    install postgresql`), or name their directory in TAPEDECK_TEST_PG_BIN, or a running server in \
    TAPEDECK_TEST_POSTGRES_URL";
/// PostgreSQL refuses to run as root; one of these runs it then.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Someone else may get a port between our look and the server's.
const TRIES: u32 = 20;
/// All databases of tests begin so.
const PREFIX: &str = "tapedeck_test";

/// How a server of its own runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClusterOptions {
    /// Whether a commit waits for the disk. A process that is killed loses nothing without it, so
    /// only what looks at the disk itself needs it.
    pub(crate) fsync: bool,
    /// Whether commits can be told to wait for a second server.
    pub(crate) replicates: bool,
    /// Connections at most; 0 is a number that suits this machine.
    pub(crate) max_connections: u32,
}

/// A PostgreSQL server.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// With the password in it.
    url: Url,
    /// Tells the databases of test processes on one server apart.
    run: String,
    next: AtomicU32,
    dropped: Arc<Mutex<Vec<String>>>,
    templates: tokio::sync::Mutex<Vec<String>>,
    /// `None` for a server that is not ours.
    own: Option<Own>,
    /// On a server that isn't ours: says that this process is alive and needs its databases.
    sign_of_life: Option<PgConnection>,
}

/// The processes and files of a server that we started.
#[derive(Debug, Clone)]
struct Own {
    programs: PathBuf,
    /// Holds `data` and `log`; belongs to whom the server runs as.
    dir: PathBuf,
    user: Option<User>,
    port: u16,
    /// The guardian ends the server when the last handle of this pipe is closed, by whomever.
    _leash: Arc<ChildStdin>,
}

/// A database of one test. It is dropped some time after this value.
#[derive(Debug)]
pub(crate) struct Database {
    name: String,
    url: String,
    dropped: Arc<Mutex<Vec<String>>>,
}

impl Database {
    /// Its URL, with the user's password in it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Whoever makes the next database drops this one: there is no way to wait here.
        self.dropped
            .lock()
            .unwrap()
            .push(std::mem::take(&mut self.name));
    }
}

impl Cluster {
    /// The server of this process.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                match variable(SERVER) {
                    Some(url) => Self::running(url.to_str().unwrap()).await,
                    None => Self::own(ClusterOptions::default()).await,
                }
            })
            .await
    }

    /// A server for one test, which may stop it. It ends with this value, too.
    pub(crate) async fn own(options: ClusterOptions) -> Self {
        let password = format!("{:032x}", rand::random::<u128>());
        let secret = password.clone();
        let own = tokio::task::spawn_blocking(move || Own::start_new(options, &secret))
            .await
            .unwrap();
        let url = format!(
            "postgres://tapedeck:{password}@127.0.0.1:{}/postgres",
            own.port
        );
        Self::of(Url::parse(&url).unwrap(), Some(own))
    }

    fn of(url: Url, own: Option<Own>) -> Self {
        Self {
            url,
            run: format!("{PREFIX}_{:08x}", rand::random::<u32>()),
            next: AtomicU32::new(0),
            dropped: Arc::default(),
            templates: tokio::sync::Mutex::default(),
            own,
            sign_of_life: None,
        }
    }

    /// A server that runs already. Databases that a test process left on it are dropped: nobody
    /// holds the lock of their name any more.
    async fn running(url: &str) -> Self {
        let url = Url::parse(url).unwrap_or_else(|error| panic!("{SERVER} is no URL: {error}"));
        let mut cluster = Self::of(url, None);
        let mut admin = cluster.admin().await;
        let locked = format!(
            "SELECT pg_try_advisory_lock(hashtext('{}'))::text",
            cluster.run
        );
        assert_eq!(texts(&mut admin, &locked).await, ["true"]);
        let found =
            format!("SELECT datname::text FROM pg_database WHERE datname LIKE '{PREFIX}\\_%'");
        for name in texts(&mut admin, &found).await {
            let run = &name[..name.len().min(cluster.run.len())];
            let lock = format!("SELECT pg_try_advisory_lock(hashtext('{run}'))::text");
            if run != cluster.run && texts(&mut admin, &lock).await == ["true"] {
                cluster.drop_database(&mut admin, &name).await;
            }
        }
        cluster.sign_of_life = Some(admin);
        cluster
    }

    /// A new and empty database.
    pub(crate) async fn database(&self) -> Database {
        self.create(None).await
    }

    /// A new copy of the database that `fill` makes. It is called once a process and name, with the
    /// URL of an empty database, and must leave no connection open.
    pub(crate) async fn database_like(
        &self,
        template: &str,
        fill: impl AsyncFnOnce(String),
    ) -> Database {
        let name = format!("{}_{template}", self.run);
        // Held while the template is made, so that the others wait for it.
        let mut templates = self.templates.lock().await;
        if !templates.contains(&name) {
            let mut admin = self.admin().await;
            // What a failed attempt left.
            self.drop_database(&mut admin, &name).await;
            execute(&mut admin, &format!("CREATE DATABASE {name}")).await;
            fill(self.url_of(&name)).await;
            // Nothing can come between a copy and its source from here on.
            execute(
                &mut admin,
                &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
            )
            .await;
            templates.push(name.clone());
        }
        drop(templates);
        self.create(Some(&name)).await
    }

    /// A copy of one of this server's databases, to which nobody may be connected.
    pub(crate) async fn copy_of(&self, database: &Database) -> Database {
        self.create(Some(database.name())).await
    }

    async fn create(&self, template: Option<&str>) -> Database {
        let mut admin = self.admin().await;
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap());
        for name in dropped {
            self.drop_database(&mut admin, &name).await;
        }
        let name = format!("{}_{}", self.run, self.next.fetch_add(1, Ordering::Relaxed));
        let mut statement = format!("CREATE DATABASE {name}");
        if let Some(template) = template {
            statement.extend([" TEMPLATE ", template]);
        }
        execute(&mut admin, &statement).await;
        Database {
            url: self.url_of(&name),
            name,
            dropped: Arc::clone(&self.dropped),
        }
    }

    async fn drop_database(&self, admin: &mut PgConnection, name: &str) {
        execute(
            admin,
            &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
        )
        .await;
    }

    /// The URL of a database of this server.
    pub(crate) fn url_of(&self, database: &str) -> String {
        let mut url = self.url.clone();
        url.set_path(database);
        url.into()
    }

    /// Cuts every connection to a database; gives their number.
    pub(crate) async fn terminate_backends(&self, database: &str) -> usize {
        let mut admin = self.admin().await;
        let statement = format!(
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE datname = '{database}'"
        );
        texts(&mut admin, &statement).await.len()
    }

    /// A connection that makes and drops databases.
    async fn admin(&self) -> PgConnection {
        let connect = PgConnectOptions::from_url(&self.url).unwrap();
        match connect.disable_statement_logging().connect().await {
            Ok(connection) => connection,
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    /// Ends the server, its clients' transactions included. The data stays.
    pub(crate) async fn stop(&self) {
        self.control(|own| own.pg_ctl(&["stop", "-m", "fast"]))
            .await;
    }

    /// Ends the server without a word to its clients and without a checkpoint. The data stays.
    pub(crate) async fn stop_at_once(&self) {
        self.control(|own| own.pg_ctl(&["stop", "-m", "immediate"]))
            .await;
    }

    /// SIGKILL for the server, as a power cut would end it. The data stays.
    pub(crate) async fn kill(&self) {
        self.control(|own| kill(own.pid(), Signal::SIGKILL).map_err(|error| error.to_string()))
            .await;
    }

    /// Starts the server after [`Self::stop`] or [`Self::kill`], at its old address.
    pub(crate) async fn start(&self) {
        self.control(|own| {
            let mut outcome = Ok(());
            for _ in 0..TRIES {
                outcome = own.pg_ctl(&["start"]);
                if outcome.is_ok() {
                    break;
                }
            }
            outcome
        })
        .await;
    }

    /// Ends the server and starts it again.
    pub(crate) async fn restart(&self) {
        self.stop().await;
        self.start().await;
    }

    async fn control(&self, action: impl Fn(&Own) -> Result<(), String> + Send + 'static) {
        let Some(own) = self.own.clone() else {
            panic!("only a server of the test's own can be stopped");
        };
        let done = tokio::task::spawn_blocking(move || action(&own)).await;
        if let Err(error) = done.unwrap() {
            panic!("{error}\n{}", self.log());
        }
    }

    /// What the server wrote.
    pub(crate) fn log(&self) -> String {
        let own = self.own.as_ref();
        own.map(Own::log).unwrap_or_default()
    }
}

impl Own {
    fn start_new(options: ClusterOptions, password: &str) -> Self {
        let programs = programs().unwrap_or_else(|| panic!("{MISSING}"));
        let user = geteuid().is_root().then(|| {
            let known = |name: &&str| User::from_name(name).ok().flatten();
            USERS.iter().find_map(known).unwrap_or_else(|| {
                panic!(
                    "PostgreSQL does not run as root, and there is no user `{}`",
                    USERS[0]
                )
            })
        });
        let dir = tempfile::Builder::new()
            .prefix("tapedeck-postgres-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent(user.is_some()))
            .unwrap()
            .keep();
        if let Some(user) = &user {
            chown(&dir, Some(user.uid), Some(user.gid)).unwrap();
        }
        let leash = guard(&programs, &dir, user.as_ref());
        let mut own = Self {
            programs,
            dir,
            user,
            port: 0,
            _leash: Arc::new(leash),
        };
        own.init(options, password);
        for _ in 0..TRIES {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            own.port = free.local_addr().unwrap().port();
            drop(free);
            if own.pg_ctl(&["start"]).is_ok() {
                return own;
            }
        }
        panic!("PostgreSQL does not start:\n{}", own.log());
    }

    fn init(&self, options: ClusterOptions, password: &str) {
        let file = self.dir.join("password");
        let mut secret = fs::File::create(&file).unwrap();
        writeln!(secret, "{password}").unwrap();
        if let Some(user) = &self.user {
            chown(&file, Some(user.uid), Some(user.gid)).unwrap();
        }
        let initdb = self
            .program("initdb")
            .args([
                "--no-sync",
                "--no-instructions",
                "--encoding=UTF8",
                "--locale=C",
            ])
            // Nobody but this test gets in; the costly way of asking would double a connect.
            .args(["--username=tapedeck", "--auth=password"])
            .arg(format!("--pwfile={}", file.display()))
            .arg(self.data())
            .output();
        let initdb = initdb.unwrap();
        assert!(initdb.status.success(), "initdb: {}", both(&initdb));
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let connections = match options.max_connections {
            0 => 150 + 25 * u32::try_from(processors).unwrap(),
            given => given,
        };
        let durable = if options.fsync { "on" } else { "off" };
        let (level, senders) = if options.replicates {
            ("replica", 1)
        } else {
            ("minimal", 0)
        };
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n\
             max_connections = {connections}\nshared_buffers = 32MB\n\
             fsync = {durable}\nfull_page_writes = {durable}\n\
             wal_level = {level}\nmax_wal_senders = {senders}\nmin_wal_size = 32MB\nmax_wal_size = 256MB\n\
             jit = off\nlog_line_prefix = '%m [%p] %d '\n"
        );
        let configuration = self.data().join("postgresql.conf");
        let mut file = fs::File::options()
            .append(true)
            .open(configuration)
            .unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The server's first process.
    fn pid(&self) -> Pid {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        Pid::from_raw(file.lines().next().unwrap().parse().unwrap())
    }

    fn pg_ctl(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = self.program("pg_ctl");
        command
            .args(["--wait", "--timeout=60", "--silent", "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(self.dir.join("log"))
            .args(["-o", &format!("-p {}", self.port)])
            .args(arguments);
        // The server inherits these; a pipe would never end.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("pg_ctl {arguments:?}: {status}")),
            Err(error) => Err(format!("pg_ctl {arguments:?}: {error}")),
        }
    }

    /// One of the programs, as the server's user, away from signals that are meant for the tests.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        prepare(&mut command, &self.dir, self.user.as_ref());
        command
    }
}

fn prepare(command: &mut Command, dir: &Path, user: Option<&User>) {
    command
        .current_dir(dir)
        .stdin(Stdio::null())
        .process_group(0)
        // What the environment says of other servers is not meant for this one.
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
}

/// Starts the process that ends the server and removes its files once nobody holds the pipe.
fn guard(programs: &Path, dir: &Path, user: Option<&User>) -> ChildStdin {
    let mut command = Command::new("sh");
    prepare(&mut command, dir, user);
    let script = "trap '' HUP INT TERM; cd /; cat >/dev/null; \
        \"$1\" stop -m immediate -D \"$2/data\"; rm -rf \"$2\"";
    let guardian = command
        .args(["-c", script, "tapedeck-test-guardian"])
        .arg(programs.join("pg_ctl"))
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    guardian.unwrap().stdin.unwrap()
}

/// Where the server's directory can be: its user must be able to get there.
fn parent(is_other_user: bool) -> PathBuf {
    let usual = std::env::temp_dir();
    let is_open = |dir: &Path| {
        let mode = |dir: &Path| dir.metadata().map_or(0, |found| found.mode());
        dir.ancestors().all(|dir| mode(dir) & 0o001 != 0)
    };
    if is_other_user && !is_open(&usual) {
        return PathBuf::from("/tmp");
    }
    usual
}

/// The directory of the server's programs.
fn programs() -> Option<PathBuf> {
    let has_all = |dir: &PathBuf| {
        let is_there = |name| dir.join(name).is_file();
        ["initdb", "pg_ctl", "postgres"].into_iter().all(is_there)
    };
    if let Some(named) = variable(PROGRAMS) {
        return Some(PathBuf::from(named)).filter(has_all);
    }
    let path = variable("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&path).find(has_all) {
        return Some(found);
    }
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let version = |dir: &PathBuf| -> u32 {
        let name = dir
            .parent()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str());
        name.and_then(|name| name.parse().ok()).unwrap_or(0)
    };
    versions
        .map(|version| version.path().join("bin"))
        .filter(has_all)
        .max_by_key(version)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn both(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).into_owned()
}

async fn execute(connection: &mut PgConnection, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    if let Err(error) = sqlx::Executor::execute(connection, statement).await {
        panic!("{error}");
    }
}

async fn texts(connection: &mut PgConnection, statement: &str) -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
    let query = sqlx::query_scalar(AssertSqlSafe(statement.to_owned()));
    query.fetch_all(connection).await.unwrap()
}
