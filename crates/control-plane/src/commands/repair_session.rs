//! Brings what is derived of a session back in line with its rows, under the authority of
//! maintenance: only where no live owner exists, the same again changes nothing more, and every
//! repair leaves its event (design §4.8).

use async_trait::async_trait;
use serde_json::json;
use tapedeck_domain::SessionId;
use tapedeck_domain::event::{Draft, EventKind};
use tapedeck_domain::repair::{Derived, repair};
use tapedeck_domain::run::RunState;
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Repairs a session.
#[derive(Debug)]
pub struct RepairSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// Who asks for it.
    pub by: String,
}

#[async_trait]
impl Command for RepairSession {
    type Output = Vec<&'static str>;
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Vec<&'static str>, Failure> {
        let mut locked = context
            .maintain_session(&self.namespace, self.session_id)
            .await?;
        let key = locked.head.session_key;
        let live = context.tx.live_runs(key).await?;
        let mut pending = 0;
        for run in &live {
            let open = context.tx.pending_interactions(run.key).await?.len();
            let open = u32::try_from(open).unwrap_or(u32::MAX);
            if run.status().is_active() {
                pending = open;
            }
            if run.pending_interactions != open {
                let mut run = run.clone();
                run.pending_interactions = open;
                context.tx.save_live_run(&run).await?;
            }
        }
        let derived = Derived {
            latest: context.tx.latest_settled_run(key).await?,
            last_interrupted_run_id: context.tx.latest_interrupted_run(key).await?,
            latest_checkpoint: context.tx.latest_checkpoint(key).await?,
            checkpoint_count: context.tx.active_checkpoint_count(key).await?,
            pending_interactions: pending,
        };
        let changed = repair(&mut locked.session, &mut locked.head, &live, &derived);
        for mut run in live {
            let turn = context.tx.dequeue(run.key).await?;
            if let RunState::Requested { .. } = run.state {
                run.turn = turn.or(run.turn);
                context.enqueue(&locked, &run).await?;
            } else if turn.is_some() {
                tracing::warn!(run_id = %run.run_id, "repair.dequeued");
            }
        }
        locked.session.updated_at = context.now.wall;
        let payload = json!({"by": self.by, "changed": changed});
        let event = Draft::server(EventKind::SessionRepaired, payload);
        context.append(&mut locked.head, vec![event]).await?;
        context.save(&locked).await?;
        Ok(changed)
    }
}
