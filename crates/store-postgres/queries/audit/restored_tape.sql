SELECT
    s.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'position ' || e.position || ' was put aside by a restore that keeps all up to ' || c.tape_position AS "detail!"
FROM tape_entries e
JOIN checkpoints c
    ON c.checkpoint_id = e.superseded_by_checkpoint_id AND c.session_key = e.session_key
JOIN sessions s ON s.session_key = e.session_key
WHERE e.position <= c.tape_position
LIMIT $1
