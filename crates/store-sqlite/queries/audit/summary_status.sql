SELECT
    d.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'is `' || d.status || '`/`' || d.turn_status || '` and should be `' || d.due || '`/`'
        || d.due_turn || '`' AS "detail!: String"
FROM (
    SELECT
        s.session_id,
        s.status,
        s.turn_status,
        CASE
            WHEN l.status = 'cancelling' THEN 'running'
            WHEN l.status IS NOT NULL AND s.pending_interactions > 0 THEN 'waiting_approval'
            WHEN l.status IS NOT NULL THEN 'running'
            WHEN s.closed_at IS NOT NULL THEN 'closed'
            WHEN s.last_run_status IN ('completed', 'failed', 'cancelled', 'interrupted')
                THEN s.last_run_status
            WHEN s.last_run_status IS NULL THEN 'created'
            ELSE 'running'
        END AS due,
        CASE
            WHEN l.status = 'cancelling' THEN 'cancelling'
            WHEN l.status IS NOT NULL AND s.pending_interactions > 0 THEN 'waiting_approval'
            WHEN l.status = 'requested' THEN 'queued'
            WHEN l.status IS NOT NULL THEN 'running'
            WHEN s.closed_at IS NOT NULL THEN 'idle'
            WHEN s.queued_runs > 0 THEN 'queued'
            ELSE 'idle'
        END AS due_turn
    FROM sessions s
    LEFT JOIN run_heads l ON l.session_key = s.session_key AND l.status <> 'queued'
) AS d
WHERE d.status <> d.due OR d.turn_status <> d.due_turn
LIMIT ?1
