//! Held requests: claims, heartbeats and approvals that wait. All do the same: subscribe, read the
//! state, wait for a hint, read again (rules R18).

use std::time::Duration;

use tapedeck_domain::Rejection;
use tapedeck_domain::interaction::{Interaction, InteractionStatus};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::ControlPlane;
use crate::commands::ask::Ask;
use crate::commands::claim_run::{ClaimRun, ClaimedRun};
use crate::commands::heartbeat::{Beat, ClaimProof, Heartbeat};
use crate::commands::load_context::LoadContext;
use crate::commands::project_tape::TapeOf;
use crate::commands::release_run::ReleaseRun;
use crate::error::{Error, Outcome};
use crate::feed::QueueKey;

impl ControlPlane {
    /// Claims a run, waiting up to `wait` for one. The claim itself runs in a task that a vanishing
    /// client can't cancel; if nobody is left to take the answer, the claim is released at once.
    pub async fn claim(&self, claim: ClaimRun, wait: Duration) -> Outcome<ClaimedRun> {
        let deadline = Instant::now() + wait;
        let key = QueueKey {
            executor_kind: claim.contact.executor_kind.clone(),
            pool: claim.contact.pool.clone(),
        };
        self.note_contact(&claim.contact).await;
        let mut hint = self.inner.feed.queue(&key);
        let mut told = self.inner.feed.executor(&claim.contact.executor_id);
        // A poll that a drain finds waiting is answered at once. One that comes later is held like any
        // other: it takes the first run after the drain, and until then it doesn't come in a rush.
        let mut is_open = false;
        loop {
            hint.borrow_and_update();
            told.borrow_and_update();
            let refusal = match self.claim_now(claim.clone()).await {
                Err(Error::Rejected(
                    refusal @ (Rejection::NoRunAvailable
                    | Rejection::ExecutorDraining { .. }
                    | Rejection::ExecutorFull { .. }),
                )) => refusal,
                answer => return answer,
            };
            let is_draining = matches!(refusal, Rejection::ExecutorDraining { .. });
            if is_draining && is_open {
                return Err(refusal.into());
            }
            is_open |= !is_draining;
            // While it is held it is in touch.
            let period = u64::try_from(self.timing().executor_stale_ms / 3).unwrap_or(1);
            loop {
                let until = deadline.min(Instant::now() + Duration::from_millis(period.max(1)));
                if self.hold_either(&mut hint, &mut told, until).await {
                    break;
                }
                if Instant::now() >= deadline || self.inner.lifecycle.is_draining() {
                    return Err(refusal.into());
                }
                self.note_contact(&claim.contact).await;
            }
        }
    }

    async fn claim_now(&self, claim: ClaimRun) -> Outcome<ClaimedRun> {
        let (answer, taken) = tokio::sync::oneshot::channel();
        let this = self.clone();
        self.inner.lifecycle.spawn(async move {
            let executor_id = claim.contact.executor_id.clone();
            let outcome = match this.inner.execute(claim).await {
                Ok(claimed) => {
                    this.remember(claimed.run.run_id, claimed.session.session_id);
                    let mut handover = Handover {
                        control: this.clone(),
                        executor_id,
                        claimed: Some(claimed),
                    };
                    handover.compose().await.map(|()| handover)
                }
                Err(error) => Err(error),
            };
            // Whoever drops it, sent or not, gives the claim back.
            drop(answer.send(outcome));
        });
        let mut handover = taken.await.unwrap_or(Err(Error::Draining))?;
        handover.claimed.take().ok_or(Error::Draining)
    }

    /// Extends a claim's lease; with `wait`, answers early when a cancel or an answer arrives.
    pub async fn heartbeat(&self, mut beat: Heartbeat, wait: Duration) -> Outcome<Beat> {
        beat.proof.session_id = self.session_of(beat.proof.run_id);
        let deadline = Instant::now() + wait;
        let mut hint = self.inner.feed.run(beat.proof.run_id);
        hint.borrow_and_update();
        let first = self.inner.execute(beat.clone()).await?;
        // A held heartbeat must be over well before the lease it has just renewed (rules R13).
        let third = u64::try_from(first.lease_ttl_ms / 3).unwrap_or(0);
        let deadline = deadline.min(Instant::now() + Duration::from_millis(third));
        if wait.is_zero() || first.cancel_requested || !self.hold(&mut hint, deadline).await {
            return Ok(first);
        }
        // It is written, and another heartbeat may have written a newer one meanwhile.
        beat.agent_state = None;
        self.inner.execute(beat).await
    }

    /// Asks, and waits up to `wait` for the answer. Asking again goes on waiting.
    pub async fn ask(&self, mut ask: Ask, wait: Duration) -> Outcome<Interaction> {
        ask.proof.session_id = self.session_of(ask.proof.run_id);
        let deadline = Instant::now() + wait;
        let mut hint = self.inner.feed.run(ask.proof.run_id);
        hint.borrow_and_update();
        let mut interaction = self.inner.execute(ask.clone()).await?;
        while interaction.status == InteractionStatus::Pending {
            if !self.hold(&mut hint, deadline).await {
                return Ok(interaction);
            }
            hint.borrow_and_update();
            interaction = self.inner.execute(ask.clone()).await?;
        }
        Ok(interaction)
    }

    /// Waits for one of two hints; `false` when the time is over or the process drains.
    async fn hold_either(
        &self,
        hint: &mut watch::Receiver<u64>,
        other: &mut watch::Receiver<u64>,
        deadline: Instant,
    ) -> bool {
        tokio::select! {
            moved = self.hold(hint, deadline) => moved,
            changed = other.changed() => changed.is_ok(),
        }
    }

    /// Waits for a hint; `false` when the time is over or the process drains.
    async fn hold(&self, hint: &mut watch::Receiver<u64>, deadline: Instant) -> bool {
        tokio::select! {
            changed = timeout_at(deadline, hint.changed()) => matches!(changed, Ok(Ok(()))),
            () = self.inner.lifecycle.soft().cancelled() => false,
        }
    }
}

/// A claim on its way to the request that asked for it. If nobody takes it, it is released at once
/// (rules R18).
struct Handover {
    control: ControlPlane,
    executor_id: String,
    claimed: Option<ClaimedRun>,
}

impl Handover {
    /// Composes the context of a session whose tape had to catch up first. If that fails, the claim
    /// is given back.
    async fn compose(&mut self) -> Outcome<()> {
        let Some(claimed) = self
            .claimed
            .as_mut()
            .filter(|claimed| claimed.context_is_behind)
        else {
            return Ok(());
        };
        let run_id = claimed.run.run_id;
        self.control.catch_up(TapeOf::Run(run_id)).await?;
        claimed.resume_context = self.control.inner.execute(LoadContext { run_id }).await?;
        claimed.context_is_behind = false;
        Ok(())
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let Some(claimed) = self.claimed.take() else {
            return;
        };
        if tokio::runtime::Handle::try_current().is_err() {
            // The process is ending; the short lease brings the run back.
            return;
        }
        let proof = ClaimProof {
            run_id: claimed.run.run_id,
            session_id: Some(claimed.session.session_id),
            executor_id: std::mem::take(&mut self.executor_id),
            token: claimed.token,
        };
        let control = self.control.clone();
        self.control.lifecycle().spawn(async move {
            if let Err(error) = control.inner.execute(ReleaseRun { proof }).await {
                tracing::warn!(%error, "claim.release_failed");
            }
        });
    }
}
