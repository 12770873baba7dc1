-- Runs that have been claimable for a while, of sessions that no other live owner has (rules R8).
SELECT
    q.run_key,
    q.pool,
    q.executor_kind,
    q.label_key,
    q.pinned_executor,
    r.unservable
FROM run_queue q
CROSS JOIN session_heads h ON h.session_key = q.session_key
CROSS JOIN runs r ON r.run_key = q.run_key
WHERE q.run_key > ?1
  AND q.ready_at <= ?2
  AND (
    h.owner_id IS NULL
    OR h.owner_id = ?3
    OR h.owner_expires_at IS NULL
    OR h.owner_expires_at <= ?4
    OR (
        (h.owner_id LIKE 'cli:%' OR h.owner_id LIKE 'acp-stdio:%')
        AND h.owner_id NOT IN (SELECT value FROM json_each(?5))
    )
  )
ORDER BY q.run_key
LIMIT ?6
