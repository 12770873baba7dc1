//! What an editor tells an open session, and the choices among it.

use agent_client_protocol::Error;
use agent_client_protocol::v1::Responder;
use agent_client_protocol::v1::schema::{
    PromptResponse, SessionConfigOptionValue, SetSessionConfigOptionResponse,
    SetSessionModeResponse,
};
use futures::FutureExt as _;
use tapedeck_protocol::session::{SessionResponse, UpdateSessionRequest};

use super::{Done, Session};
use crate::choices::Choices;
use crate::failure::of_call;

/// What an editor tells an open session.
#[derive(Debug)]
pub(crate) enum Command {
    Prompt {
        text: String,
        responder: Responder<PromptResponse>,
    },
    Cancel,
    /// The editor lets go of it, once it has cancelled what was going on.
    Close,
    SetMode {
        mode: String,
        responder: Responder<SetSessionModeResponse>,
    },
    SetOption {
        id: String,
        value: SessionConfigOptionValue,
        responder: Responder<SetSessionConfigOptionResponse>,
    },
}

impl Command {
    /// Answers it with an error.
    pub(crate) fn refuse(self, error: Error) -> Result<(), Error> {
        match self {
            Self::Prompt { responder, .. } => responder.respond_with_error(error),
            Self::Cancel | Self::Close => Ok(()),
            Self::SetMode { responder, .. } => responder.respond_with_error(error),
            Self::SetOption { responder, .. } => responder.respond_with_error(error),
        }
    }
}

impl Session {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Prompt { text, responder } => self.prompt(text, responder),
            Command::Cancel => self.cancel(),
            // The session ends with it.
            Command::Close => {}
            Command::SetMode { mode, responder } => match Choices::set_mode(&mode) {
                Ok(change) => self.change(change, move |changed| {
                    let answer = changed.map(|_| SetSessionModeResponse::new());
                    responder.respond_with_result(answer)
                }),
                Err(error) => drop(responder.respond_with_error(error)),
            },
            Command::SetOption {
                id,
                value,
                responder,
            } => match self.choices.set_option(&id, &value) {
                Ok(change) => {
                    let mut choices = self.choices.clone();
                    self.change(change, move |changed| {
                        let answer = changed.map(|session| {
                            choices.changed(session.approval_policy, &session.agent);
                            SetSessionConfigOptionResponse::new(choices.options())
                        });
                        responder.respond_with_result(answer)
                    });
                }
                Err(error) => drop(responder.respond_with_error(error)),
            },
        }
    }

    /// Changes the session's settings, and answers with how that went.
    fn change(
        &mut self,
        change: UpdateSessionRequest,
        answer: impl FnOnce(Result<&SessionResponse, Error>) -> Result<(), Error> + Send + 'static,
    ) {
        let (client, id) = (self.client.clone(), self.id);
        let errand = self.desk.errand();
        let task = async move {
            let _errand = errand;
            let changed = client.update_session(id, &change).await;
            let changed = changed.map_err(|error| of_call(&error, &id.to_string()));
            // A closed pipe ends the session by itself.
            let _closed = answer(changed.as_ref().map_err(Clone::clone));
            match changed {
                Ok(session) => Done::Changed(Box::new(session)),
                Err(_refused) => Done::Nothing,
            }
        };
        self.tasks.push(task.boxed());
    }
}
