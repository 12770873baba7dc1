SELECT
    r.session_id,
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
JOIN runs r ON r.run_key = e.run_key
WHERE e.run_key = ?
  AND e.event_id IN (SELECT value FROM json_each(?))
