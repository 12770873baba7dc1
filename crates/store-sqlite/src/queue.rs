//! The queue before the writer: four lanes, bounded in commands and bytes. It decides what the next
//! group holds, and never lets two commands of one session change places, whatever their lanes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tapedeck_domain::{LeaseInstant, SessionId};
use tapedeck_store::{Failure, Lane, StoreError, Work};
use tokio::sync::{Notify, oneshot};

/// A group takes at most this many commands.
pub(crate) const GROUP_COMMANDS: usize = 512;
/// A group takes at most this many bytes, or one command.
pub(crate) const GROUP_BYTES: usize = 4 * 1024 * 1024;

const LANES: usize = 4;
/// What each lane may take of a group before any lane takes more, so that none starves. The last
/// lane gets the rest only where all others are empty.
const SHARE: [(usize, usize); LANES] = [
    (192, GROUP_BYTES / 4),
    (96, GROUP_BYTES / 4),
    (96, GROUP_BYTES / 4),
    (1, 0),
];

/// A command that waits for the writer.
pub(crate) struct Command {
    pub(crate) work: Box<dyn Work>,
    pub(crate) session: Option<SessionId>,
    /// The lease clock at its arrival, at which leases are judged (rules R6).
    pub(crate) arrived: LeaseInstant,
    pub(crate) weight: usize,
    pub(crate) reply: oneshot::Sender<Result<(), Failure>>,
}

/// The queue.
pub(crate) struct Queue {
    state: Mutex<State>,
    arrival: Notify,
    max_commands: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct State {
    lanes: [VecDeque<Command>; LANES],
    /// The lane in which a session's commands wait, and how many.
    sessions: HashMap<SessionId, (usize, usize)>,
    commands: usize,
    bytes: usize,
    /// Why nothing is taken any more.
    closed: Option<&'static str>,
}

/// What the writer is to do next.
pub(crate) enum Next {
    Group(Vec<Command>),
    Closed,
}

impl Queue {
    pub(crate) fn new(max_commands: usize, max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            arrival: Notify::new(),
            max_commands,
            max_bytes,
        }
    }

    /// Takes a command in, or refuses it at once.
    pub(crate) fn push(&self, lane: Lane, command: Command) -> Result<(), StoreError> {
        let mut state = self.state();
        if let Some(reason) = state.closed {
            return Err(StoreError::Unavailable {
                reason: reason.to_owned(),
            });
        }
        if state.commands >= self.max_commands
            || (state.commands > 0 && state.bytes.saturating_add(command.weight) > self.max_bytes)
        {
            return Err(StoreError::Overloaded {
                reason: "too many commands wait for the writer".to_owned(),
            });
        }
        state.put(lane, command);
        drop(state);
        self.arrival.notify_one();
        Ok(())
    }

    /// The next group, as soon as anything waits; what was accepted before the close still comes.
    pub(crate) async fn next(&self) -> Next {
        loop {
            {
                let mut state = self.state();
                if state.commands > 0 {
                    return Next::Group(state.take());
                }
                if state.closed.is_some() {
                    return Next::Closed;
                }
            }
            self.arrival.notified().await;
        }
    }

    /// Refuses everything from now on; what waits is still taken.
    pub(crate) fn close(&self, reason: &'static str) {
        self.state().closed.get_or_insert(reason);
        self.arrival.notify_one();
    }

