INSERT INTO run_heads (
    run_key,
    run_id,
    session_key,
    session_id,
    status,
    ready_at,
    attempt,
    attempts_used,
    unacknowledged,
    max_attempts,
    place,
    event_count,
    has_output,
    pending_interactions,
    claim_attempt,
    token_hash,
    executor_id,
    instance_id,
    request_hash,
    acknowledged,
    replayed,
    lease_expires_at,
    lease_ms,
    cancel_deadline
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,
    $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24
)
