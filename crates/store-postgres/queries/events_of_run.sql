-- The same for one run. Its events lie between its admission and its end, so only that part of the
-- log is walked; `+ 0` keeps the planner from the index over runs, by which it would read all events
-- of the run and sort them.
SELECT
    $1::uuid AS "session_id!",
    page.session_seq AS "session_seq!",
    $3::uuid AS run_id,
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
      AND e.session_seq > (
        SELECT greatest($2, r.admitted_seq - 1) FROM runs r
        WHERE r.run_id = $3 AND r.session_id = $1
      )
      AND e.session_seq <= (
        SELECT coalesce(r.settled_seq, 9223372036854775807) FROM runs r
        WHERE r.run_id = $3 AND r.session_id = $1
      )
      AND e.run_key + 0 = (SELECT r.run_key FROM runs r WHERE r.run_id = $3)
      AND ($4 OR e.kind = ANY($5))
    WINDOW so_far AS (ORDER BY e.session_seq ROWS UNBOUNDED PRECEDING)
    ORDER BY e.session_seq
    LIMIT $6
) AS page
WHERE page.bytes_before < $7
ORDER BY page.session_seq
