SELECT
    l.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    count(*) || ' runs are active' AS "detail!"
FROM run_heads l
WHERE l.status <> 'queued'
GROUP BY l.session_id
HAVING count(*) > 1
LIMIT $1
