-- Conventions: surrogate keys are integers; ids are 16-byte blobs and digests 32-byte blobs; times
-- are integer milliseconds, wall time unless a comment puts them on the lease clock; JSON is text.
-- Every foreign key is the prefix of an index, so that deleting a session scans nothing.

-- One row: who this database is, and when an instance was last alive, on the lease clock of `boot_id`.
CREATE TABLE deployment (
    id INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    deployment_id BLOB NOT NULL CHECK (length(deployment_id) = 16),
    log_id BLOB NOT NULL CHECK (length(log_id) = 16),
    boot_id TEXT NOT NULL,
    alive_at INTEGER,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    session_key INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    session_id BLOB NOT NULL UNIQUE CHECK (length(session_id) = 16),
    namespace TEXT NOT NULL,
    title TEXT,
    approval_policy TEXT NOT NULL,
    agent TEXT NOT NULL,
    run_target TEXT NOT NULL,
    origin TEXT,
    metadata TEXT NOT NULL,
    tape_id BLOB NOT NULL,
    status TEXT NOT NULL,
    turn_status TEXT NOT NULL,
    active_run_id BLOB,
    last_run_id BLOB,
    last_run_status TEXT,
    last_interrupted_run_id BLOB,
    resume_from_event_id TEXT,
    queued_runs INTEGER NOT NULL,
    queue_held INTEGER NOT NULL,
    pending_interactions INTEGER NOT NULL,
    checkpoint_count INTEGER NOT NULL,
    latest_checkpoint_id BLOB,
    latest_checkpoint_label TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    closed_at INTEGER
) STRICT;
CREATE INDEX sessions_by_namespace ON sessions (namespace, session_id);

-- The hot row of a session. `owner_expires_at` is on the lease clock; null once released.
CREATE TABLE session_heads (
    session_key INTEGER PRIMARY KEY NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_id BLOB NOT NULL,
    head_seq INTEGER NOT NULL,
    projection_epoch INTEGER NOT NULL,
    owner_id TEXT,
    owner_epoch INTEGER,
    owner_expires_at INTEGER,
    active_run_key INTEGER,
    last_activity_at INTEGER NOT NULL
) STRICT;
CREATE INDEX session_heads_active ON session_heads (owner_id) WHERE active_run_key IS NOT NULL;
CREATE INDEX session_heads_idle ON session_heads (owner_id, last_activity_at)
    WHERE active_run_key IS NULL AND owner_expires_at IS NOT NULL;

CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    run_id BLOB NOT NULL UNIQUE CHECK (length(run_id) = 16),
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_id BLOB NOT NULL,
    namespace TEXT NOT NULL,
    parent_run_id BLOB,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    prompt TEXT NOT NULL,
    metadata TEXT NOT NULL,
    result TEXT,
    error TEXT,
    executor_id TEXT,
    requested_at INTEGER NOT NULL,
    claimed_at INTEGER,
    started_at INTEGER,
    settled_at INTEGER,
    recovery_reclaimable INTEGER,
    recovery_reason TEXT,
    recovered_at INTEGER,
    superseded_at INTEGER,
    superseded_by_checkpoint_id BLOB,
    admitted_seq INTEGER NOT NULL,
    settled_seq INTEGER,
    unservable TEXT,
    event_count INTEGER NOT NULL DEFAULT 0,
    settled_attempt INTEGER,
    settled_token_hash BLOB,
    settled_body_digest BLOB,
    -- Whether the run was cancelled before it ever became the active one.
    ended_queued INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_by_namespace ON runs (namespace, run_id);
CREATE INDEX runs_by_session ON runs (session_key, run_id);
CREATE INDEX runs_settled ON runs (session_key, settled_seq)
    WHERE settled_seq IS NOT NULL AND superseded_at IS NULL AND ended_queued = 0;

-- What a run carries for its executor or leaves for the next one: large, and read with one run only.
CREATE TABLE run_materials (
    run_key INTEGER PRIMARY KEY NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    resume_context TEXT,
    agent_state TEXT
) STRICT;

