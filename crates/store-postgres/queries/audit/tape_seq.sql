SELECT
    h.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'the tape has followed the log to ' || (t.state::json ->> 'tape_seq')::bigint || ', and the head is at ' || h.head_seq AS "detail!"
FROM tape_states t
JOIN session_heads h ON h.session_key = t.session_key
WHERE (t.state::json ->> 'tape_seq')::bigint > h.head_seq
LIMIT $1
