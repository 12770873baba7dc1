SELECT
    s.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'position ' || e.position || ' lies beyond the last one given out' AS "detail!"
FROM tape_entries e
JOIN sessions s ON s.session_key = e.session_key
LEFT JOIN tape_states t ON t.session_key = e.session_key
WHERE e.position < 1 OR e.position > coalesce((t.state::json ->> 'position')::bigint, 0)
LIMIT $1
