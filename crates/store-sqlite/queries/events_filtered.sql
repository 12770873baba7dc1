-- A run's events lie between its admission and its end, so only that part of the log is walked.
SELECT
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
FROM sessions s
CROSS JOIN events e ON e.session_key = s.session_key
LEFT JOIN runs r ON r.run_key = e.run_key
WHERE s.session_id = ?1
  AND e.session_seq > max(
    ?2,
    coalesce((SELECT admitted_seq - 1 FROM runs WHERE run_id = ?3), 0)
  )
  AND e.session_seq <= coalesce(
    (SELECT settled_seq FROM runs WHERE run_id = ?3),
    9223372036854775807
  )
  AND (?3 IS NULL OR r.run_id = ?3)
  AND (?4 OR e.kind IN (SELECT value FROM json_each(?5)))
ORDER BY e.session_seq
LIMIT ?6
