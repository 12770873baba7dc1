//! Why a turn failed. It owns the closed list of reasons and their text; a failure must never have
//! an empty message.

use crate::lines::LineError;
use crate::process::{AgentExit, AgentProcess, LaunchError, Redactor};

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Failure {
    /// The kind.
    pub code: FailureCode,
    /// What happened, redacted, with what to do next where there is something.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl Failure {
    pub(crate) fn of_launch(error: &LaunchError, redactor: &Redactor) -> Self {
        let code = match error {
            LaunchError::WorkspaceBusy { .. } => FailureCode::WorkspaceBusy,
            LaunchError::Program { .. } | LaunchError::Guard { .. } | LaunchError::Setup(_) => {
                FailureCode::AgentStart
            }
        };
        Self::new(code, redactor.redact(error.to_string()))
    }

    pub(crate) fn of_line(error: &LineError) -> Self {
        match error {
            LineError::TooLong { .. } => {
                Self::new(FailureCode::AgentLineTooLong, error.to_string())
            }
            LineError::Read(source) => {
                Self::new(FailureCode::AgentProtocol, format!("{error}: {source}"))
            }
        }
    }

    /// `when` says what the agent left undone.
    pub(crate) async fn of_exit(exit: AgentExit, when: &str, process: &AgentProcess) -> Self {
        let tail = process.stderr().quoted().await;
        let tail = if tail.is_empty() {
            tail
        } else {
            format!("; stderr: {tail}")
        };
        Self::new(
            FailureCode::AgentExited,
            format!("the agent {exit}{when}{tail}"),
        )
    }
}

/// The kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCode {
    /// The agent could not be started.
    AgentStart,
    /// Another agent works in the workspace.
    WorkspaceBusy,
    /// The agent ended before its turn.
    AgentExited,
    /// The agent answered with an error.
    AgentError,
    /// The agent does not speak the protocol as asked.
    AgentProtocol,
    /// The agent wants authentication, or can't authenticate as configured.
    AgentAuthRequired,
    /// The agent can't be given what the session wants it to have.
    AgentCapabilityMissing,
    /// The agent does not have the wanted mode.
    AgentModeMissing,
    /// The agent does not have the wanted model.
    AgentModelMissing,
    /// The agent does not have the wanted option, or not with that value.
    AgentOptionMissing,
    /// The agent took a choice and does not show it.
    AgentChoiceUnconfirmed,
    /// The agent wrote a line above the limit.
    AgentLineTooLong,
    /// The agent wrote nothing for too long.
    AgentIdle,
    /// The turn took too long.
    TurnTimeout,
    /// The agent finished without any output.
    AgentSilent,
}

impl FailureCode {
    /// The code as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentStart => "agent_start_failed",
            Self::WorkspaceBusy => "workspace_busy",
            Self::AgentExited => "agent_exited",
            Self::AgentError => "agent_error",
            Self::AgentProtocol => "agent_protocol_error",
            Self::AgentAuthRequired => "agent_auth_required",
            Self::AgentCapabilityMissing => "agent_capability_missing",
            Self::AgentModeMissing => "agent_mode_missing",
            Self::AgentModelMissing => "agent_model_missing",
            Self::AgentOptionMissing => "agent_option_missing",
            Self::AgentChoiceUnconfirmed => "agent_choice_unconfirmed",
            Self::AgentLineTooLong => "agent_line_too_long",
            Self::AgentIdle => "agent_idle_timeout",
            Self::TurnTimeout => "turn_timeout",
            Self::AgentSilent => "agent_silent",
        }
    }
}
