SELECT
    h.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'the checkpoint of event ' || c.session_seq || ' lies beyond the log, the tape or the view' AS "detail!: String"
FROM checkpoints c
JOIN session_heads h ON h.session_key = c.session_key
LEFT JOIN tape_states t ON t.session_key = c.session_key
WHERE c.session_seq < 0
   OR c.tape_position < 0
   OR c.session_seq >= h.head_seq
   OR c.tape_position > coalesce(t.state ->> '$.position', 0)
   OR c.projection_epoch > h.projection_epoch
LIMIT ?1
