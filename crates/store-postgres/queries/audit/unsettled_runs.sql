SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'is `' || r.status || '` and has no live part' AS "detail!"
FROM runs r
LEFT JOIN run_heads l ON l.run_key = r.run_key
WHERE l.run_key IS NULL AND r.status NOT IN ('completed', 'failed', 'cancelled', 'interrupted')
LIMIT $1
