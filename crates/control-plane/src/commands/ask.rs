//! Asks a person, or finds the question that was asked before (design §4.7; rules R15).

use async_trait::async_trait;
use tapedeck_domain::interaction::{
    AskContext, Asked, Interaction, InteractionStatus, Question, immediate, request_event,
    response_event, same_question,
};
use tapedeck_domain::rule::deciding;
use tapedeck_domain::{InteractionId, Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::commands::heartbeat::{ClaimProof, renew_held};
use crate::context::Context;
use crate::execute::Command;

/// Asks.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Who.
    pub proof: ClaimProof,
    /// The id, should the question be new.
    pub interaction_id: InteractionId,
    /// The question.
    pub question: Question,
}

#[async_trait]
impl Command for Ask {
    type Output = Interaction;
    const LANE: Lane = Lane::Urgent;

    fn session(&self) -> Option<SessionId> {
        self.proof.session_id
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<Interaction, Failure> {
        let proof = &self.proof;
        let claimed = context
            .hold_claim(proof.run_id, &proof.executor_id, &proof.token)
            .await?;
        let (head, live) = claimed.live()?;
        let attempt = live.attempts.attempt;
        let request_id = &self.question.request_id;
        let known = context
            .tx
            .interaction_of_request(live.key, attempt, request_id)
            .await?;
        let (mut live, head) = renew_held(context, head, live, None).await?;
        if let Some(known) = known {
            same_question(&known, &self.question)?;
            return Ok(known);
        }
        if live.state.claim().is_none() {
            return Err(Rejection::ClaimLost.into());
        }
        let mut locked = context.lock_with(head).await?;
        let rule = match &self.question.asked {
            Asked::Approval(tool) => {
                let namespace = &locked.session.namespace;
                let mut rules = context.tx.session_rules(locked.head.session_key).await?;
                rules.extend(context.tx.namespace_rules(namespace).await?);
                deciding(&rules, tool).cloned()
            }
            Asked::Form(_) => None,
        };
        let ask = AskContext {
            policy: locked.session.settings.approval_policy,
            cancelling: live.state.is_cancelling(),
            rule: rule.as_ref(),
        };
        let mut interaction = self.interaction(&live, context);
        if let Some((status, response, by)) = immediate(&self.question, &ask) {
            interaction.status = status;
            interaction.response = Some(response);
            interaction.resolved_at = Some(context.now.wall);
            interaction.resolved_by = Some(by);
        } else {
            live.pending_interactions += 1;
        }
        let mut drafts = vec![request_event(&interaction)];
        if interaction.status != InteractionStatus::Pending {
            drafts.push(response_event(&interaction));
        }
        context
            .tx
            .insert_interaction(locked.head.session_key, &interaction)
            .await?;
        context.append(&mut locked.head, drafts).await?;
        live.has_output = true;
        context.tx.save_live_run(&live).await?;
        context.show(&mut locked, &live, false).await?;
        context.save(&locked).await?;
        Ok(interaction)
    }
}

impl Ask {
    fn interaction(
        &self,
        live: &tapedeck_domain::run::LiveRun,
        context: &Context<'_>,
    ) -> Interaction {
        let timeout_ms = context.timing.seconds(self.question.timeout_seconds);
        let deadline = context.now.lease.plus_ms(timeout_ms);
        Interaction {
            interaction_id: self.interaction_id,
            run_key: live.key,
            run_id: live.run_id,
            session_id: live.session_id,
            attempt: live.attempts.attempt,
            request_id: self.question.request_id.clone(),
            request_digest: self.question.digest(),
            kind: self.question.kind(),
            status: InteractionStatus::Pending,
            request: self.question.request(),
            response: None,
            created_at: context.now.wall,
            expires_at: context.now.wall_of(deadline),
            deadline,
            resolved_at: None,
            resolved_by: None,
        }
    }
}
