-- A part of a session's log, along its own index whatever the filter: a run's id is looked up row by
-- row, since a join could be planned as a walk over all runs. Payloads are added up here, without
-- reading them, so that no more of them travel than fit: the first that passes the bound is the last.
SELECT
    $1::uuid AS "session_id!",
    page.session_seq AS "session_seq!",
    (SELECT r.run_id FROM runs r WHERE r.run_key = page.run_key) AS run_id,
    page.event_id AS "event_id!",
    page.kind AS "kind!",
    page.payload AS "payload!",
    page.digest,
    page.attempt,
    page.executor_id,
    page.trace_id,
    page.created_at AS "created_at!",
    page.recorded_at AS "recorded_at!",
    page.folded_from
FROM (
    SELECT
        e.*,
        sum(octet_length(e.payload)) OVER so_far - octet_length(e.payload) AS bytes_before
    FROM events e
    WHERE e.session_key = (SELECT s.session_key FROM sessions s WHERE s.session_id = $1)
      AND e.session_seq > $2
      AND ($3 OR e.kind = ANY($4))
    WINDOW so_far AS (ORDER BY e.session_seq ROWS UNBOUNDED PRECEDING)
    ORDER BY e.session_seq
    LIMIT $5
) AS page
WHERE page.bytes_before < $6
ORDER BY page.session_seq
