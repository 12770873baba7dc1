//! Commands that the agent runs through us. It owns them to the end of the turn: each is a process
//! tree under a guard of its own, in the session's directories, and what it puts out is kept up to a
//! limit. No command may outlive the turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::files::{Files, Refusal};
use super::rpc::{INTERNAL_ERROR, INVALID_PARAMS};
use crate::process::{AgentExit, AgentProcess, AgentSpec, Environment, Launcher, Redactor};

/// Terminals of one turn at a time.
const TERMINALS: usize = 32;

/// Output that is kept of one, whatever more the agent asks for.
const OUTPUT_LIMIT: usize = 1024 * 1024;

/// How terminals are started.
#[derive(Debug)]
pub(super) struct Terminals {
    launcher: Launcher,
    run_id: String,
    environment: Environment,
    files: Files,
    lease: watch::Receiver<Instant>,
    redactor: Redactor,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    closed: bool,
    count: u64,
    terminals: HashMap<String, Arc<Terminal>>,
}

/// A command and what it has put out.
#[derive(Debug)]
pub(super) struct Terminal {
    process: tokio::sync::Mutex<AgentProcess>,
    exit: watch::Receiver<Option<AgentExit>>,
    output: Arc<Mutex<Output>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Output {
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Output {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = self.bytes.len().saturating_sub(self.limit);
        if excess > 0 {
            self.truncated = true;
            // Whole characters only: what continues one begins with the bits 10.
            let rest = &self.bytes[excess..];
            let torn = rest.iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
            self.bytes.drain(..excess + torn);
        }
    }
}

impl Terminals {
    pub(super) fn new(
        launcher: Launcher,
        run_id: String,
        environment: Environment,
        files: Files,
        lease: watch::Receiver<Instant>,
        redactor: Redactor,
    ) -> Self {
        Self {
            launcher,
            run_id,
            environment,
            files,
            lease,
            redactor,
            open: Mutex::default(),
        }
    }

    /// One request; `None` if the method is not known.
    pub(super) async fn answer(
        &self,
        method: &str,
        params: &Value,
    ) -> Option<Result<Value, Refusal>> {
        if method == "terminal/create" {
            return Some(self.create(params).await);
        }
        let known = ["output", "wait_for_exit", "kill", "release"];
        let method = method
            .strip_prefix("terminal/")
            .filter(|method| known.contains(method))?;
        let id = params["terminalId"].as_str().unwrap_or_default();
        let terminal = {
            let mut open = self.open();
            if method == "release" {
                open.terminals.remove(id)
            } else {
                open.terminals.get(id).cloned()
            }
        };
        let Some(terminal) = terminal else {
            let text = format!("there is no terminal `{id}`");
            return Some(Err(Refusal::new(INVALID_PARAMS, text)));
        };
        Some(Ok(match method {
            "output" => terminal.output(&self.redactor),
            "wait_for_exit" => exit_status(terminal.wait().await),
            _ => {
                terminal.kill().await;
                json!({})
            }
        }))
    }

    async fn create(&self, params: &Value) -> Result<Value, Refusal> {
        let spec = self.spec(params)?;
        let limit = params["outputByteLimit"].as_u64();
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.unwrap_or(OUTPUT_LIMIT).min(OUTPUT_LIMIT);
        if self.open().terminals.len() >= TERMINALS {
            let text = format!("no more than {TERMINALS} terminals may be open; release one");
            return Err(Refusal::new(INTERNAL_ERROR, text));
        }
        let launched = self.launcher.launch_beside(spec, self.lease.clone()).await;
        let (process, output) = launched.map_err(|error| {
            let text = self.redactor.redact(error.to_string());
            Refusal::new(INTERNAL_ERROR, text)
        })?;
        let terminal = Arc::new(Terminal::start(process, output, limit));
        let id = {
            let mut open = self.open();
            open.count += 1;
            let id = format!("terminal-{}", open.count);
            if !open.closed {
                open.terminals.insert(id.clone(), Arc::clone(&terminal));
                return Ok(json!({"terminalId": id}));
            }
            id
        };
        // The turn ended while it was started.
        terminal.kill().await;
        Err(Refusal::new(
            INTERNAL_ERROR,
            format!("`{id}` came too late"),
        ))
    }

