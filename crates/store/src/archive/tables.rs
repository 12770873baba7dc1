//! The tables of a copy, in an order in which every row comes after those that it refers to. The
//! deployment's own row is not among them: it names one database.

use super::Kind::{Digest, Flag, Id, IdOrNone, Integer, Json, Lease, Owner, Text, Wall};
use super::{Column, Kind, Table};

const fn must(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        optional: false,
    }
}

const fn may(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        optional: true,
    }
}

const fn table(name: &'static str, key: &'static str, columns: &'static [Column]) -> Table {
    Table { name, key, columns }
}

/// Every table.
pub const TABLES: &[Table] = &[
    table("sessions", "session_key", SESSIONS),
    table("session_heads", "session_key", SESSION_HEADS),
    table("runs", "run_key", RUNS),
    table("run_materials", "run_key", RUN_MATERIALS),
    table("run_heads", "run_key", RUN_HEADS),
    table("claims", "claim_key", CLAIMS),
    table("run_queue", "run_key", RUN_QUEUE),
    table("queue_turns", "queue_key", QUEUE_TURNS),
    table("events", "event_key", EVENTS),
    table("tape_states", "session_key", TAPE_STATES),
    table("tape_entries", "entry_key", TAPE_ENTRIES),
    table("interactions", "interaction_id", INTERACTIONS),
    table("approval_rules", "rule_key", APPROVAL_RULES),
    table("message_snapshots", "run_key", MESSAGE_SNAPSHOTS),
    table("artifacts", "artifact_key", ARTIFACTS),
    table("checkpoints", "checkpoint_key", CHECKPOINTS),
    table("executors", "executor_id", EXECUTORS),
    table("access_tokens", "token_key", ACCESS_TOKENS),
    table("idempotency_keys", "entry_key", IDEMPOTENCY_KEYS),
];

const SESSIONS: &[Column] = &[
    must("session_key", Integer),
    must("session_id", Id),
    must("namespace", Text),
    may("title", Text),
    must("approval_policy", Text),
    must("agent", Json),
    must("run_target", Json),
    may("origin", Text),
    must("metadata", Json),
    must("tape_id", Id),
    must("status", Text),
    must("turn_status", Text),
    may("active_run_id", Id),
    may("last_run_id", Id),
    may("last_run_status", Text),
    may("last_interrupted_run_id", Id),
    may("resume_from_event_id", Text),
    must("queued_runs", Integer),
    must("queue_held", Flag),
    must("pending_interactions", Integer),
    must("checkpoint_count", Integer),
    may("latest_checkpoint_id", Id),
    may("latest_checkpoint_label", Text),
    must("created_at", Wall),
    must("updated_at", Wall),
    may("closed_at", Wall),
    may("forked_from_session_id", Id),
    may("forked_from_checkpoint_id", Id),
    may("forked_from_seq", Integer),
    may("restored_seq", Integer),
    may("folded_seq", Integer),
];

const SESSION_HEADS: &[Column] = &[
    must("session_key", Integer),
    must("session_id", Id),
    must("head_seq", Integer),
    must("projection_epoch", Integer),
    may("owner_id", Owner),
    may("owner_epoch", Integer),
    may("owner_expires_at", Lease),
    may("active_run_key", Integer),
    must("last_activity_at", Wall),
];

const RUNS: &[Column] = &[
    must("run_key", Integer),
    must("run_id", Id),
    must("session_key", Integer),
    must("session_id", Id),
    must("namespace", Text),
    may("parent_run_id", Id),
    must("status", Text),
    must("attempt", Integer),
    must("prompt", Text),
    must("metadata", Json),
    may("result", Json),
    may("error", Text),
    may("executor_id", Text),
    must("requested_at", Wall),
    may("claimed_at", Wall),
    may("started_at", Wall),
    may("settled_at", Wall),
    may("recovery_reclaimable", Flag),
    may("recovery_reason", Text),
    may("recovered_at", Wall),
    may("superseded_at", Wall),
    may("superseded_by_checkpoint_id", Id),
    must("admitted_seq", Integer),
    may("settled_seq", Integer),
    may("unservable", Text),
    must("event_count", Integer),
    may("settled_attempt", Integer),
    may("settled_token_hash", Digest),
    may("settled_body_digest", Digest),
    must("ended_queued", Flag),
    may("folded_at", Wall),
];

const RUN_MATERIALS: &[Column] = &[
    must("run_key", Integer),
    may("resume_context", Json),
    may("agent_state", Json),
];

const RUN_HEADS: &[Column] = &[
    must("run_key", Integer),
    must("run_id", Id),
    must("session_key", Integer),
    must("session_id", Id),
    must("status", Text),
    may("ready_at", Lease),
    must("attempt", Integer),
    must("attempts_used", Integer),
    must("unacknowledged", Integer),
    must("max_attempts", Integer),
    must("place", Integer),
    must("event_count", Integer),
    must("has_output", Flag),
    must("pending_interactions", Integer),
    may("claim_attempt", Integer),
    may("token_hash", Digest),
    may("executor_id", Text),
    may("instance_id", Text),
    may("request_hash", Digest),
    may("acknowledged", Flag),
    may("replayed", Flag),
    may("lease_expires_at", Lease),
    may("lease_ms", Integer),
    may("cancel_deadline", Lease),
    may("turn", Integer),
    may("run_deadline", Lease),
];

