-- A session has at most one run in the queue. Whoever asks for this very session is not made to wait for
-- the executor that it prefers.
SELECT
    l.run_key,
    l.run_id
FROM sessions s
JOIN session_heads h ON h.session_key = s.session_key
JOIN run_queue q ON q.session_key = s.session_key
JOIN run_heads l ON l.run_key = q.run_key
WHERE s.session_id = $7
  AND q.pool = $1
  AND q.executor_kind = $2
  AND q.label_key = ANY($3)
  AND (q.audience IN ('', $4) OR q.opens_at IS NOT NULL)
  AND q.ready_at <= $5
  AND (
    h.owner_id IS NULL
    OR h.owner_id = $6
    OR h.owner_expires_at IS NULL
    OR h.owner_expires_at <= $5
  )
