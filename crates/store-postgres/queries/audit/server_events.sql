SELECT
    s.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'event ' || e.session_seq || ' has an id that its producer does not give' AS "detail!"
FROM events e
JOIN sessions s ON s.session_key = e.session_key
LEFT JOIN runs r ON r.run_key = e.run_key
WHERE CASE
    WHEN e.event_id LIKE 'srv:%' THEN
        e.digest IS NOT NULL OR e.event_id <> 'srv:' || e.session_seq
    ELSE e.folded_from IS NULL AND (e.digest IS NULL OR e.run_key IS NULL)
END
LIMIT $1
