//! The gate before the connections: it bounds what waits, lets one command of a session in at a
//! time and in the order they came, and keeps connections free for urgent ones. So a busy session
//! holds one connection, not all of them, and a flood of uploads never stops a heartbeat.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tapedeck_domain::SessionId;
use tapedeck_store::{Lane, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::{overloaded, unavailable};

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    max_commands: usize,
    max_bytes: usize,
    /// For every lane.
    open: Arc<Semaphore>,
    /// For urgent commands alone.
    reserved: Arc<Semaphore>,
    /// Of the open ones, how many house-keeping may have.
    background: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    bytes: usize,
    /// Sessions with a command inside, and who waits for its end.
    sessions: HashMap<SessionId, VecDeque<oneshot::Sender<()>>>,
    /// Why nothing is taken any more.
    closed: Option<&'static str>,
}

/// A command that was taken in and waits. Its place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gate: Arc<Gate>,
    lane: Lane,
    session: Option<SessionId>,
    /// Comes when the session's command before has ended; `None` where there was none.
    turn: Option<oneshot::Receiver<()>>,
    weight: usize,
    waits: bool,
}

/// The right to use one connection.
#[derive(Debug)]
pub(crate) struct Pass {
    _ticket: Ticket,
    _connection: OwnedSemaphorePermit,
    _background: Option<OwnedSemaphorePermit>,
}

impl Gate {
    pub(crate) fn new(connections: usize, max_commands: usize, max_bytes: usize) -> Self {
        let reserved = (connections / 4).max(1);
        let open = connections.saturating_sub(reserved).max(1);
        Self {
            state: Mutex::default(),
            max_commands,
            max_bytes,
            open: Arc::new(Semaphore::new(open)),
            reserved: Arc::new(Semaphore::new(reserved)),
            background: Arc::new(Semaphore::new((open / 2).max(1))),
        }
    }

    /// Takes a command in, or refuses it at once.
    pub(crate) fn enter(
        self: &Arc<Self>,
        lane: Lane,
        session: Option<SessionId>,
        weight: usize,
    ) -> Result<Ticket, StoreError> {
        let mut state = self.state();
        if let Some(reason) = state.closed {
            return Err(unavailable(reason));
        }
        if state.waiting >= self.max_commands
            || (state.waiting > 0 && state.bytes.saturating_add(weight) > self.max_bytes)
        {
            return Err(overloaded("too many commands wait for the database"));
        }
        state.waiting += 1;
        state.bytes = state.bytes.saturating_add(weight);
        let turn = session.and_then(|session| state.line_up(session));
        drop(state);
        Ok(Ticket {
            gate: Arc::clone(self),
            lane,
            session,
            turn,
            weight,
            waits: true,
        })
    }

    /// Refuses everything from now on; what was taken in still gets its turn.
    pub(crate) fn close(&self, reason: &'static str) {
        self.state().closed.get_or_insert(reason);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state().closed.is_none()
    }

    /// How many commands wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the state is whole between any two lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Joins a session's line; gives what to wait for where somebody is before.
    fn line_up(&mut self, session: SessionId) -> Option<oneshot::Receiver<()>> {
        match self.sessions.get_mut(&session) {
            None => {
                self.sessions.insert(session, VecDeque::new());
                None
            }
            Some(line) => {
                let (next, turn) = oneshot::channel();
                line.push_back(next);
                Some(turn)
            }
        }
    }

    /// Lets the next of a session's line in.
    fn step_up(&mut self, session: SessionId) {
        let Some(line) = self.sessions.get_mut(&session) else {
            return;
        };
        while let Some(next) = line.pop_front() {
            // Who has given up is passed over.
            if next.send(()).is_ok() {
                return;
            }
        }
        self.sessions.remove(&session);
    }

    fn stop_waiting(&mut self, weight: usize) {
        self.waiting -= 1;
        self.bytes = self.bytes.saturating_sub(weight);
    }
}

