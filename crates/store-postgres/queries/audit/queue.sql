SELECT
    o.session_id AS "session_id?",
    o.run_id AS "run_id?",
    o.detail AS "detail!"
FROM (
    SELECT l.session_id, l.run_id, 'is requested, and no claim can find it' AS detail
    FROM run_heads l
    LEFT JOIN run_queue q ON q.run_key = l.run_key AND q.session_key = l.session_key
    WHERE l.status = 'requested'
      AND (q.run_key IS NULL OR q.ready_at IS DISTINCT FROM l.ready_at)
    UNION ALL
    SELECT r.session_id, r.run_id, 'can be claimed, and is not requested'
    FROM run_queue q
    JOIN runs r ON r.run_key = q.run_key
    LEFT JOIN run_heads l ON l.run_key = q.run_key
    WHERE l.status IS DISTINCT FROM 'requested'
) AS o
LIMIT $1
