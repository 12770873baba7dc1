-- Rows are looked at in the order of their commits, at most ?2 of them, whether they pass or not.
SELECT
    e.event_key,
    coalesce(s.namespace = ?3 AND (?4 OR e.kind IN (SELECT value FROM json_each(?5))), 0)
        AS "passes!: bool",
    s.session_id,
    e.session_seq,
    r.run_id AS "run_id?",
    e.event_id,
    e.kind,
    e.payload,
    e.digest,
    e.attempt,
    e.executor_id,
    e.trace_id,
    e.created_at,
    e.recorded_at,
    e.folded_from
FROM events e
JOIN sessions s ON s.session_key = e.session_key
LEFT JOIN runs r ON r.run_key = e.run_key
WHERE e.event_key > ?1
ORDER BY e.event_key
LIMIT ?2
