//! The guard: a small process between executor and agent (rules R13). It owns the agent's life,
//! starts it under the workspace's lock, and kills its whole tree when the deadline passes or the
//! executor is gone, so that neither a frozen nor a killed executor leaves an agent behind. It must
//! never touch the agent's input and output: the agent inherits them.
//!
//! Deadlines come over a named pipe in the executor's private state directory. An inherited
//! descriptor would be simpler to explain but needs unsafe code to take over, and a socket's path
//! may have only 108 bytes. The guard removes both names as soon as it has opened them.

mod control;
mod lock;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

use control::Order;
pub use control::{GuardSpec, GuardStatus, KillReason};
pub(crate) use control::{PARK_LINE, RESUME_LINE, boot_clock_ms, deadline_line};
pub(crate) use lock::lock_path;
use lock::{Acquired, WorkspaceLock};

use crate::process::reaper::{Awaited, reap_all, reap_orphans};
use crate::process::tree::{Identity, Mark, Scope};

/// How often the deadline is looked at.
const TICK: Duration = Duration::from_millis(100);

/// For processes that do not die at once, such as those in the middle of a disk access.
const KILL_LIMIT: Duration = Duration::from_secs(30);

const FORMER_RUNS_LIMIT: Duration = Duration::from_secs(5);

const EXIT_REFUSED: u8 = 125;

/// Runs the guard: `arguments` are the spec as JSON, then the agent's program and its arguments.
/// Blocks until the agent and all its descendants are gone; the result is the agent's exit code,
/// 128 + the signal, or 125 if it was not started.
pub fn guard_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match guard(arguments.into_iter().collect()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // There may be nobody to read it.
            let _ = writeln!(io::stderr(), "agent guard: {error}");
            ExitCode::from(EXIT_REFUSED)
        }
    }
}

fn guard(mut arguments: Vec<OsString>) -> io::Result<u8> {
    if arguments.len() < 2 {
        return Err(io::Error::other("expected a spec and a program"));
    }
    let agent = arguments.split_off(1);
    let spec = arguments.pop().unwrap_or_default();
    let spec: GuardSpec = serde_json::from_slice(spec.as_encoded_bytes())?;
    // A group of its own, or a signal to the executor's terminal would end it. It fails only for a
    // process that leads one already.
    let _ = setsid();
    set_child_subreaper(true)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(supervise(spec, agent))
}

async fn supervise(spec: GuardSpec, agent: Vec<OsString>) -> io::Result<u8> {
    let mut watch = Watch::open(&spec)?;
    let reports = Reports::open(&spec);
    for name in [&spec.control, &spec.status] {
        std::fs::remove_file(name)?;
    }
    let Some(mut reports) = reports? else {
        return Ok(EXIT_REFUSED);
    };
    let wait = Duration::from_millis(spec.lock_wait_ms);
    let mut waiting = reports.pipe.try_clone().map(|pipe| Reports { pipe })?;
    let mut lock = None;
    if let Some(path) = &spec.lock {
        let locked = tokio::select! {
            reason = watch.tripped() => {
                reports.send(&GuardStatus::Killed { reason });
                return Ok(EXIT_REFUSED);
            }
            locked = lock_workspace(path, &spec, wait, move || waiting.send(&GuardStatus::Waiting)) => locked?,
        };
        match locked {
            Acquired::Locked {
                lock: mut taken, ..
            } => {
                taken.record(std::slice::from_ref(&spec.run_id))?;
                lock = Some(taken);
            }
            Acquired::Busy { holder } => {
                reports.send(&GuardStatus::Busy { holder });
                return Ok(EXIT_REFUSED);
            }
        }
    }
    let agent = match start(&agent) {
        Ok(agent) => agent,
        Err(error) => {
            reports.send(&GuardStatus::SpawnFailed {
                message: error.to_string(),
            });
            return Ok(EXIT_REFUSED);
        }
    };
    let pid = agent.1.pid();
    reports.send(&GuardStatus::Started { pid });
    release_stdio()?;
    let mut hold = Hold {
        lock,
        run_id: spec.run_id,
        lent: false,
    };
    let (status, end) = outlive(agent, &mut hold, &mut watch, &mut reports).await?;
    if end.clean {
        hold.clear();
    }
    reports.send(&end.status);
    Ok(exit_code(status))
}

/// The lock, and no process left of the runs that held it before.
async fn lock_workspace(
    path: &Path,
    spec: &GuardSpec,
    wait: Duration,
    waiting: impl FnOnce(),
) -> io::Result<Acquired> {
    let acquired = WorkspaceLock::acquire(path, wait, waiting).await?;
    let Acquired::Locked { lock, former } = acquired else {
        return Ok(acquired);
    };
    let marks: Vec<_> = former
        .iter()
        .filter(|run| **run != spec.run_id)
        .cloned()
        .map(Mark::Run)
        .collect();
    let scope = Scope {
        marks,
        ..Scope::default()
    };
    if !scope.marks.is_empty() && scope.kill_all(FORMER_RUNS_LIMIT).is_err() {
        return Ok(Acquired::Busy {
            holder: former.last().cloned(),
        });
    }
    Ok(Acquired::Locked { lock, former })
}

fn start(agent: &[OsString]) -> io::Result<(Child, Awaited)> {
    let (program, arguments) = agent.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    Awaited::spawn(Command::new(program).args(arguments).process_group(0))
}

/// Gives up the agent's pipes, or they would stay open after its end.
fn release_stdio() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

/// The guard's hold on the workspace.
struct Hold {
    lock: Option<WorkspaceLock>,
    run_id: String,
    /// Whether the agent rests and others may take the workspace.
    lent: bool,
}

