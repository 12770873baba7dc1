-- All events of a session after a number, as in `events_filtered.sql`.
SELECT
    (SELECT s.session_id FROM sessions s WHERE s.session_key = $1) AS "session_id!",
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
    WHERE e.session_key = $1
      AND e.session_seq > $2
    WINDOW so_far AS (ORDER BY e.session_seq ROWS UNBOUNDED PRECEDING)
    ORDER BY e.session_seq
    LIMIT $3
) AS page
WHERE page.bytes_before < $4
ORDER BY page.session_seq
