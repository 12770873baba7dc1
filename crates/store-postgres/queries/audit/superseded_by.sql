SELECT
    s.session_id AS "session_id?",
    p.run_id AS "run_id?",
    'a row of `' || p.place || '` was put aside, and no checkpoint of its session did that' AS "detail!"
FROM (
    SELECT session_key, run_id, superseded_at, superseded_by_checkpoint_id, 'runs' AS place
    FROM runs
    UNION ALL
    SELECT session_key, NULL, superseded_at, superseded_by_checkpoint_id, 'checkpoints'
    FROM checkpoints
    UNION ALL
    SELECT session_key, NULL, created_at, superseded_by_checkpoint_id, 'tape_entries'
    FROM tape_entries
    WHERE superseded_by_checkpoint_id IS NOT NULL
) AS p
JOIN sessions s ON s.session_key = p.session_key
LEFT JOIN checkpoints c
    ON c.checkpoint_id = p.superseded_by_checkpoint_id AND c.session_key = p.session_key
WHERE (p.superseded_at IS NULL) <> (c.checkpoint_id IS NULL)
LIMIT $1
