-- A run under its head's lock.
SELECT
    r.run_key,
    r.status AS run_status,
    r.settled_attempt,
    r.settled_token_hash,
    r.settled_body_digest,
    l.status AS "status?",
    l.ready_at,
    l.attempt AS "attempt?",
    l.attempts_used AS "attempts_used?",
    l.unacknowledged AS "unacknowledged?",
    l.max_attempts AS "max_attempts?",
    l.place AS "place?",
    l.event_count AS "event_count?",
    l.has_output AS "has_output?",
    l.pending_interactions AS "pending_interactions?",
    l.claim_attempt,
    l.token_hash,
    l.executor_id,
    l.instance_id,
    l.request_hash,
    l.acknowledged,
    l.replayed,
    l.lease_expires_at,
    l.lease_ms,
    l.cancel_deadline,
    l.turn,
    l.run_deadline
FROM runs r
LEFT JOIN run_heads l ON l.run_key = r.run_key
WHERE r.run_id = $1
