INSERT INTO tape_entries (
    session_key,
    position,
    entry_id,
    kind,
    payload,
    meta,
    anchor_type,
    run_id,
    first_seq,
    source,
    created_at
)
SELECT
    $2,
    position,
    gen_random_uuid(),
    kind,
    payload,
    meta,
    anchor_type,
    run_id,
    first_seq,
    source,
    created_at
FROM tape_entries
WHERE session_key = $1
  AND position <= $3
  AND superseded_by_checkpoint_id IS NULL
  AND NOT replaced
