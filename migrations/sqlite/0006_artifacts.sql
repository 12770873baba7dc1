-- What executors keep of runs beside their events, such as the patch of what a run changed. `content`
-- is the content itself or its base64, as `encoding` says; `bytes` is the length of the content itself.
CREATE TABLE artifacts (
    artifact_key INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    run_key INTEGER NOT NULL REFERENCES runs (run_key) ON DELETE CASCADE,
    session_key INTEGER NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    run_id BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    encoding TEXT NOT NULL,
    content TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    digest BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (run_key, name)
) STRICT;
CREATE INDEX artifacts_by_session ON artifacts (session_key, name, artifact_key);
