-- Rows are looked at in the order of their transactions, at most $3 of them, whether they pass or
-- not, and only below the oldest transaction that may still commit: none can slip in later. What
-- belongs to a row is looked up row by row: nobody can tell beforehand how few rows come after a
-- place, so a join would be planned for a large part of the log.
SELECT
    e.xid::text AS "xid!",
    e.event_key,
    (SELECT s.namespace FROM sessions s WHERE s.session_key = e.session_key) = $4
        AND ($5 OR e.kind = ANY($6)) AS "passes!",
    (SELECT s.session_id FROM sessions s WHERE s.session_key = e.session_key) AS "session_id!",
    e.session_seq,
    (SELECT r.run_id FROM runs r WHERE r.run_key = e.run_key) AS run_id,
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
WHERE (e.xid, e.event_key) > (($1::text)::xid8, $2)
  AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.event_key
LIMIT $3
