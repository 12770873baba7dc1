SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'and the entry at position ' || e.position || ' of the tape are not both put aside' AS "detail!: String"
FROM runs r
JOIN tape_entries e ON e.session_key = r.session_key AND e.run_id = r.run_id
WHERE e.replaced = 0
  AND (r.superseded_at IS NULL) <> (e.superseded_by_checkpoint_id IS NULL)
LIMIT ?1
