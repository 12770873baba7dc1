-- The oldest claimable runs of each satisfied label key, then the oldest of those. A local owner's
-- lease counts only while its process lives (rules R8).
SELECT
    l.run_key AS "run_key!",
    l.run_id AS "run_id!"
FROM json_each(?3) k
CROSS JOIN run_heads l
WHERE l.run_key IN (
    SELECT q.run_key
    FROM run_queue q
    CROSS JOIN session_heads h ON h.session_key = q.session_key
    WHERE q.pool = ?1
      AND q.executor_kind = ?2
      AND q.label_key = k.value
      AND (q.pinned_executor IS NULL OR q.pinned_executor = ?4)
      AND q.ready_at <= ?5
      AND (
        h.owner_id IS NULL
        OR h.owner_id = ?6
        OR h.owner_expires_at IS NULL
        OR h.owner_expires_at <= ?5
        OR (
            (h.owner_id LIKE 'cli:%' OR h.owner_id LIKE 'acp-stdio:%')
            AND h.owner_id NOT IN (SELECT value FROM json_each(?7))
        )
      )
    ORDER BY q.run_key
    LIMIT ?8
)
ORDER BY l.run_key
LIMIT ?8
