-- Runs that have been claimable for a while, of sessions that no other live owner has.
SELECT
    q.run_key,
    q.pool,
    q.executor_kind,
    q.labels,
    q.pinned_executor,
    r.unservable
FROM run_queue q
JOIN session_heads h ON h.session_key = q.session_key
JOIN runs r ON r.run_key = q.run_key
WHERE q.run_key > $1
  AND q.ready_at <= $2
  AND (
    h.owner_id IS NULL
    OR h.owner_id = $3
    OR h.owner_expires_at IS NULL
    OR h.owner_expires_at <= $4
  )
ORDER BY q.run_key
LIMIT $5
