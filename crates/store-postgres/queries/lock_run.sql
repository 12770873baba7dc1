-- The head alone: what it locks must not decide on other rows, which may be older than the lock
-- (rules R1).
SELECT
    session_key,
    session_id,
    head_seq,
    projection_epoch,
    owner_id,
    owner_epoch,
    owner_expires_at,
    active_run_key,
    last_activity_at
FROM session_heads
WHERE session_key = (SELECT session_key FROM runs WHERE run_id = $1)
FOR UPDATE
