SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'ended with event ' || r.settled_seq || ' and has event ' || e.session_seq || ' after it' AS "detail!: String"
FROM events e
JOIN runs r ON r.run_key = e.run_key
WHERE e.session_seq > r.settled_seq
LIMIT ?1
