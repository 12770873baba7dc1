SELECT
    s.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'the tool call at position ' || e.position || ' has no result' AS "detail!"
FROM tape_entries e
JOIN sessions s ON s.session_key = e.session_key
WHERE e.kind = 'tool_call' AND e.payload::json ->> 'result' IS NULL
LIMIT $1
