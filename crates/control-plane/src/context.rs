//! What a command works with: the transaction, the clock, and the one gate to a session's rows.
//! Nothing of a session is locked anywhere else, so no command reaches a row without passing the
//! authority check (design §4.8) and, for executors, the claim check (rules R9).

use serde_json::json;
use tapedeck_domain::claim::{self, ClaimFacts, ClaimToken, Proof};
use tapedeck_domain::event::{Draft, EventKind, EventRecord};
use tapedeck_domain::owner::{self, Authority, Grant, SessionHead};
use tapedeck_domain::queue::{self, Preference};
use tapedeck_domain::run::{LiveRun, RunState, RunStatus};
use tapedeck_domain::settle::{Ending, RunEnd};
use tapedeck_domain::{LeaseInstant, Now, Rejection, RunId, SessionId, Timing};
use tapedeck_store::rows::{LockedRun, LockedSession, QueueEntry, RunProgress};
use tapedeck_store::{Failure, StoreError, Target, Tx};

use crate::execute::Executor;
use crate::feed::{Effects, QueueKey, QueueLater};
use crate::ids::IdSource;
use crate::settling;

/// One command's view of its transaction.
pub(crate) struct Context<'a> {
    pub(crate) tx: &'a mut dyn Tx,
    /// Both clocks, read once.
    pub(crate) now: Now,
    pub(crate) authority: &'a Authority,
    pub(crate) timing: &'a Timing,
    pub(crate) ids: &'a dyn IdSource,
    effects: Effects,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// A run whose claim has been proved by the executor that writes.
#[derive(Debug)]
pub(crate) struct HeldRun {
    pub(crate) locked: LockedRun,
    pub(crate) proof: Proof,
}

