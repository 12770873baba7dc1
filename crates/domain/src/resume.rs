//! A resume: a new run linked to a settled one, with the context needed to continue (design §4.4).
//! It never revives a process and never rewrites history.

use serde_json::{Map, Value, json};

use crate::admit::new_live_run;
use crate::event::{Draft, EventKind, requested_payload};
use crate::id::{RunId, TapeEntryId};
use crate::limits;
use crate::rejection::Rejection;
use crate::run::{LiveRun, NewRun, Run, RunStatus};
use crate::session::Session;
use crate::settle::activate;
use crate::snapshot::SnapshotFacts;
use crate::tape::{self, TapeEntry};
use crate::time::Now;

/// What the new run is asked where the person says nothing.
pub const CONTINUE_PROMPT: &str = "Continue from the last known state.";

/// A resume, checked at the edge.
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// The new run's id.
    pub run_id: RunId,
    /// What the person asks; `None` is [`CONTINUE_PROMPT`].
    pub text: Option<String>,
    /// One word, e.g. `user_resume`.
    pub reason: String,
    /// The client's notes.
    pub metadata: Map<String, Value>,
    /// The id of the boundary anchor.
    pub anchor_id: TapeEntryId,
}

/// What the session's past offers, loaded under the head's lock.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResumeMaterial {
    /// The newest settled run.
    pub previous: Option<Run>,
    /// The newest tape entries, oldest first.
    pub tail: Vec<TapeEntry>,
    /// Entries on the active tape.
    pub tape_entry_count: u64,
    /// The agent's own state as the previous run reported it.
    pub agent_state: Option<Value>,
    /// The previous run's message snapshot.
    pub snapshot: Option<SnapshotFacts>,
}

/// How a resumed run gets its context (design §4.4).
pub const CONTEXT_STRATEGY: &str = "checkpoint+tape_tail+message_snapshot";

/// What a resume writes.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// The run's record.
    pub run: NewRun,
    /// Its live part, before the store has given it a key.
    pub live: LiveRun,
    /// `RunRequested`, to be linked to the run's key.
    pub event: Draft,
    /// The payload of the boundary anchor.
    pub anchor: Value,
}

