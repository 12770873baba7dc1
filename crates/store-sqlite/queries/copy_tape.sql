-- The new ids are random, in the form of version 4.
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
    ?2,
    position,
    unhex(
        hex(randomblob(6))
        || '4' || substr(hex(randomblob(2)), 2)
        || substr('89AB', (random() & 3) + 1, 1) || substr(hex(randomblob(2)), 2)
        || hex(randomblob(6))
    ),
    kind,
    payload,
    meta,
    anchor_type,
    run_id,
    first_seq,
    source,
    created_at
FROM tape_entries
WHERE session_key = ?1
  AND position <= ?3
  AND superseded_by_checkpoint_id IS NULL
  AND replaced = 0