impl Ticket {
    /// Waits for the session's turn and a connection.
    pub(crate) async fn pass(mut self) -> Result<Pass, StoreError> {
        if let Some(turn) = &mut self.turn {
            // Whoever is before always steps up, so the only end of this wait is the turn.
            let _turn = turn.await;
        }
        self.turn = None;
        let gate = Arc::clone(&self.gate);
        let closed = |_closed| unavailable("the store is closed");
        let background = match self.lane {
            Lane::Background => {
                let permit = Arc::clone(&gate.background).acquire_owned().await;
                Some(permit.map_err(closed)?)
            }
            Lane::Urgent | Lane::Admission | Lane::Append => None,
        };
        let open = Arc::clone(&gate.open).acquire_owned();
        let connection = if self.lane == Lane::Urgent {
            tokio::select! {
                biased;
                permit = open => permit,
                permit = Arc::clone(&gate.reserved).acquire_owned() => permit,
            }
        } else {
            open.await
        }
        .map_err(closed)?;
        gate.state().stop_waiting(self.weight);
        self.waits = false;
        Ok(Pass {
            _ticket: self,
            _connection: connection,
            _background: background,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        if self.waits {
            state.stop_waiting(self.weight);
        }
        let Some(session) = self.session else {
            return;
        };
        let inside = match &mut self.turn {
            None => true,
            // The turn may have come in the moment in which this one gave up.
            Some(turn) => {
                turn.close();
                turn.try_recv().is_ok()
            }
        };
        if inside {
            state.step_up(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    fn session(number: u128) -> SessionId {
        SessionId::new(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn a_sessions_commands_pass_one_by_one_in_the_order_they_came() {
        let gate = Arc::new(Gate::new(8, 100, usize::MAX));
        let first = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        let second = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        let third = gate.enter(Lane::Urgent, Some(session(1)), 1).unwrap();
        let other = gate.enter(Lane::Append, Some(session(2)), 1).unwrap();
        let mut second = Box::pin(second.pass());
        let mut third = Box::pin(third.pass());
        let inside = first.pass().await.unwrap();
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(other.pass().now_or_never().is_some());
        drop(inside);
        assert!(third.as_mut().now_or_never().is_none());
        let inside = second.await.unwrap();
        assert!(third.as_mut().now_or_never().is_none());
        drop(inside);
        drop(third.await.unwrap());
        assert!(gate.state().sessions.is_empty());
        assert_eq!(gate.waiting(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_holds_nobody_up() {
        let gate = Arc::new(Gate::new(8, 100, usize::MAX));
        let first = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        let second = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        let third = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        let fourth = gate.enter(Lane::Append, Some(session(1)), 1).unwrap();
        drop(second);
        drop(first);
        // The third has its turn now and goes without having noticed.
        drop(third);
        drop(fourth.pass().await.unwrap());
        assert!(gate.state().sessions.is_empty());
        assert_eq!((gate.waiting(), gate.state().bytes), (0, 0));
    }

    #[tokio::test]
    async fn an_urgent_command_passes_a_flood_of_uploads() {
        let gate = Arc::new(Gate::new(4, 1_000, usize::MAX));
        let mut inside = Vec::new();
        for _ in 0..3 {
            let ticket = gate.enter(Lane::Append, None, 1).unwrap();
            inside.push(ticket.pass().await.unwrap());
        }
        let upload = gate.enter(Lane::Append, None, 1).unwrap();
        let mut upload = Box::pin(upload.pass());
        assert!(upload.as_mut().now_or_never().is_none());
        let urgent = gate.enter(Lane::Urgent, None, 1).unwrap();
        let urgent = urgent.pass().now_or_never();
        assert!(urgent.is_some_and(|passed| passed.is_ok()));
        inside.pop();
        assert!(upload.now_or_never().is_some_and(|passed| passed.is_ok()));
    }

    #[tokio::test]
    async fn house_keeping_never_takes_all_connections() {
        let gate = Arc::new(Gate::new(4, 1_000, usize::MAX));
        let chore = gate.enter(Lane::Background, None, 1).unwrap();
        let _inside = chore.pass().await.unwrap();
        let second = gate.enter(Lane::Background, None, 1).unwrap();
        assert!(second.pass().now_or_never().is_none());
        let upload = gate.enter(Lane::Append, None, 1).unwrap();
        assert!(upload.pass().now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_nothing_comes_after_the_close() {
        let gate = Arc::new(Gate::new(4, 2, 100));
        let heavy = gate.enter(Lane::Append, None, 1_000).unwrap();
        assert!(gate.enter(Lane::Append, None, 1).is_err());
        drop(heavy);
        let _first = gate.enter(Lane::Append, None, 1).unwrap();
        let second = gate.enter(Lane::Append, None, 1).unwrap();
        let refused = gate.enter(Lane::Urgent, None, 1).unwrap_err();
        assert!(refused.to_string().contains("too many commands wait"));
        gate.close("closing");
        drop(second);
        let refused = gate.enter(Lane::Urgent, None, 1).unwrap_err();
        assert!(refused.to_string().contains("closing"));
    }
}