impl HeldRun {
    /// The live run, or the rejection that says it is settled.
    pub(crate) fn live(self) -> Result<(SessionHead, LiveRun), Rejection> {
        match (self.proof, self.locked.live) {
            (Proof::Live, Some(live)) => Ok((self.locked.head, live)),
            (Proof::Live | Proof::Settled, _) => Err(Rejection::RunSettled {
                status: self.locked.status,
            }),
        }
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(tx: &'a mut dyn Tx, executor: &'a Executor) -> Self {
        let now = tx.now();
        Self {
            tx,
            now,
            authority: &executor.authority,
            timing: &executor.timing,
            ids: executor.ids.as_ref(),
            effects: Effects::default(),
        }
    }

    pub(crate) fn into_effects(self) -> Effects {
        self.effects
    }

    pub(crate) const fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Locks a session and proves the authority over it.
    pub(crate) async fn own_session(
        &mut self,
        namespace: &str,
        id: SessionId,
    ) -> Result<LockedSession, Failure> {
        let locked = self.tx.lock_session(namespace, id).await?;
        let mut locked = locked.ok_or(Failure::NotFound(Target::Session))?;
        if self.authorise(&mut locked.head)? == Grant::TakenOver {
            self.take_over(&mut locked).await?;
        }
        Ok(locked)
    }

    /// Locks a session for a repair, which needs that no live owner exists (design §4.8).
    pub(crate) async fn maintain_session(
        &mut self,
        namespace: &str,
        id: SessionId,
    ) -> Result<LockedSession, Failure> {
        let locked = self.tx.lock_session(namespace, id).await?;
        let locked = locked.ok_or(Failure::NotFound(Target::Session))?;
        let dead = self.is_dead(&locked.head);
        owner::maintain(locked.head.owner.as_ref(), dead, self.now)?;
        Ok(locked)
    }

    /// Locks a run's session and proves the authority over it.
    pub(crate) async fn own_run(&mut self, id: RunId) -> Result<LockedRun, Failure> {
        let locked = self.tx.lock_run(id).await?;
        let locked = locked.ok_or(Failure::NotFound(Target::Run))?;
        self.own_locked_run(locked).await
    }

    /// The same, where nobody else holds the session now; `None` where somebody does.
    pub(crate) async fn own_run_if_free(
        &mut self,
        id: RunId,
    ) -> Result<Option<LockedRun>, Failure> {
        match self.tx.lock_run_if_free(id).await? {
            Some(locked) => Ok(Some(self.own_locked_run(locked).await?)),
            None => Ok(None),
        }
    }

    /// The whole session of a locked head, which may hold what is not written yet.
    pub(crate) async fn lock_with(
        &mut self,
        head: SessionHead,
    ) -> Result<LockedSession, StoreError> {
        let locked = self.tx.lock_session_by_key(head.session_key).await?;
        Ok(LockedSession { head, ..locked })
    }

    async fn own_locked_run(&mut self, mut locked: LockedRun) -> Result<LockedRun, Failure> {
        let id = locked.run_id;
        if self.authorise(&mut locked.head)? == Grant::TakenOver {
            let mut session = self.lock_with(locked.head).await?;
            self.take_over(&mut session).await?;
            self.save(&session).await?;
            locked = self
                .tx
                .lock_run(id)
                .await?
                .ok_or(Failure::NotFound(Target::Run))?;
        }
        Ok(locked)
    }

    /// Locks a run's session for house-keeping, which can wait and takes nothing over: `None` where
    /// somebody else holds the session now or another live owner has it.
    pub(crate) async fn tend_run(&mut self, id: RunId) -> Result<Option<LockedRun>, Failure> {
        let locked = self.tx.lock_run_if_free(id).await?;
        Ok(locked.filter(|locked| self.tend(locked.head.clone()).is_ok()))
    }

    /// Locks a session for a write that is derived from its log and no decision of an owner's: nothing
    /// is taken over, and the refusal says which live owner has it.
    pub(crate) async fn tend_session(
        &mut self,
        namespace: &str,
        id: SessionId,
    ) -> Result<SessionHead, Failure> {
        let locked = self.tx.lock_session(namespace, id).await?;
        let head = locked.ok_or(Failure::NotFound(Target::Session))?.head;
        self.tend(head)
    }

    /// The same for a run's session, which it waits for.
    pub(crate) async fn tend_session_of(&mut self, id: RunId) -> Result<SessionHead, Failure> {
        let locked = self.tx.lock_run(id).await?;
        let head = locked.ok_or(Failure::NotFound(Target::Run))?.head;
        self.tend(head)
    }

    fn tend(&self, head: SessionHead) -> Result<SessionHead, Failure> {
        let dead = self.is_dead(&head);
        owner::tend(head.owner.as_ref(), self.authority, dead, self.now)?;
        Ok(head)
    }

    /// Locks a run's session, proves the authority over it, and checks the executor's claim in the
    /// same transaction as the write that follows.
    pub(crate) async fn hold_claim(
        &mut self,
        run: RunId,
        executor_id: &str,
        token: &ClaimToken,
    ) -> Result<HeldRun, Failure> {
        let mut locked = self.own_run(run).await?;
        let present = locked.live.as_ref().and_then(|live| live.state.claim());
        let earlier_hash = match token.attempt() {
            Some(attempt) if present.is_none_or(|claim| claim.attempt != attempt) => {
                self.tx.claim_token_hash(locked.key, attempt).await?
            }
            Some(_) | None => None,
        };
        let facts = ClaimFacts {
            live: locked.live.as_ref(),
            settled: locked.settled.as_ref(),
            earlier_hash,
        };
        let proof = claim::prove(&facts, token, executor_id, self.now)?;
        if let Some(claim) = locked.live.as_ref().and_then(|live| live.state.claim())
            && let Some(owner) = &mut locked.head.owner
        {
            owner::cover_claim(owner, claim.expires_at);
        }
        Ok(HeldRun { locked, proof })
    }

    fn authorise(&mut self, head: &mut SessionHead) -> Result<Grant, Rejection> {
        let dead = self.is_dead(head);
        let (owner, grant) = owner::authorise(head.owner.as_ref(), self.authority, dead, self.now)?;
        head.owner = Some(owner);
        Ok(grant)
    }

    fn is_dead(&self, head: &SessionHead) -> bool {
        head.owner.as_ref().is_some_and(|owner| {
            owner::gives_way(&owner.owner_id, head.active_run.is_some())
                && self.tx.owner_is_dead(&owner.owner_id)
        })
    }

    /// A takeover by a different owner settles the active run as interrupted and cancels the queued
    /// ones, so that an old claim dies with it (design §4.8, rules R16).
    async fn take_over(&mut self, locked: &mut LockedSession) -> Result<(), Failure> {
        let owner_id = &self.authority.owner_id;
        let epoch = locked.head.owner.as_ref().map(|owner| owner.epoch.0);
        let changed = Draft::server(
            EventKind::OwnerChanged,
            json!({"owner_id": owner_id, "epoch": epoch}),
        );
        self.append(&mut locked.head, vec![changed]).await?;
        settling::cancel_queued(self, locked).await?;
        if let Some(key) = locked.head.active_run
            && let Some(run) = self.tx.live_run(key).await?
        {
            let end = RunEnd::by_server(
                Ending::Interrupted,
                "owner_takeover",
                "another owner took the session over",
            );
            settling::settle(self, locked, run, end, None).await?;
        }
        self.save(locked).await?;
        Ok(())
    }

    /// Numbers drafts under the locked head and inserts them.
    pub(crate) async fn append(
        &mut self,
        head: &mut SessionHead,
        drafts: Vec<Draft>,
    ) -> Result<Vec<EventRecord>, StoreError> {
        if drafts.is_empty() {
            return Ok(Vec::new());
        }
        let events: Vec<_> = drafts
            .into_iter()
            .map(|draft| draft.record(head.session_id, head.next_seq(), self.now.wall))
            .collect();
        head.last_activity_at = self.now.wall;
        self.tx.insert_events(head.session_key, &events).await?;
        let records: Vec<_> = events.into_iter().map(|event| event.record).collect();
        self.effects.events.extend(records.iter().cloned());
        Ok(records)
    }

    /// Writes a locked session's summary and head back.
    pub(crate) async fn save(&mut self, locked: &LockedSession) -> Result<(), StoreError> {
        self.tx.save_summary(&locked.session).await?;
        self.tx.save_head(&locked.head).await
    }

    /// Makes a requested run claimable.
    pub(crate) async fn enqueue(
        &mut self,
        locked: &LockedSession,
        run: &LiveRun,
    ) -> Result<(), StoreError> {
        let RunState::Requested { ready_at } = run.state else {
            return Ok(());
        };
        let target = &locked.session.settings.run_target.executor;
        let flow = queue::flow(&locked.session.namespace, target);
        let turn = match run.turn {
            Some(turn) => turn,
            None => queue::turn(self.tx.turns(target, &flow).await?),
        };
        let preference = self.preference(locked, run, ready_at).await?;
        let opens_at = preference.as_ref().map(|wait| wait.opens_at);
        let entry = QueueEntry {
            run_key: run.key,
            session_key: run.session_key,
            target: target.clone(),
            preference,
            flow,
            turn,
            ready_at,
        };
        self.tx.enqueue(&entry).await?;
        let key = QueueKey {
            executor_kind: target.executor_kind.clone(),
            pool: target.pool.clone(),
        };
        for moment in [Some(ready_at), opens_at].into_iter().flatten() {
            match u64::try_from(moment.since(self.now.lease)) {
                Ok(wait) if wait > 0 => self.effects.queue_later.push(QueueLater {
                    key: key.clone(),
                    delay: std::time::Duration::from_millis(wait + 1),
                }),
                Ok(_) | Err(_) => self.effects.queues.push(key.clone()),
            }
        }
        Ok(())
    }

    /// Whom a run waits for at first. One that comes back from an executor waits for nobody.
    async fn preference(
        &mut self,
        locked: &LockedSession,
        run: &LiveRun,
        ready_at: LeaseInstant,
    ) -> Result<Option<Preference>, StoreError> {
        let target = &locked.session.settings.run_target;
        let is_new = run.attempts.attempt == 0;
        if !is_new || queue::affinity_ms(target, self.timing) == 0 {
            return Ok(None);
        }
        let last = self.tx.last_executor(run.session_key).await?;
        Ok(last.and_then(|last| queue::prefer(target, &last, ready_at, self.now, self.timing)))
    }

    /// Shows a live run's status in its record and in its session's summary.
    pub(crate) async fn show(
        &mut self,
        locked: &mut LockedSession,
        run: &LiveRun,
        started: bool,
    ) -> Result<(), StoreError> {
        let status = run.status();
        let claim = run.state.claim();
        let progress = RunProgress {
            status,
            attempt: run.attempts.attempt,
            executor_id: claim.map(|claim| claim.executor_id.clone()),
            claimed_at: (status == RunStatus::Claimed).then_some(self.now.wall),
            started_at: started.then_some(self.now.wall),
            unservable: None,
        };
        self.tx.save_progress(run.key, &progress).await?;
        let summary = &mut locked.session.summary;
        if summary.active_run_id == Some(run.run_id) {
            summary.last_run_status = Some(status);
            summary.pending_interactions = run.pending_interactions;
            summary.derive(Some(status), locked.session.closed_at.is_some());
        }
        locked.session.updated_at = self.now.wall;
        self.effects.runs.push(run.run_id);
        Ok(())
    }
}
