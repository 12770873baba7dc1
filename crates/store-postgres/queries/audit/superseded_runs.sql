SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'and the entry at position ' || e.position || ' of the tape are not both put aside' AS "detail!"
FROM runs r
JOIN tape_entries e ON e.session_key = r.session_key AND e.run_id = r.run_id
WHERE NOT e.replaced
  AND (r.superseded_at IS NULL) <> (e.superseded_by_checkpoint_id IS NULL)
LIMIT $1
