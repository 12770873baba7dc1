SELECT
    q.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'has ' || q.waiting || ' queued and ' || q.active || ' active runs, and its summary says '
        || q.queued_runs || ' queued with ' || q.pending_interactions || ' open questions' AS "detail!"
FROM (
    SELECT
        s.session_id,
        s.queued_runs,
        s.queue_held,
        s.pending_interactions,
        (
            SELECT count(*) FROM run_heads l
            WHERE l.session_key = s.session_key AND l.status = 'queued'
        ) AS waiting,
        (
            SELECT count(*) FROM run_heads l
            WHERE l.session_key = s.session_key AND l.status <> 'queued'
        ) AS active
    FROM sessions s
) AS q
WHERE q.queued_runs <> q.waiting
   OR q.queue_held AND q.waiting = 0
   OR NOT q.queue_held AND q.waiting > 0 AND q.active = 0
   OR q.pending_interactions > 0 AND q.active = 0
LIMIT $1
