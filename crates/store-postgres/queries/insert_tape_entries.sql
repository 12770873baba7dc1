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
SELECT $1, *
FROM unnest(
    $2::bigint[],
    $3::uuid[],
    $4::text[],
    $5::text[],
    $6::text[],
    $7::text[],
    $8::uuid[],
    $9::bigint[],
    $10::text[],
    $11::bigint[]
)
ON CONFLICT (session_key, run_id, first_seq, kind) WHERE source = 'projection' DO NOTHING
