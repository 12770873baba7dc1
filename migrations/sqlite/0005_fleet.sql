-- A fleet of executors: whose turn it is, who is waited for, what nobody can serve, what runs too long.

-- The queue in the order of turns. Only `audience` may claim a run; empty is everybody who qualifies.
-- It is the pinned executor, or the one that a session prefers until `opens_at`, on the lease clock.
-- `flow` is whose turns are counted together. `labels` is still sorted JSON under the older name.
CREATE TABLE new_run_queue (
    run_key INTEGER PRIMARY KEY NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    session_key INTEGER NOT NULL UNIQUE REFERENCES sessions (session_key) ON DELETE CASCADE,
    pool TEXT NOT NULL,
    executor_kind TEXT NOT NULL,
    label_key TEXT NOT NULL,
    pinned_executor TEXT,
    audience TEXT NOT NULL,
    opens_at INTEGER,
    flow TEXT NOT NULL,
    turn INTEGER NOT NULL,
    ready_at INTEGER NOT NULL
) STRICT;
INSERT INTO new_run_queue (
    run_key, session_key, pool, executor_kind, label_key, pinned_executor, audience, flow, turn,
    ready_at
)
SELECT
    q.run_key, q.session_key, q.pool, q.executor_kind, q.label_key, q.pinned_executor,
    coalesce(q.pinned_executor, ''), s.namespace || '/' || coalesce(q.pinned_executor, ''), q.run_key,
    q.ready_at
FROM run_queue q
JOIN sessions s ON s.session_key = q.session_key;
DROP TABLE run_queue;
ALTER TABLE new_run_queue RENAME TO run_queue;
CREATE INDEX run_queue_by_turn
    ON run_queue (pool, executor_kind, label_key, audience, turn, run_key);
CREATE INDEX run_queue_by_flow ON run_queue (pool, executor_kind, label_key, flow, turn);
CREATE INDEX run_queue_by_opening ON run_queue (pool, executor_kind, label_key, opens_at)
    WHERE opens_at IS NOT NULL;

-- The turn that was served last in each queue: a flow that comes anew begins after it.
CREATE TABLE queue_turns (
    queue_key INTEGER PRIMARY KEY NOT NULL,
    pool TEXT NOT NULL,
    executor_kind TEXT NOT NULL,
    turn INTEGER NOT NULL,
    UNIQUE (pool, executor_kind)
) STRICT;
INSERT INTO queue_turns (pool, executor_kind, turn)
SELECT pool, executor_kind, min(turn) FROM run_queue GROUP BY pool, executor_kind;

-- The turn that a claimed run had, should it come back; when it has run too long, on the lease clock.
ALTER TABLE run_heads ADD COLUMN turn INTEGER;
ALTER TABLE run_heads ADD COLUMN run_deadline INTEGER;
CREATE INDEX run_heads_by_deadline ON run_heads (run_deadline) WHERE run_deadline IS NOT NULL;

CREATE INDEX runs_unservable ON runs (namespace, run_id) WHERE unservable IS NOT NULL;