const CLAIMS: &[Column] = &[
    must("claim_key", Integer),
    must("run_key", Integer),
    must("attempt", Integer),
    must("token_hash", Digest),
    must("request_hash", Digest),
    must("executor_id", Text),
    may("instance_id", Text),
    must("claimed_at", Lease),
];

const RUN_QUEUE: &[Column] = &[
    must("run_key", Integer),
    must("session_key", Integer),
    must("pool", Text),
    must("executor_kind", Text),
    must("labels", Json),
    may("pinned_executor", Text),
    must("audience", Text),
    may("opens_at", Lease),
    must("flow", Text),
    must("turn", Integer),
    must("ready_at", Lease),
];

const QUEUE_TURNS: &[Column] = &[
    must("queue_key", Integer),
    must("pool", Text),
    must("executor_kind", Text),
    must("turn", Integer),
];

const EVENTS: &[Column] = &[
    must("event_key", Integer),
    must("session_key", Integer),
    must("session_seq", Integer),
    may("run_key", Integer),
    must("event_id", Text),
    must("kind", Text),
    must("payload", Json),
    may("digest", Digest),
    may("attempt", Integer),
    may("executor_id", Text),
    may("trace_id", Text),
    must("created_at", Wall),
    must("recorded_at", Wall),
    may("folded_from", Integer),
];

const TAPE_STATES: &[Column] = &[must("session_key", Integer), must("state", Json)];

const TAPE_ENTRIES: &[Column] = &[
    must("entry_key", Integer),
    must("session_key", Integer),
    must("position", Integer),
    must("entry_id", Id),
    must("kind", Text),
    must("payload", Json),
    may("meta", Json),
    may("anchor_type", Text),
    must("run_id", IdOrNone),
    must("first_seq", Integer),
    must("source", Text),
    must("created_at", Wall),
    must("replaced", Flag),
    may("superseded_by_checkpoint_id", Id),
];

const INTERACTIONS: &[Column] = &[
    must("interaction_id", Id),
    must("namespace", Text),
    must("session_key", Integer),
    must("session_id", Id),
    must("run_key", Integer),
    must("run_id", Id),
    must("attempt", Integer),
    must("request_id", Text),
    must("request_digest", Digest),
    must("kind", Text),
    must("status", Text),
    must("request", Json),
    may("response", Json),
    must("created_at", Wall),
    must("expires_at", Wall),
    must("deadline", Lease),
    may("resolved_at", Wall),
    may("resolved_by", Text),
];

const APPROVAL_RULES: &[Column] = &[
    must("rule_key", Integer),
    must("rule_id", Id),
    must("namespace", Text),
    may("session_key", Integer),
    must("tool_name", Text),
    may("arguments", Json),
    must("decision", Text),
    may("created_by", Id),
    may("made_by", Text),
    must("created_at", Wall),
    may("revoked_at", Wall),
    may("revoked_by", Text),
];

const MESSAGE_SNAPSHOTS: &[Column] = &[
    must("run_key", Integer),
    must("session_key", Integer),
    must("run_id", Id),
    must("messages", Json),
    must("message_count", Integer),
    must("metadata", Json),
    must("attempt", Integer),
    must("created_at", Wall),
    must("updated_at", Wall),
];

const ARTIFACTS: &[Column] = &[
    must("artifact_key", Integer),
    must("run_key", Integer),
    must("session_key", Integer),
    must("run_id", Id),
    must("attempt", Integer),
    must("name", Text),
    must("media_type", Text),
    must("encoding", Text),
    must("content", Text),
    must("bytes", Integer),
    must("digest", Digest),
    must("created_at", Wall),
];

const CHECKPOINTS: &[Column] = &[
    must("checkpoint_key", Integer),
    must("checkpoint_id", Id),
    must("session_key", Integer),
    must("session_id", Id),
    may("label", Text),
    must("tape_position", Integer),
    must("session_seq", Integer),
    must("settings", Json),
    may("agent_state", Json),
    may("run_id", Id),
    may("snapshot_id", Text),
    must("projection_epoch", Integer),
    must("created_at", Wall),
    may("superseded_at", Wall),
    may("superseded_by_checkpoint_id", Id),
    may("deleted_at", Wall),
];

const EXECUTORS: &[Column] = &[
    must("executor_id", Text),
    may("instance_id", Text),
    must("executor_kind", Text),
    must("pool", Text),
    must("labels", Json),
    may("process_id", Integer),
    may("version", Text),
    may("capabilities", Json),
    may("workspace", Json),
    may("max_runs", Integer),
    must("draining", Flag),
    must("last_seen_at", Wall),
    must("last_seen", Lease),
];

const ACCESS_TOKENS: &[Column] = &[
    must("token_key", Integer),
    must("token_id", Id),
    must("name", Text),
    must("role", Text),
    must("namespace", Text),
    must("digest", Digest),
    must("created_at", Wall),
    must("created_by", Text),
    may("expires_at", Wall),
    may("revoked_at", Wall),
    may("revoked_by", Text),
];

const IDEMPOTENCY_KEYS: &[Column] = &[
    must("entry_key", Integer),
    must("namespace", Text),
    must("principal", Text),
    must("operation", Text),
    must("key", Text),
    must("body_digest", Digest),
    must("result", Json),
    must("created_at", Wall),
];
