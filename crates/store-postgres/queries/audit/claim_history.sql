SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'has had ' || r.attempt || ' claims, and ' || coalesce(c.claims, 0) || ' are recorded' AS "detail!"
FROM runs r
LEFT JOIN (
    SELECT run_key, count(*) AS claims, max(attempt) AS newest FROM claims GROUP BY run_key
) AS c ON c.run_key = r.run_key
WHERE coalesce(c.claims, 0) <> r.attempt OR coalesce(c.newest, 0) <> r.attempt
LIMIT $1
