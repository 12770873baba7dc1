-- The tape with what is put aside, bounded as `events_filtered.sql` is.
SELECT
    $1::uuid AS "session_id!",
    page.entry_key AS "entry_key!",
    page.position AS "position!",
    page.entry_id AS "entry_id!",
    page.kind AS "kind!",
    page.payload AS "payload!",
    page.meta,
    page.anchor_type,
    page.run_id AS "run_id!",
    page.first_seq AS "first_seq!",
    page.source AS "source!",
    page.created_at AS "created_at!",
    page.superseded_by_checkpoint_id
FROM (
    SELECT
        e.*,
        sum(octet_length(e.payload)) OVER so_far - octet_length(e.payload) AS bytes_before
    FROM tape_entries e
    WHERE e.session_key = (SELECT s.session_key FROM sessions s WHERE s.session_id = $1)
      AND e.position > $2
    WINDOW so_far AS (ORDER BY e.position ROWS UNBOUNDED PRECEDING)
    ORDER BY e.position
    LIMIT $3
) AS page
WHERE page.bytes_before < $4
ORDER BY page.position
