SELECT
    s.session_id,
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
JOIN sessions s ON s.session_key = e.session_key
WHERE e.entry_id = ANY($1)
