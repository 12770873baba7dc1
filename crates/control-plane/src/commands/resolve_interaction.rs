//! Answers a question: the first answer wins (design §4.7).

use async_trait::async_trait;
use tapedeck_domain::interaction::{Answer, Interaction, Reply, Resolution, resolve};
use tapedeck_domain::rule::{Maker, of_answer};
use tapedeck_domain::{InteractionId, RuleId, SessionId};
use tapedeck_store::rows::LockedSession;
use tapedeck_store::{Failure, Lane, Target};

use crate::commands::create_rule::stand;
use crate::context::Context;
use crate::execute::Command;

/// Which question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionTarget {
    /// By its own id.
    Interaction {
        /// Its session, as a read found it.
        session_id: SessionId,
        /// The interaction.
        interaction_id: InteractionId,
    },
    /// By the executor's id of it (older clients).
    Request {
        /// The session.
        session_id: SessionId,
        /// The id.
        request_id: String,
    },
}

/// Answers a question.
#[derive(Debug)]
pub struct ResolveInteraction {
    /// The namespace.
    pub namespace: String,
    /// Which.
    pub target: QuestionTarget,
    /// The answer.
    pub answer: Answer,
    /// Who answers.
    pub by: String,
}

#[async_trait]
impl Command for ResolveInteraction {
    type Output = Interaction;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id())
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Interaction, Failure> {
        let session_id = self.session_id();
        let mut locked = context.own_session(&self.namespace, session_id).await?;
        let stored = match &self.target {
            QuestionTarget::Interaction { interaction_id, .. } => {
                context.tx.interaction(*interaction_id).await?
            }
            QuestionTarget::Request { request_id, .. } => {
                context
                    .tx
                    .interaction_in_session(locked.head.session_key, request_id)
                    .await?
            }
        };
        let stored = stored
            .filter(|interaction| interaction.session_id == session_id)
            .ok_or(Failure::NotFound(Target::Interaction))?;
        let run_key = stored.run_key;
        let (answered, event) = match resolve(stored, &self.answer, &self.by, context.now)? {
            Resolution::Repeated(stored) => return Ok(stored),
            Resolution::First(answered, event) => (answered, event),
        };
        context.tx.save_interaction(&answered).await?;
        self.make_rule(context, &locked, &answered).await?;
        context.append(&mut locked.head, vec![event]).await?;
        if let Some(mut run) = context.tx.live_run(run_key).await? {
            run.pending_interactions = run.pending_interactions.saturating_sub(1);
            context.tx.save_live_run(&run).await?;
            context.show(&mut locked, &run, false).await?;
        }
        context.save(&locked).await?;
        Ok(answered)
    }
}

impl ResolveInteraction {
    /// An answer that reaches beyond its question stands as a rule from now on.
    async fn make_rule(
        &self,
        context: &mut Context<'_>,
        locked: &LockedSession,
        answered: &Interaction,
    ) -> Result<(), Failure> {
        let Reply::Approval { approved, scope } = self.answer.reply else {
            return Ok(());
        };
        let maker = Maker {
            rule_id: RuleId::new(context.ids.next()),
            namespace: self.namespace.clone(),
            by: self.by.clone(),
            at: context.now.wall,
        };
        let Some(rule) = of_answer(answered, approved, scope, maker)? else {
            return Ok(());
        };
        let session = rule.session_id.map(|_| locked.head.session_key);
        stand(context, rule, session).await?;
        Ok(())
    }

    const fn session_id(&self) -> SessionId {
        match &self.target {
            QuestionTarget::Interaction { session_id, .. }
            | QuestionTarget::Request { session_id, .. } => *session_id,
        }
    }
}
