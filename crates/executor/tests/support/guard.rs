//! The guard as a process of its own, as the binary `tapedeck` offers it by a hidden subcommand.
//! With `hold` as its first argument it is an executor that starts one agent and waits, to be killed
//! or frozen: `hold RUN STATE_DIR WORKSPACE LEASE_MS INSTANCE PROGRAM [ARGUMENT…]`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tapedeck_executor::process::{AgentSpec, Environment, GuardCommand, Launcher};
use tokio::sync::watch;
use tokio::time::Instant;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_none_or(|first| first != "hold") {
        return tapedeck_executor::guard::guard_main(arguments);
    }
    let command = arguments.split_off(6);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime.map(|runtime| runtime.block_on(hold(&arguments, command))) {
        Ok(Some(())) => ExitCode::SUCCESS,
        Ok(None) | Err(_) => ExitCode::FAILURE,
    }
}

async fn hold(arguments: &[OsString], command: Vec<OsString>) -> Option<()> {
    let text = |at: usize| {
        arguments
            .get(at)
            .and_then(|value| value.to_str())
            .map(str::to_owned)
    };
    let lease = Duration::from_millis(text(4)?.parse().ok()?);
    let launcher = Launcher {
        guard: GuardCommand {
            program: std::env::current_exe().ok()?,
            arguments: Vec::new(),
        },
        state_dir: text(2)?.into(),
        executor_instance: text(5)?,
        lock_wait: Duration::from_secs(5),
    };
    let spec = AgentSpec {
        run_id: text(1)?,
        command,
        workspace: text(3)?.into(),
        environment: Environment::select(std::env::vars_os(), &[], &[]),
    };
    let (renew, deadline) = watch::channel(Instant::now() + lease);
    let _process = launcher.launch(spec, deadline).await.ok()?;
    loop {
        tokio::time::sleep(lease / 4).await;
        renew.send_replace(Instant::now() + lease);
    }
}
