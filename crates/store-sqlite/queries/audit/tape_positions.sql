SELECT
    s.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'position ' || e.position || ' lies beyond the last one given out' AS "detail!: String"
FROM tape_entries e
JOIN sessions s ON s.session_key = e.session_key
LEFT JOIN tape_states t ON t.session_key = e.session_key
WHERE e.position < 1 OR e.position > coalesce(t.state ->> '$.position', 0)
LIMIT ?1
