//! What all sessions of one editor share: what is behind them, the way out, what the editor can do,
//! and which sessions it has open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_client_protocol::Error;
use agent_client_protocol::v1::schema::{ClientCapabilities, SessionId as AcpSessionId};
use tapedeck_client::Client;
use tapedeck_domain::SessionId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::failure::{of_host, unfit, unknown_session};
use crate::host::Host;
use crate::mapping::Wants;
use crate::session::Command;
use crate::wire::Wire;

/// Commands that may wait for a session; an editor has one or two on their way.
const COMMANDS: usize = 32;

/// What all sessions of one editor share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) wire: Wire,
    /// Cancelled once the editor has gone.
    pub(crate) gone: CancellationToken,
    /// What the editor has told and isn't done yet: it is seen through when the editor has gone.
    pub(crate) errands: TaskTracker,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    wants: Wants,
    /// Whether the editor takes options that are yes or no.
    takes_booleans: bool,
    open: HashMap<SessionId, Open>,
    /// Sessions opened so far.
    opened: u64,
}

/// A session that the editor has open.
#[derive(Debug)]
struct Open {
    number: u64,
    commands: mpsc::Sender<(Command, TaskTrackerToken)>,
    stop: CancellationToken,
}

/// A session's own end of what it is told.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    pub(crate) commands: mpsc::Receiver<(Command, TaskTrackerToken)>,
    pub(crate) stop: CancellationToken,
}

impl Desk {
    pub(crate) fn new(host: Arc<dyn Host>, wire: Wire, gone: CancellationToken) -> Self {
        Self {
            host,
            wire,
            gone,
            errands: TaskTracker::new(),
            state: Mutex::default(),
        }
    }

    /// Takes note of what the editor can do.
    pub(crate) fn introduced(&self, capabilities: &ClientCapabilities) {
        let session = capabilities.session.as_ref();
        let options = session.and_then(|session| session.config_options.as_ref());
        let elicitation = capabilities.elicitation.as_ref();
        let mut state = self.state();
        state.wants = Wants {
            notices: session.is_some_and(|session| session.notices.is_some()),
            compaction: session.is_some_and(|session| session.compaction.is_some()),
            forms: elicitation.is_some_and(|elicitation| elicitation.form.is_some()),
        };
        state.takes_booleans = options.is_some_and(|options| options.boolean.is_some());
    }

    pub(crate) fn wants(&self) -> Wants {
        self.state().wants
    }

    pub(crate) fn takes_booleans(&self) -> bool {
        self.state().takes_booleans
    }

    /// Says that something the editor told is under way, until what is given here is dropped.
    pub(crate) fn errand(&self) -> TaskTrackerToken {
        self.errands.token()
    }

    /// A client of the control plane.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        self.host.connect().await.map_err(|error| of_host(&error))
    }

    /// Opens a session; one that is open already ends.
    pub(crate) fn open(&self, session: SessionId) -> Place {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let stop = self.gone.child_token();
        let mut state = self.state();
        state.opened += 1;
        let number = state.opened;
        let open = Open {
            number,
            commands,
            stop: stop.clone(),
        };
        if let Some(before) = state.open.insert(session, open) {
            before.stop.cancel();
        }
        Place {
            number,
            commands: receiver,
            stop,
        }
    }

    /// Lets go of a session.
    pub(crate) fn close(&self, session: SessionId) {
        let closed = self.state().open.remove(&session);
        if let Some(open) = closed
            && open
                .commands
                .try_send((Command::Close, self.errand()))
                .is_err()
        {
            open.stop.cancel();
        }
    }

    /// A session has ended by itself; another of its id may have taken its place.
    pub(crate) fn ended(&self, session: SessionId, place: &Place) {
        let mut state = self.state();
        let open = state.open.get(&session);
        if open.is_some_and(|open| open.number == place.number) {
            state.open.remove(&session);
        }
    }

    /// Tells an open session something; what can't be told is answered with the reason.
    pub(crate) fn tell(&self, id: &AcpSessionId, command: Command) -> Result<(), Error> {
        let session = match session_id(id) {
            Ok(session) => session,
            Err(error) => return command.refuse(error),
        };
        let commands = self
            .state()
            .open
            .get(&session)
            .map(|open| open.commands.clone());
        let Some(commands) = commands else {
            return command.refuse(not_open(id));
        };
        match commands.try_send((command, self.errand())) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full((command, _))) => {
                command.refuse(unfit("the session is told too much at once"))
            }
            Err(mpsc::error::TrySendError::Closed((command, _))) => command.refuse(not_open(id)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Our id of a session; what is none can't be known.
pub(crate) fn session_id(id: &AcpSessionId) -> Result<SessionId, Error> {
    id.0.parse().map_err(|_odd| unknown_session(&id.0))
}

fn not_open(id: &AcpSessionId) -> Error {
    let mut error = unknown_session(&id.0);
    error.message = format!("session `{id}` is not open here: load or resume it first");
    error
}
