SELECT
    l.session_id AS "session_id?",
    l.run_id AS "run_id?",
    'its lease ended ' || (d.alive_at - l.lease_expires_at) || ' ms ago, and nobody recovered it' AS "detail!"
FROM run_heads l
CROSS JOIN deployment d
WHERE l.lease_expires_at < d.alive_at - $2
LIMIT $1
