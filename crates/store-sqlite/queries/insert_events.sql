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
SELECT
    ?1,
    value ->> 0,
    value ->> 1,
    value ->> 2,
    value ->> 3,
    value ->> 4,
    unhex(value ->> 5),
    value ->> 6,
    value ->> 7,
    value ->> 8,
    value ->> 9,
    value ->> 10,
    value ->> 11
FROM json_each(?2)
