//! A store that fails now and then, as networks, disks and servers do: before it begins, as it
//! commits, after it has committed, late, or for a while. What it wraps stays whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tapedeck_domain::SessionId;
use tapedeck_store::{
    Failure, Heard, Hint, Lane, Reader, Store, StoreError, StoreHealth, Tx, Work,
};

/// How many commands in a row find the store exhausted.
const EXHAUSTED: u32 = 3;
const LATE: Duration = Duration::from_millis(2);

/// What goes wrong with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Nothing is written, and the caller is told so.
    Before,
    /// All of it runs, and the commit fails: nothing is written.
    AtCommit,
    /// It is committed, and the answer is lost.
    LostReply,
    /// It takes its time.
    Delay,
    /// Nothing is written, and nothing of the next commands either.
    Exhausted,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] = [
        Self::Before,
        Self::AtCommit,
        Self::LostReply,
        Self::Delay,
        Self::Exhausted,
    ];
}

/// Which commands fail.
#[derive(Debug)]
enum Plan {
    None,
    /// Each one with this probability, in percent.
    Random {
        rng: Box<StdRng>,
        percent: u32,
    },
    /// The first one of each name.
    FirstOfEach(Fault),
    /// One, after that many others.
    Once {
        after: u32,
        fault: Fault,
    },
}

#[derive(Debug)]
struct State {
    plan: Plan,
    exhausted: u32,
    commands: u32,
    /// The commands that came, and how often each of them was struck.
    struck: BTreeMap<&'static str, u32>,
}

/// The store.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

impl Faulty {
    /// Around a store, with no fault yet.
    pub(crate) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        let state = State {
            plan: Plan::None,
            exhausted: 0,
            commands: 0,
            struck: BTreeMap::new(),
        };
        Arc::new(Self {
            inner,
            state: Mutex::new(state),
        })
    }

    /// From now on a share of the commands fail, as the seed says.
    pub(crate) fn fail_randomly(&self, seed: u64, percent: u32) {
        let rng = Box::new(StdRng::seed_from_u64(seed));
        self.state.lock().unwrap().plan = Plan::Random { rng, percent };
    }

    /// From now on each command fails the first time that it comes.
    pub(crate) fn fail_first_of_each(&self, fault: Fault) {
        self.state.lock().unwrap().plan = Plan::FirstOfEach(fault);
    }

    /// From now on one command fails, after `after` others.
    pub(crate) fn fail_once(&self, after: u32, fault: Fault) {
        self.state.lock().unwrap().plan = Plan::Once { after, fault };
    }

    /// No more faults. Gives how many commands came since the last time.
    pub(crate) fn heal(&self) -> u32 {
        let mut state = self.state.lock().unwrap();
        state.plan = Plan::None;
        state.exhausted = 0;
        std::mem::take(&mut state.commands)
    }

    /// The commands that came by name, and how often each of them was struck.
    pub(crate) fn struck(&self) -> BTreeMap<&'static str, u32> {
        self.state.lock().unwrap().struck.clone()
    }

    fn fault(&self, name: &'static str) -> Option<Fault> {
        let mut guard = self.state.lock().unwrap();
        let state = &mut *guard;
        state.commands += 1;
        let struck = *state.struck.entry(name).or_default();
        let fault = match &mut state.plan {
            _ if state.exhausted > 0 => {
                state.exhausted -= 1;
                Some(Fault::Before)
            }
            Plan::None => None,
            Plan::Random { rng, percent } => rng
                .random_ratio(*percent, 100)
                .then(|| Fault::ALL[rng.random_range(0..Fault::ALL.len())]),
            Plan::FirstOfEach(fault) => (struck == 0).then_some(*fault),
            Plan::Once { after: 0, fault } => {
                let fault = *fault;
                state.plan = Plan::None;
                Some(fault)
            }
            Plan::Once { after, .. } => {
                *after -= 1;
                None
            }
        };
        if fault == Some(Fault::Exhausted) {
            state.exhausted = EXHAUSTED - 1;
        }
        if fault.is_some() {
            state.struck.insert(name, struck + 1);
        }
        fault
    }
}

fn away() -> Failure {
    let reason = "a planned fault".to_owned();
    StoreError::Unavailable { reason }.into()
}

/// Work that is undone at its end.
struct Undone(Box<dyn Work>);

#[async_trait]
impl Work for Undone {
    async fn run(&mut self, tx: &mut dyn Tx) -> Result<(), Failure> {
        self.0.run(tx).await?;
        Err(away())
    }

    fn weight(&self) -> usize {
        self.0.weight()
    }
}

#[async_trait]
impl Store for Faulty {
    async fn transact(
        &self,
        lane: Lane,
        session: Option<SessionId>,
        work: Box<dyn Work>,
    ) -> Result<(), Failure> {
        match self.fault(work.name()) {
            None => self.inner.transact(lane, session, work).await,
            Some(Fault::Before | Fault::Exhausted) => Err(away()),
            Some(Fault::AtCommit) => {
                let work = Box::new(Undone(work));
                self.inner.transact(lane, session, work).await
            }
            Some(Fault::Delay) => {
                tokio::time::sleep(LATE).await;
                let answer = self.inner.transact(lane, session, work).await;
                tokio::time::sleep(LATE).await;
                answer
            }
            Some(Fault::LostReply) => {
                self.inner.transact(lane, session, work).await?;
                Err(StoreError::OutcomeUnknown {
                    reason: "a planned loss of the reply".to_owned(),
                }
                .into())
            }
        }
    }

    fn reader(&self) -> &dyn Reader {
        self.inner.reader()
    }

    fn announce(&self, hints: Vec<Hint>) {
        self.inner.announce(hints);
    }

    async fn hear(&self) -> Result<Heard, StoreError> {
        self.inner.hear().await
    }

    fn health(&self) -> StoreHealth {
        self.inner.health()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
