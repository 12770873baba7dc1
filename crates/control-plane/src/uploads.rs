//! What executors write: events, completions, releases, and signs of life.

use tapedeck_domain::executor::Contact;
use tapedeck_domain::run::Run;
use tapedeck_domain::snapshot::SnapshotFacts;
use tapedeck_domain::tape::TapeEntry;
use tapedeck_domain::{LeaseInstant, Rejection, RunId, SessionId};

use crate::ControlPlane;
use crate::commands::append_events::{AppendEvents, Recorded};
use crate::commands::append_tape::AppendTape;
use crate::commands::check_claim::CheckClaim;
use crate::commands::heartbeat::ClaimProof;
use crate::commands::leave_executor::LeaveExecutor;
use crate::commands::project_tape::TapeOf;
use crate::commands::record_contact::RecordContact;
use crate::commands::release_run::ReleaseRun;
use crate::commands::save_artifacts::SaveArtifacts;
use crate::commands::save_snapshot::SaveSnapshot;
use crate::commands::settle_run::SettleRun;
use crate::error::{Error, Outcome};

/// Runs whose session this process remembers.
const KNOWN_RUNS: usize = 10_000;

impl ControlPlane {
    /// Appends an uploaded batch.
    pub async fn append_events(&self, mut command: AppendEvents) -> Outcome<Recorded> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        self.inner.execute(command).await
    }

    /// Checks a claim and changes nothing, for requests whose rest is broken (api.md, Errors).
    pub async fn check_claim(&self, mut proof: ClaimProof) -> Outcome<()> {
        proof.session_id = self.session_of(proof.run_id);
        self.inner.execute(CheckClaim { proof }).await
    }

    /// Records a run's provider messages.
    pub async fn save_snapshot(&self, mut command: SaveSnapshot) -> Outcome<SnapshotFacts> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        self.inner.execute(command).await
    }

    /// Keeps artifacts of a run.
    pub async fn save_artifacts(&self, mut command: SaveArtifacts) -> Outcome<()> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        self.inner.execute(command).await
    }

    /// Appends an executor's own tape entries. The claim is checked first, then the tape catches up
    /// outside the write's transaction (rules R19).
    pub async fn append_tape(&self, mut command: AppendTape) -> Outcome<Vec<TapeEntry>> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        self.ready_tape(&command.proof).await?;
        self.inner.execute(command).await
    }

    async fn ready_tape(&self, proof: &ClaimProof) -> Outcome<()> {
        let proof = proof.clone();
        let run_id = proof.run_id;
        match self.inner.execute(CheckClaim { proof }).await {
            Ok(()) => self.catch_up(TapeOf::Run(run_id)).await,
            // What was written before the settle may be sent again; the write itself judges that
            // (rules R11).
            Err(Error::Rejected(Rejection::RunSettled { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Completes a run.
    pub async fn settle_run(&self, mut command: SettleRun) -> Outcome<Run> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        if command.tape.is_some() {
            self.ready_tape(&command.proof).await?;
        }
        self.inner.execute(command).await
    }

    /// Takes a run back from its executor.
    pub async fn release_run(&self, mut command: ReleaseRun) -> Outcome<Run> {
        command.proof.session_id = self.session_of(command.proof.run_id);
        self.inner.execute(command).await
    }

    /// Records a contact, at most once in a while for each executor: a poll must not cost a write.
    pub(crate) async fn note_contact(&self, contact: &Contact) {
        let id = process(&contact.executor_id, contact.instance_id.as_deref());
        let period = self.timing().executor_stale_ms / 3;
        let Ok(now) = self.now().await else { return };
        {
            let mut contacts = self.contacts.lock();
            let recent = |last: &LeaseInstant| now.lease.since(*last) < period;
            if contacts.get(&id).is_some_and(recent) {
                return;
            }
            contacts.retain(|_, last| recent(last));
            contacts.insert(id, now.lease);
        }
        if let Err(error) = self
            .inner
            .execute(RecordContact {
                contact: contact.clone(),
            })
            .await
        {
            tracing::warn!(%error, executor_id = contact.executor_id, "executor.contact_failed");
        }
    }

    /// Takes the leave of an executor's process. Should it be heard of again, that is news.
    pub async fn leave_executor(&self, leave: LeaveExecutor) -> Outcome<()> {
        let id = process(&leave.executor_id, leave.instance_id.as_deref());
        self.inner.execute(leave).await?;
        self.contacts.lock().remove(&id);
        Ok(())
    }

    /// The session of a run, if this process has seen it.
    pub(crate) fn session_of(&self, run: RunId) -> Option<SessionId> {
        self.known_runs.lock().get(&run).copied()
    }

    /// Remembers the session of a run, so that its commands keep their order.
    pub(crate) fn remember(&self, run: RunId, session: SessionId) {
        let mut known = self.known_runs.lock();
        if known.len() >= KNOWN_RUNS {
            known.clear();
        }
        known.insert(run, session);
    }
}

/// What contacts of one process are remembered under.
fn process(executor_id: &str, instance_id: Option<&str>) -> String {
    format!("{executor_id}\0{}", instance_id.unwrap_or_default())
}
