SELECT
    s.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'the tool call at position ' || e.position || ' has no result' AS "detail!: String"
FROM tape_entries e
JOIN sessions s ON s.session_key = e.session_key
WHERE e.kind = 'tool_call' AND e.payload ->> '$.result' IS NULL
LIMIT ?1
