SELECT
    s.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'event ' || e.session_seq || ' belongs to a run of another session' AS "detail!"
FROM events e
JOIN runs r ON r.run_key = e.run_key
JOIN sessions s ON s.session_key = e.session_key
WHERE r.session_key <> e.session_key
LIMIT $1
