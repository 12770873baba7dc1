SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'is `' || r.status || '` and has ' || coalesce(e.ends, 0) || ' terminal events' AS "detail!"
FROM runs r
LEFT JOIN (
    SELECT run_key, count(*) AS ends FROM events WHERE kind = 'TurnEnd' GROUP BY run_key
) AS e ON e.run_key = r.run_key
WHERE coalesce(e.ends, 0) <> CASE
    WHEN r.status IN ('completed', 'failed', 'cancelled', 'interrupted') THEN 1
    ELSE 0
END
LIMIT $1