    /// Refuses everything from now on, and what waits as well.
    pub(crate) fn abandon(&self, reason: &'static str) {
        self.close(reason);
        let mut state = self.state();
        let waiting: Vec<Command> = state.lanes.iter_mut().flat_map(std::mem::take).collect();
        state.sessions.clear();
        state.commands = 0;
        state.bytes = 0;
        drop(state);
        for command in waiting {
            let refusal = StoreError::Unavailable {
                reason: reason.to_owned(),
            };
            let _gone = command.reply.send(Err(refusal.into()));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.state().commands
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state().closed.is_none()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the state is whole between any two lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, lane: Lane, command: Command) {
        let mut lane = match lane {
            Lane::Urgent => 0,
            Lane::Admission => 1,
            Lane::Append => 2,
            Lane::Background => 3,
        };
        if let Some(session) = command.session {
            // While commands of a session wait, later ones join them in their lane (rules R3).
            let (place, count) = self.sessions.entry(session).or_insert((lane, 0));
            *count += 1;
            lane = *place;
        }
        self.commands += 1;
        self.bytes = self.bytes.saturating_add(command.weight);
        self.lanes[lane].push_back(command);
    }

    fn take(&mut self) -> Vec<Command> {
        // Commands are taken lane by lane in two rounds, so each lane's list stays in order.
        let mut taken: [Vec<Command>; LANES] = Default::default();
        let mut room = (GROUP_COMMANDS, GROUP_BYTES);
        for (lane, (share, taken)) in SHARE.into_iter().zip(&mut taken).enumerate() {
            let bound = (share.0.min(room.0), share.1.min(room.1));
            self.take_lane(lane, bound, &mut room, taken);
        }
        for (lane, taken) in taken.iter_mut().enumerate() {
            let others_wait = self.lanes[..lane].iter().any(|lane| !lane.is_empty());
            if room.0 == 0 || room.1 == 0 || (lane == LANES - 1 && others_wait) {
                break;
            }
            let bound = room;
            self.take_lane(lane, bound, &mut room, taken);
        }
        taken.into_iter().flatten().collect()
    }

    fn take_lane(
        &mut self,
        lane: usize,
        mut bound: (usize, usize),
        room: &mut (usize, usize),
        taken: &mut Vec<Command>,
    ) {
        while let Some(next) = self.lanes[lane].front() {
            let weight = next.weight;
            // The first command of a lane is always taken, however heavy it is.
            if bound.0 == 0 || (weight > bound.1 && !taken.is_empty()) {
                return;
            }
            let Some(command) = self.lanes[lane].pop_front() else {
                return;
            };
            bound = (bound.0 - 1, bound.1.saturating_sub(weight));
            *room = (room.0 - 1, room.1.saturating_sub(weight));
            self.commands -= 1;
            self.bytes = self.bytes.saturating_sub(weight);
            if let Some(session) = command.session
                && let Some((_, count)) = self.sessions.get_mut(&session)
            {
                *count -= 1;
                if *count == 0 {
                    self.sessions.remove(&session);
                }
            }
            taken.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tapedeck_store::Tx;
    use uuid::Uuid;

    use super::*;

    struct Nothing;

    #[async_trait]
    impl Work for Nothing {
        async fn run(&mut self, _tx: &mut dyn Tx) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// A command that is known again by its arrival.
    fn command(number: i64, session: Option<u128>, weight: usize) -> Command {
        Command {
            work: Box::new(Nothing),
            session: session.map(|session| SessionId::new(Uuid::from_u128(session))),
            arrived: LeaseInstant(number),
            weight,
            reply: oneshot::channel().0,
        }
    }

    fn take(queue: &Queue) -> Vec<i64> {
        let group = queue.state().take();
        group.into_iter().map(|command| command.arrived.0).collect()
    }

    #[test]
    fn a_group_is_ordered_by_lane_and_bounded() {
        let queue = Queue::new(10_000, usize::MAX);
        queue.push(Lane::Background, command(4, None, 1)).unwrap();
        queue.push(Lane::Append, command(3, None, 1)).unwrap();
        queue.push(Lane::Admission, command(2, None, 1)).unwrap();
        queue.push(Lane::Urgent, command(1, None, 1)).unwrap();
        assert_eq!(take(&queue), [1, 2, 3, 4]);
        for number in 0..1_000 {
            queue.push(Lane::Append, command(number, None, 1)).unwrap();
        }
        assert_eq!(take(&queue), (0..512).collect::<Vec<_>>());
        assert_eq!(queue.len(), 488);
    }

    #[test]
    fn no_lane_starves_behind_a_busier_one() {
        let queue = Queue::new(10_000, usize::MAX);
        for number in 0..2_000 {
            queue.push(Lane::Urgent, command(number, None, 1)).unwrap();
        }
        queue.push(Lane::Admission, command(-1, None, 1)).unwrap();
        queue.push(Lane::Append, command(-2, None, 1)).unwrap();
        queue.push(Lane::Background, command(-3, None, 1)).unwrap();
        let group = take(&queue);
        assert_eq!(group.len(), GROUP_COMMANDS);
        assert_eq!(group[GROUP_COMMANDS - 3..], [-1, -2, -3]);
    }

    #[test]
    fn heavy_commands_fill_a_group_by_their_bytes() {
        let queue = Queue::new(100, usize::MAX);
        for number in 0..10 {
            let heavy = command(number, None, GROUP_BYTES / 4);
            queue.push(Lane::Append, heavy).unwrap();
        }
        assert_eq!(take(&queue), [0, 1, 2, 3]);
        let alone = Queue::new(100, usize::MAX);
        for number in 0..2 {
            let huge = command(number, None, 3 * GROUP_BYTES);
            alone.push(Lane::Append, huge).unwrap();
        }
        assert_eq!(take(&alone), [0]);
        assert_eq!(take(&alone), [1]);
    }

    #[test]
    fn a_session_keeps_its_lane_while_its_commands_wait() {
        let queue = Queue::new(100, usize::MAX);
        queue.push(Lane::Append, command(1, Some(7), 1)).unwrap();
        queue.push(Lane::Urgent, command(2, Some(7), 1)).unwrap();
        queue.push(Lane::Urgent, command(3, Some(8), 1)).unwrap();
        assert_eq!(take(&queue), [3, 1, 2]);
        queue.push(Lane::Urgent, command(4, Some(7), 1)).unwrap();
        queue.push(Lane::Append, command(5, Some(8), 1)).unwrap();
        assert_eq!(take(&queue), [4, 5]);
        assert!(queue.state().sessions.is_empty());
    }

    #[test]
    fn a_queue_is_bounded_in_bytes_and_refuses_after_its_close() {
        let queue = Queue::new(100, 10);
        queue.push(Lane::Append, command(1, None, 50)).unwrap();
        let refused = queue.push(Lane::Append, command(2, None, 1));
        assert!(matches!(refused, Err(StoreError::Overloaded { .. })));
        queue.close("closing");
        take(&queue);
        let refused = queue.push(Lane::Append, command(3, None, 1));
        assert!(matches!(
            refused,
            Err(StoreError::Unavailable { reason }) if reason == "closing"
        ));
    }

    #[tokio::test]
    async fn what_waits_is_refused_when_the_queue_is_abandoned() {
        let queue = Queue::new(100, usize::MAX);
        let (reply, answer) = oneshot::channel();
        let waiting = Command {
            reply,
            ..command(1, Some(1), 1)
        };
        queue.push(Lane::Urgent, waiting).unwrap();
        queue.abandon("gone");
        assert!(matches!(
            answer.await.unwrap(),
            Err(Failure::Store(StoreError::Unavailable { .. }))
        ));
        assert!(matches!(queue.next().await, Next::Closed));
    }
}
