INSERT INTO events (
    session_key,
    session_seq,
    run_key,
    event_id,
    kind,
    payload,
    digest,
    attempt,
    executor_id,
    trace_id,
    created_at,
    recorded_at,
    folded_from
)
SELECT $1, *
FROM unnest(
    $2::bigint[],
    $3::bigint[],
    $4::text[],
    $5::text[],
    $6::text[],
    $7::bytea[],
    $8::bigint[],
    $9::text[],
    $10::text[],
    $11::bigint[],
    $12::bigint[],
    $13::bigint[]
)
