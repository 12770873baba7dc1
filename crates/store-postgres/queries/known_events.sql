-- Each id is looked up by itself: where most runs are short, a planner would rather read all events of
-- the run and compare them, which an upload to a long run must not pay for.
SELECT
    r.session_id,
    e.session_seq,
    r.run_id AS "run_id?",
    e.event_id,
    e.kind,
    e.payload,
    e.digest,
    e.attempt,
    e.executor_id,
    e.trace_id,
    e.created_at,
    e.recorded_at,
    e.folded_from
FROM unnest($2::text[]) AS asked (event_id)
CROSS JOIN LATERAL (
    SELECT *
    FROM events
    WHERE run_key = $1
      AND event_id = asked.event_id
    LIMIT 1
) AS e
JOIN runs r ON r.run_key = e.run_key
