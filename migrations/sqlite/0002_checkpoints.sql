-- Checkpoints, restores and forks; executors' own tape entries; message snapshots; folded deltas.

-- Where a fork comes from. `restored_seq` is the number of the newest restore that put runs aside;
-- `folded_seq` the highest number that lies inside a fold.
ALTER TABLE sessions ADD COLUMN forked_from_session_id BLOB;
ALTER TABLE sessions ADD COLUMN forked_from_checkpoint_id BLOB;
ALTER TABLE sessions ADD COLUMN forked_from_seq INTEGER;
ALTER TABLE sessions ADD COLUMN restored_seq INTEGER;
ALTER TABLE sessions ADD COLUMN folded_seq INTEGER;

-- The first of the numbers that a folded event stands for; null where it stands for its own only.
ALTER TABLE events ADD COLUMN folded_from INTEGER;

-- When the deltas of a settled run were folded.
ALTER TABLE runs ADD COLUMN folded_at INTEGER;
CREATE INDEX runs_to_fold ON runs (settled_at) WHERE settled_at IS NOT NULL AND folded_at IS NULL;
CREATE INDEX runs_interrupted ON runs (session_key, settled_seq)
    WHERE status = 'interrupted' AND superseded_at IS NULL;

-- An empty `run_id` stands for none, so that the unique key covers such entries too. `source` is
-- `projection`, `executor` or `server`; `replaced` marks projected entries whose run sent its own.
CREATE TABLE new_tape_entries (
    entry_key INTEGER PRIMARY KEY NOT NULL,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    entry_id BLOB NOT NULL UNIQUE CHECK (length(entry_id) = 16),
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    meta TEXT,
    anchor_type TEXT,
    run_id BLOB NOT NULL,
    first_seq INTEGER NOT NULL,
    source TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    replaced INTEGER NOT NULL DEFAULT 0,
    superseded_by_checkpoint_id BLOB,
    UNIQUE (session_key, position)
) STRICT;
INSERT INTO new_tape_entries (
    entry_key, session_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
    source, created_at, superseded_by_checkpoint_id
)
SELECT
    entry_key, session_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
    CASE kind WHEN 'anchor' THEN 'server' ELSE 'projection' END, created_at,
    superseded_by_checkpoint_id
FROM tape_entries;
DROP TABLE tape_entries;
ALTER TABLE new_tape_entries RENAME TO tape_entries;
CREATE INDEX tape_entries_active ON tape_entries (session_key, position)
    WHERE superseded_by_checkpoint_id IS NULL AND replaced = 0;
CREATE UNIQUE INDEX tape_entries_projected ON tape_entries (session_key, run_id, first_seq, kind)
    WHERE source = 'projection';

-- The projection's memory counts the active entries from here on.
UPDATE tape_states SET state = json_set(
    state,
    '$.entries',
    (SELECT count(*) FROM tape_entries e WHERE e.session_key = tape_states.session_key)
);

-- The provider messages of a run as last reported; its id is `{run_id}:latest`.
CREATE TABLE message_snapshots (
    run_key INTEGER PRIMARY KEY NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    run_id BLOB NOT NULL,
    messages TEXT NOT NULL,
    message_count INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX message_snapshots_by_session ON message_snapshots (session_key);
CREATE INDEX message_snapshots_by_run ON message_snapshots (run_id);

-- `run_id` is the newest settled run at the capture, whose agent state and snapshot a resume uses.
CREATE TABLE checkpoints (
    checkpoint_key INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    checkpoint_id BLOB NOT NULL UNIQUE CHECK (length(checkpoint_id) = 16),
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    session_id BLOB NOT NULL,
    label TEXT,
    tape_position INTEGER NOT NULL,
    session_seq INTEGER NOT NULL,
    settings TEXT NOT NULL,
    agent_state TEXT,
    run_id BLOB,
    snapshot_id TEXT,
    projection_epoch INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    superseded_at INTEGER,
    superseded_by_checkpoint_id BLOB,
    deleted_at INTEGER
) STRICT;
CREATE INDEX checkpoints_by_session ON checkpoints (session_key, checkpoint_id);
CREATE INDEX checkpoints_active ON checkpoints (session_key, session_seq)
    WHERE superseded_at IS NULL AND deleted_at IS NULL;
