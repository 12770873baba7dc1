SELECT
    (SELECT s.session_id FROM sessions s WHERE s.session_key = $1) AS "session_id!",
    e.entry_key,
    e.position,
    e.entry_id,
    e.kind,
    e.payload,
    e.meta,
    e.anchor_type,
    e.run_id,
    e.first_seq,
    e.source,
    e.created_at,
    e.superseded_by_checkpoint_id
FROM tape_entries e
WHERE e.session_key = $1
  AND e.superseded_by_checkpoint_id IS NULL
  AND NOT e.replaced
ORDER BY e.position DESC
LIMIT $2
