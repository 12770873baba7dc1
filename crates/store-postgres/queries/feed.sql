-- Rows are looked at in the order of their transactions, at most $3 of them, whether they pass or
-- not, and only below the oldest transaction that may still commit: none can slip in later.
SELECT
    e.xid::text AS "xid!",
    e.event_key,
    s.namespace = $4 AND ($5 OR e.kind = ANY($6)) AS "passes!",
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
WHERE (e.xid, e.event_key) > (($1::text)::xid8, $2)
  AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.event_key
LIMIT $3
