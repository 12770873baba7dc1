-- The feed over all sessions goes by xid. A transaction may have got its own before it waited for
-- the head, so that another one with a higher xid wrote to the session first: the numbers of a
-- session then keep their order by the xid of the event before.
INSERT INTO events (
    xid,
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
SELECT
    greatest(
        pg_current_xact_id(),
        (SELECT e.xid FROM events e WHERE e.session_key = $1 ORDER BY e.session_seq DESC LIMIT 1)
    ),
    $1,
    *
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