impl Hold {
    fn lend(&mut self) {
        if let Some(lock) = &self.lock {
            // A lock that can't be given up keeps others waiting; the agent's end frees it.
            self.lent = lock.lend().is_ok();
        }
    }

    /// `false` if the workspace is another's by now.
    fn take_back(&mut self) -> bool {
        if self.lent {
            self.lent = !self
                .lock
                .as_ref()
                .is_some_and(|lock| lock.take_back(&self.run_id));
        }
        !self.lent
    }

    /// Nothing of the run is left. A record that stays only makes the next holder look for
    /// processes that are gone; another's record is not ours to change.
    fn clear(&mut self) {
        if self.take_back()
            && let Some(lock) = &mut self.lock
        {
            let _ = lock.record(&[]);
        }
    }

    /// An agent's processes are found by their mark too; those beside it carry the same mark.
    fn marks(&self) -> Vec<Mark> {
        let marks = self.lock.iter().map(|_| Mark::Run(self.run_id.clone()));
        marks.collect()
    }
}

struct End {
    status: GuardStatus,
    clean: bool,
}

/// Waits for the agent's end or brings it about, then for the end of all that it started.
async fn outlive(
    (mut child, awaited): (Child, Awaited),
    hold: &mut Hold,
    watch: &mut Watch,
    reports: &mut Reports,
) -> io::Result<(ExitStatus, End)> {
    let scope = Scope {
        root: Identity::of(std::process::id().cast_signed()),
        marks: hold.marks(),
    };
    let mut deaths = signal(SignalKind::child())?;
    let ended = loop {
        tokio::select! {
            biased;
            event = watch.next() => match event {
                Event::Kill(reason) => break Err(reason),
                Event::Park => {
                    hold.lend();
                    reports.send(&GuardStatus::Parked);
                }
                Event::Resume if hold.take_back() => reports.send(&GuardStatus::Resumed),
                Event::Resume => break Err(KillReason::WorkspaceTaken),
            },
            status = child.wait() => break Ok(status?),
            // Dead tool commands of a long run would fill the process table.
            _ = deaths.recv() => reap_orphans(),
        }
    };
    // Nothing else is left to do, so that it may block.
    let clean = scope.kill_all(KILL_LIMIT).is_ok();
    let (status, told) = match ended {
        Ok(status) => {
            let exited = GuardStatus::Exited {
                code: status.code(),
                signal: status.signal(),
            };
            (status, exited)
        }
        Err(reason) => (child.wait().await?, GuardStatus::Killed { reason }),
    };
    drop(awaited);
    let end = End {
        status: told,
        clean: clean && bury(&scope),
    };
    Ok((status, end))
}

/// Reaps everything, so that no dead process goes on to the executor. `false` if one lives on.
fn bury(scope: &Scope) -> bool {
    let until = Instant::now() + KILL_LIMIT;
    while !reap_all() {
        if scope.kill_all(KILL_LIMIT).is_err() || Instant::now() >= until {
            return false;
        }
    }
    true
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// What the guard has to act on.
enum Event {
    Kill(KillReason),
    Park,
    Resume,
}

/// What can end the agent before its time, and the executor's orders.
struct Watch {
    control: Lines<BufReader<pipe::Receiver>>,
    signals: [Signal; 3],
    deadline: u64,
    tick: Interval,
}

impl Watch {
    fn open(spec: &GuardSpec) -> io::Result<Self> {
        let control = pipe::OpenOptions::new().open_receiver(&spec.control)?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            control: BufReader::new(control).lines(),
            signals: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
            ],
            deadline: spec.deadline,
            tick,
        })
    }

    /// Returns when the agent has to be killed; cancel-safe.
    async fn tripped(&mut self) -> KillReason {
        loop {
            if let Event::Kill(reason) = self.next().await {
                return reason;
            }
        }
    }

    /// Returns when there is something to act on; cancel-safe.
    async fn next(&mut self) -> Event {
        let kill = Event::Kill;
        loop {
            let [terminate, interrupt, hangup] = &mut self.signals;
            tokio::select! {
                line = self.control.next_line() => match line {
                    Ok(Some(line)) => match control::parse_order(&line) {
                        Some(Order::Deadline(deadline)) => self.deadline = deadline,
                        Some(Order::Park) => return Event::Park,
                        Some(Order::Resume) => return Event::Resume,
                        None => {}
                    },
                    Ok(None) | Err(_) => return kill(KillReason::ExecutorGone),
                },
                _ = terminate.recv() => return kill(KillReason::Terminated),
                _ = interrupt.recv() => return kill(KillReason::Terminated),
                _ = hangup.recv() => return kill(KillReason::Terminated),
                _ = self.tick.tick() => if boot_clock_ms() >= self.deadline {
                    return kill(KillReason::DeadlinePassed);
                },
            }
        }
    }
}

/// The pipe to the executor.
struct Reports {
    pipe: File,
}

impl Reports {
    /// `None` if the executor is gone: it holds the other end before it starts the guard. Opening
    /// must not wait for a reader that will never come.
    fn open(spec: &GuardSpec) -> io::Result<Option<Self>> {
        match pipe::OpenOptions::new().open_sender(&spec.status) {
            Ok(sender) => {
                let pipe = File::from(sender.into_blocking_fd()?);
                Ok(Some(Self { pipe }))
            }
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, status: &GuardStatus) {
        if let Ok(mut line) = serde_json::to_vec(status) {
            line.push(b'\n');
            // An executor that is gone is noticed on the control pipe.
            let _ = self.pipe.write_all(&line);
        }
    }
}
