SELECT
    l.session_id AS "session_id?",
    l.run_id AS "run_id?",
    'holds what a `' || l.status || '` run does not have, or lacks what it has' AS "detail!"
FROM run_heads l
WHERE l.status NOT IN ('requested', 'queued', 'claimed', 'running', 'cancelling')
   OR (l.status = 'requested') <> (l.ready_at IS NOT NULL)
   OR (l.status = 'cancelling') <> (l.cancel_deadline IS NOT NULL)
   OR (l.status NOT IN ('claimed', 'running') AND l.run_deadline IS NOT NULL)
   OR l.attempts_used + l.unacknowledged > l.attempt
   OR CASE
        WHEN l.status IN ('claimed', 'running', 'cancelling') THEN
            l.claim_attempt IS DISTINCT FROM l.attempt
            OR l.token_hash IS NULL
            OR l.request_hash IS NULL
            OR l.executor_id IS NULL
            OR l.replayed IS NULL
            OR l.lease_expires_at IS NULL
            OR l.lease_ms IS NULL
            OR l.acknowledged IS NULL
            OR l.status = 'claimed' AND l.acknowledged
            OR l.status = 'running' AND NOT l.acknowledged
        ELSE
            l.claim_attempt IS NOT NULL
            OR l.token_hash IS NOT NULL
            OR l.lease_expires_at IS NOT NULL
   END
LIMIT $1
