SELECT
    h.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'the checkpoint of event ' || c.session_seq || ' lies beyond the log, the tape or the view' AS "detail!"
FROM checkpoints c
JOIN session_heads h ON h.session_key = c.session_key
LEFT JOIN tape_states t ON t.session_key = c.session_key
WHERE c.session_seq < 0
   OR c.tape_position < 0
   OR c.session_seq >= h.head_seq
   OR c.tape_position > coalesce((t.state::json ->> 'position')::bigint, 0)
   OR c.projection_epoch > h.projection_epoch
LIMIT $1
