SELECT
    h.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'the tape has followed the log to ' || (t.state ->> '$.tape_seq') || ', and the head is at ' || h.head_seq AS "detail!: String"
FROM tape_states t
JOIN session_heads h ON h.session_key = t.session_key
WHERE (t.state ->> '$.tape_seq') > h.head_seq
LIMIT ?1
