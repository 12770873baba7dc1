//! Changes a session's settings. What only describes the session may change at any time; what a
//! run depends on may not change under it (design §6).

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tapedeck_domain::event::{Draft, EventKind};
use tapedeck_domain::session::{ApprovalPolicy, RunTarget};
use tapedeck_domain::{Rejection, SessionId};
use tapedeck_store::{Failure, Lane};

use crate::context::Context;
use crate::execute::Command;

/// Settings to change; `None` leaves them as they are.
#[derive(Debug, Clone, Default)]
pub struct SettingsPatch {
    /// The title; `Some(None)` clears it.
    pub title: Option<Option<String>>,
    /// The client's notes to set; a `null` removes one.
    pub metadata: Option<Map<String, Value>>,
    /// Who answers questions.
    pub approval_policy: Option<ApprovalPolicy>,
    /// Agent settings to set; a `null` removes one.
    pub agent: Option<Map<String, Value>>,
    /// Where runs may execute.
    pub run_target: Option<RunTarget>,
}

impl SettingsPatch {
    const fn touches_runs(&self) -> bool {
        self.approval_policy.is_some() || self.agent.is_some() || self.run_target.is_some()
    }
}

/// Changes a session's settings.
#[derive(Debug)]
pub struct ConfigureSession {
    /// The namespace.
    pub namespace: String,
    /// The session.
    pub session_id: SessionId,
    /// What to change.
    pub patch: SettingsPatch,
}

#[async_trait]
impl Command for ConfigureSession {
    type Output = ();
    const LANE: Lane = Lane::Admission;

    fn session(&self) -> Option<SessionId> {
        Some(self.session_id)
    }

    async fn apply(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut locked = context
            .own_session(&self.namespace, self.session_id)
            .await?;
        if self.patch.touches_runs()
            && let Some(active_run_id) = locked.session.summary.active_run_id
        {
            return Err(Rejection::SessionBusy { active_run_id }.into());
        }
        let changed = self.change(&mut locked.session.settings);
        if changed.is_empty() {
            return Ok(());
        }
        locked.session.updated_at = context.now.wall;
        let event = Draft::server(EventKind::SessionConfigChanged, json!({"changed": changed}));
        context.append(&mut locked.head, vec![event]).await?;
        context.tx.save_settings(&locked.session).await?;
        context.save(&locked).await?;
        Ok(())
    }
}

impl ConfigureSession {
    /// Applies the patch; gives the names of the settings that really changed, never their values.
    fn change(
        &self,
        settings: &mut tapedeck_domain::session::SessionSettings,
    ) -> Vec<&'static str> {
        let before = settings.clone();
        let patch = self.patch.clone();
        if let Some(title) = patch.title {
            settings.title = title;
        }
        if let Some(policy) = patch.approval_policy {
            settings.approval_policy = policy;
        }
        merge(&mut settings.metadata, patch.metadata);
        merge(&mut settings.agent, patch.agent);
        if let Some(target) = patch.run_target {
            settings.run_target = target;
        }
        let mut changed = Vec::new();
        if before.title != settings.title {
            changed.push("title");
        }
        if before.metadata != settings.metadata {
            changed.push("metadata");
        }
        if before.approval_policy != settings.approval_policy {
            changed.push("approval_policy");
        }
        if before.agent != settings.agent {
            changed.push("agent");
        }
        if before.run_target != settings.run_target {
            changed.push("run_target");
        }
        changed
    }
}

fn merge(target: &mut Map<String, Value>, change: Option<Map<String, Value>>) {
    for (name, value) in change.into_iter().flatten() {
        if value.is_null() {
            target.remove(&name);
        } else {
            target.insert(name, value);
        }
    }
}