/// Decides a resume. Updates the session's summary.
pub fn resume(
    session: &mut Session,
    material: &ResumeMaterial,
    request: Resume,
    admitted_seq: u64,
    now: Now,
) -> Result<Resumed, Rejection> {
    if session.closed_at.is_some() {
        return Err(Rejection::SessionClosed);
    }
    if let Some(active_run_id) = session.summary.active_run_id {
        return Err(Rejection::SessionBusy { active_run_id });
    }
    let Some(previous) = material.previous.clone() else {
        return Err(Rejection::NothingToResume);
    };
    let from_event = session.summary.resume_from_event_id.clone();
    let raw_prompt = request.text.unwrap_or_else(|| CONTINUE_PROMPT.to_owned());
    let past = Past::of(&material.tail);

    let mut metadata = request.metadata;
    let facts = json!({
        "previous_run_id": previous.run_id,
        "resume_from_run_id": previous.run_id,
        "resume_from_event_id": from_event,
        "resume_reason": request.reason,
        "resume_context_injected": true,
        "resume_context_strategy": CONTEXT_STRATEGY,
        "checkpoint_count": session.summary.checkpoint_count,
        "latest_checkpoint_id": session.summary.latest_checkpoint_id,
        "latest_checkpoint_label": session.summary.latest_checkpoint_label,
        "tape_entry_count": material.tape_entry_count,
        "resume_tape_tail_entry_count": past.tail().len(),
        "resume_plan_note_included": past.plan().is_some(),
        "latest_message_snapshot_id": material.snapshot.as_ref().map(SnapshotFacts::snapshot_id),
        "latest_message_snapshot_message_count":
            material.snapshot.as_ref().map(|snapshot| snapshot.message_count),
        "resume_boundary_anchor_id": request.anchor_id,
        "resume_boundary_anchor_type": tape::RESUME_BOUNDARY,
    });
    if let Value::Object(facts) = facts {
        metadata.extend(facts.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let mut context = past.context(session, Some(&previous), &raw_prompt, material);
    context["resume_from_event_id"] = json!(from_event);
    context["resume_reason"] = json!(request.reason);
    context["boundary_anchor_id"] = json!(request.anchor_id);
    let live = new_live_run(session, request.run_id, 0, false, now);
    activate(&mut session.summary, &live);
    session.summary.queue_held = false;
    let payload = requested_payload(
        "requested",
        &raw_prompt,
        Some(previous.run_id),
        from_event.as_deref(),
    );
    Ok(Resumed {
        run: NewRun {
            run_id: request.run_id,
            parent_run_id: Some(previous.run_id),
            prompt: raw_prompt,
            metadata,
            resume_context: Some(context),
            status: RunStatus::Requested,
            admitted_seq,
            requested_at: now.wall,
        },
        live,
        event: Draft::server(EventKind::RunRequested, payload),
        anchor: json!({"run_id": request.run_id, "previous_run_id": previous.run_id, "reason": request.reason}),
    })
}

/// The context of a prompt in a session that has a past, its own or as a fork another's: the
/// conversation goes on, so the agent gets its own state back or, where it can't restore it, the
/// note (ADR 12).
pub fn follow_up(session: &Session, material: &ResumeMaterial, run: &Run) -> Option<Value> {
    if material.previous.is_none() && session.forked_from.is_none() {
        return None;
    }
    let earlier = material
        .tail
        .iter()
        .filter(|entry| entry.run_id != Some(run.run_id));
    let past = Past::of(earlier);
    Some(past.context(session, material.previous.as_ref(), &run.prompt, material))
}

/// Whether the agent may remember more than the session does: a restore has put aside runs that
/// came after the one that left this state. Such a state is handed out, and said to have diverged,
/// since a backend that only names a conversation of its agent's would bring those runs back.
fn has_diverged(session: &Session, previous: &Run) -> bool {
    session.restored_seq > previous.settled_seq
}

/// What of the tape goes into a context.
struct Past {
    entries: Vec<TapeEntry>,
}

impl Past {
    fn of<'a>(entries: impl IntoIterator<Item = &'a TapeEntry>) -> Self {
        let entries = entries.into_iter().map(TapeEntry::clipped).collect();
        Self { entries }
    }

    fn tail(&self) -> &[TapeEntry] {
        bounded_tail(&self.entries)
    }

    fn plan(&self) -> Option<&Value> {
        last_plan(&self.entries)
    }

    fn context(
        &self,
        session: &Session,
        previous: Option<&Run>,
        prompt: &str,
        material: &ResumeMaterial,
    ) -> Value {
        let (tail, plan) = (self.tail(), self.plan());
        let summary = &session.summary;
        json!({
            "strategy": CONTEXT_STRATEGY,
            "previous_run_id": previous.map(|run| run.run_id),
            "previous_status": previous.map(|run| run.status),
            "previous_error": previous.and_then(|run| run.error.as_deref()).map(tape::clip),
            "forked_from_session_id": session.forked_from.map(|origin| origin.session_id),
            "raw_prompt": prompt,
            "composed_prompt": compose(previous, tail, plan, prompt),
            "tape_tail": tail.iter().map(TapeEntry::shown).collect::<Vec<_>>(),
            "tape_entry_count": material.tape_entry_count,
            "plan": plan,
            "checkpoint": summary.latest_checkpoint_id.map(|id| json!({
                "checkpoint_id": id,
                "label": summary.latest_checkpoint_label,
                "checkpoint_count": summary.checkpoint_count,
            })),
            "message_snapshot": material.snapshot.as_ref().map(|snapshot| json!({
                "snapshot_id": snapshot.snapshot_id(),
                "run_id": snapshot.run_id,
                "message_count": snapshot.message_count,
            })),
            "agent_state": material.agent_state,
            "agent_state_diverged": previous.is_some_and(|run| has_diverged(session, run)),
        })
    }
}

/// The newest entries that fit [`limits::RESUME_TAIL_ENTRIES`] and [`limits::RESUME_TAIL_BYTES`].
fn bounded_tail(entries: &[TapeEntry]) -> &[TapeEntry] {
    let mut bytes = 0;
    let fitting = entries
        .iter()
        .rev()
        .take(limits::RESUME_TAIL_ENTRIES)
        .take_while(|entry| {
            bytes += entry.text().len();
            bytes <= limits::RESUME_TAIL_BYTES
        })
        .count();
    &entries[entries.len() - fitting..]
}

fn last_plan(entries: &[TapeEntry]) -> Option<&Value> {
    entries
        .iter()
        .rev()
        .find(|entry| entry.kind == tape::EntryKind::Plan)
        .map(|entry| &entry.payload)
}

/// The prompt for an agent that can't restore its own session: a short note, the tail, the plan,
/// then what the person asks.
fn compose(
    previous: Option<&Run>,
    tail: &[TapeEntry],
    plan: Option<&Value>,
    prompt: &str,
) -> String {
    let mut text = match previous {
        Some(previous) => format!(
            "[Context: this continues an earlier run of the same session that ended as `{}`{}. \
             What is below is a record of it; do not repeat finished steps.]\n",
            previous.status,
            previous
                .error
                .as_ref()
                .map_or_else(String::new, |error| format!(" ({})", tape::clip(error))),
        ),
        None => "[Context: this session began as a copy of another one. What is below is a record \
                 of that one; do not repeat finished steps.]\n"
            .to_owned(),
    };
    if !tail.is_empty() {
        text.push_str("\n[Record, oldest first]\n");
        for entry in tail {
            text.push_str(&entry.text());
            text.push('\n');
        }
    }
    if let Some(plan) = plan {
        text.push_str("\n[Last plan]\n");
        text.push_str(&plan.to_string());
        text.push('\n');
    }
    text.push_str("\n[Request]\n");
    text.push_str(prompt);
    text
}

#[cfg(test)]
mod tests;