    fn spec(&self, params: &Value) -> Result<AgentSpec, Refusal> {
        let invalid = |text: &str| Refusal::new(INVALID_PARAMS, text);
        let command = params["command"]
            .as_str()
            .filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| invalid("`command` is missing"))?;
        let mut words = vec![command.into()];
        for word in params["args"].as_array().into_iter().flatten() {
            let word = word
                .as_str()
                .ok_or_else(|| invalid("`args` must be texts"))?;
            words.push(word.into());
        }
        let mut environment = self.environment.clone();
        for pair in params["env"].as_array().into_iter().flatten() {
            let (Some(name), Some(value)) = (pair["name"].as_str(), pair["value"].as_str()) else {
                return Err(invalid("`env` must be names and values"));
            };
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(invalid("`env` has an impossible name or value"));
            }
            environment.set(name, value);
        }
        let workspace = match params["cwd"].as_str() {
            Some(cwd) => self.files.directory(cwd.as_ref())?,
            None => self.files.first()?,
        };
        Ok(AgentSpec {
            run_id: self.run_id.clone(),
            command: words,
            workspace,
            environment,
        })
    }

    /// What a terminal has put out, for a tool call that shows it.
    pub(super) fn shown(&self, id: &str) -> Option<String> {
        let terminal = self.open().terminals.get(id).cloned()?;
        let output = terminal.output(&self.redactor);
        output["output"].as_str().map(str::to_owned)
    }

    /// Ends all commands, and those that are being started.
    pub(super) async fn close(&self) {
        let terminals = {
            let mut open = self.open();
            open.closed = true;
            std::mem::take(&mut open.terminals)
        };
        let ends = terminals.values().map(|terminal| terminal.kill());
        futures::future::join_all(ends).await;
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    fn start(process: AgentProcess, mut pipe: pipe::Receiver, limit: usize) -> Self {
        let output = Arc::new(Mutex::new(Output {
            bytes: Vec::new(),
            limit,
            truncated: false,
        }));
        let (sender, exit) = watch::channel(None);
        let ended = process.exit();
        let mut tasks = JoinSet::new();
        let kept = Arc::clone(&output);
        tasks.spawn(async move {
            let mut buffer = vec![0; 16 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.add(&buffer[..count]);
            }
            // The exit is told once all that was put out is there.
            sender.send_replace(Some(ended.await));
        });
        Self {
            process: tokio::sync::Mutex::new(process),
            exit,
            output,
            _tasks: tasks,
        }
    }

    fn output(&self, redactor: &Redactor) -> Value {
        let (text, truncated) = {
            let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
            let text = String::from_utf8_lossy(&output.bytes).into_owned();
            (redactor.redact(text), output.truncated)
        };
        let mut answer = json!({"output": text, "truncated": truncated});
        if let Some(exit) = *self.exit.borrow() {
            answer["exitStatus"] = exit_status(exit);
        }
        answer
    }

    async fn wait(&self) -> AgentExit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await;
        ended.ok().and_then(|exit| *exit).unwrap_or_default()
    }

    async fn kill(&self) {
        self.process.lock().await.kill_now().await;
    }
}

fn exit_status(exit: AgentExit) -> Value {
    let signal = exit.signal.map(|number| match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => number.to_string(),
    });
    json!({"exitCode": exit.code, "signal": signal})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_its_beginning_and_between_characters() {
        let mut output = Output {
            bytes: Vec::new(),
            limit: 5,
            truncated: false,
        };
        output.add("abc".as_bytes());
        assert!(!output.truncated);
        output.add("äöü".as_bytes());
        assert!(output.truncated);
        assert_eq!(String::from_utf8(output.bytes.clone()).unwrap(), "öü");
        output.add(b"0123456789");
        assert_eq!(output.bytes, b"56789");
    }
}