-- Live runs only. `ready_at`, `lease_expires_at` and `cancel_deadline` are on the lease clock.
CREATE TABLE run_heads (
    run_key INTEGER PRIMARY KEY NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    run_id BLOB NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_id BLOB NOT NULL,
    status TEXT NOT NULL,
    ready_at INTEGER,
    attempt INTEGER NOT NULL,
    attempts_used INTEGER NOT NULL,
    unacknowledged INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    place INTEGER NOT NULL,
    event_count INTEGER NOT NULL,
    has_output INTEGER NOT NULL,
    pending_interactions INTEGER NOT NULL,
    claim_attempt INTEGER,
    token_hash BLOB,
    executor_id TEXT,
    instance_id TEXT,
    request_hash BLOB,
    acknowledged INTEGER,
    replayed INTEGER,
    lease_expires_at INTEGER,
    lease_ms INTEGER,
    cancel_deadline INTEGER
) STRICT;
CREATE INDEX run_heads_by_session ON run_heads (session_key, status, place);
CREATE INDEX run_heads_by_lease ON run_heads (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX run_heads_by_executor ON run_heads (executor_id) WHERE executor_id IS NOT NULL;

-- Every claim a run has had, for proofs by earlier tokens and for replays. `claimed_at` is on the
-- lease clock.
CREATE TABLE claims (
    claim_key INTEGER PRIMARY KEY NOT NULL,
    run_key INTEGER NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    token_hash BLOB NOT NULL,
    request_hash BLOB NOT NULL UNIQUE,
    executor_id TEXT NOT NULL,
    instance_id TEXT,
    claimed_at INTEGER NOT NULL,
    UNIQUE (run_key, attempt)
) STRICT;
CREATE INDEX claims_by_executor ON claims (executor_id, claim_key);

-- Claimable runs: at most one of a session. `label_key` is the required labels as sorted JSON;
-- `ready_at` is on the lease clock.
CREATE TABLE run_queue (
    run_key INTEGER PRIMARY KEY NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    session_key INTEGER NOT NULL UNIQUE REFERENCES sessions (session_key) ON DELETE CASCADE,
    pool TEXT NOT NULL,
    executor_kind TEXT NOT NULL,
    label_key TEXT NOT NULL,
    pinned_executor TEXT,
    ready_at INTEGER NOT NULL
) STRICT;
CREATE INDEX run_queue_by_pool ON run_queue (pool, executor_kind, label_key, run_key);

-- Append-only. `event_key` orders the events of all sessions by commit, and is never used twice.
CREATE TABLE events (
    event_key INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_seq INTEGER NOT NULL,
    run_key INTEGER REFERENCES runs (run_key) ON DELETE CASCADE,
    event_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    digest BLOB,
    attempt INTEGER,
    executor_id TEXT,
    trace_id TEXT,
    created_at INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_session ON events (session_key, session_seq);
CREATE UNIQUE INDEX events_by_run ON events (run_key, event_id) WHERE run_key IS NOT NULL;

-- The projection's memory, as JSON.
CREATE TABLE tape_states (
    session_key INTEGER PRIMARY KEY NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    state TEXT NOT NULL
) STRICT;

-- An empty `run_id` stands for none, so that the unique key covers such entries too.
CREATE TABLE tape_entries (
    entry_key INTEGER PRIMARY KEY NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    entry_id BLOB NOT NULL UNIQUE CHECK (length(entry_id) = 16),
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    anchor_type TEXT,
    run_id BLOB NOT NULL,
    first_seq INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    superseded_by_checkpoint_id BLOB,
    UNIQUE (session_key, position),
    UNIQUE (session_key, run_id, first_seq, kind)
) STRICT;
CREATE INDEX tape_entries_active ON tape_entries (session_key, position)
    WHERE superseded_by_checkpoint_id IS NULL;

-- `deadline` is `expires_at` on the lease clock.
CREATE TABLE interactions (
    interaction_id BLOB PRIMARY KEY NOT NULL CHECK (length(interaction_id) = 16),
    namespace TEXT NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_id BLOB NOT NULL,
    run_key INTEGER NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    run_id BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    request_digest BLOB NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    request TEXT NOT NULL,
    response TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    resolved_at INTEGER,
    resolved_by TEXT,
    UNIQUE (run_key, attempt, request_id)
) STRICT;
CREATE INDEX interactions_by_namespace ON interactions (namespace, interaction_id);
CREATE INDEX interactions_by_status ON interactions (namespace, status, interaction_id);
CREATE INDEX interactions_by_session ON interactions (session_id, interaction_id);
CREATE INDEX interactions_by_run ON interactions (run_id, interaction_id);
CREATE INDEX interactions_by_request ON interactions (session_key, request_id, interaction_id);
CREATE INDEX interactions_pending ON interactions (run_key, interaction_id) WHERE status = 'pending';
CREATE INDEX interactions_due ON interactions (deadline) WHERE status = 'pending';

-- A rule without a session covers its whole namespace.
CREATE TABLE approval_rules (
    rule_key INTEGER PRIMARY KEY NOT NULL,
    namespace TEXT NOT NULL,
    session_key INTEGER REFERENCES sessions (session_key) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    created_by BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX approval_rules_of_session ON approval_rules (session_key, tool_name)
    WHERE session_key IS NOT NULL;
CREATE UNIQUE INDEX approval_rules_of_namespace ON approval_rules (namespace, tool_name)
    WHERE session_key IS NULL;

-- `last_seen` is `last_seen_at` on the lease clock.
CREATE TABLE executors (
    executor_id TEXT PRIMARY KEY NOT NULL,
    instance_id TEXT,
    executor_kind TEXT NOT NULL,
    pool TEXT NOT NULL,
    labels TEXT NOT NULL,
    process_id INTEGER,
    version TEXT,
    capabilities TEXT,
    workspace TEXT,
    max_runs INTEGER,
    draining INTEGER NOT NULL DEFAULT 0,
    last_seen_at INTEGER NOT NULL,
    last_seen INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    entry_key INTEGER PRIMARY KEY NOT NULL,
    namespace TEXT NOT NULL,
    principal TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    body_digest BLOB NOT NULL,
    result TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (namespace, principal, operation, key)
) STRICT;
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
