SELECT
    l.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    count(*) || ' runs are active' AS "detail!: String"
FROM run_heads l
WHERE l.status <> 'queued'
GROUP BY l.session_id
HAVING count(*) > 1
LIMIT ?1
