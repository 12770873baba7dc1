-- The oldest claimable runs of each satisfied label set, then the oldest of those. Nothing is
-- locked: who takes one locks its head if that is free, and looks again.
SELECT
    oldest.run_key,
    (SELECT r.run_id FROM runs r WHERE r.run_key = oldest.run_key) AS "run_id!"
FROM unnest($3::bytea[]) AS k (label_key)
CROSS JOIN LATERAL (
    SELECT q.run_key
    FROM run_queue q
    JOIN session_heads h ON h.session_key = q.session_key
    WHERE q.pool = $1
      AND q.executor_kind = $2
      AND q.label_key = k.label_key
      AND (q.pinned_executor IS NULL OR q.pinned_executor = $4)
      AND q.ready_at <= $5
      AND (
        h.owner_id IS NULL
        OR h.owner_id = $6
        OR h.owner_expires_at IS NULL
        OR h.owner_expires_at <= $5
      )
    ORDER BY q.run_key
    LIMIT $7
) AS oldest
ORDER BY oldest.run_key
LIMIT $7
