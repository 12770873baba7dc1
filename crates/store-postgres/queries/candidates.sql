-- The first claimable runs of each satisfied label set: those that everybody may take, those that wait
-- for this executor, and those that have waited long enough for another; then the first of all in the
-- order of turns. Runs that wait for others are never looked at. Nothing is locked: who takes one
-- locks its head if that is free, and looks again.
SELECT
    found.run_key AS "run_key!",
    (SELECT r.run_id FROM runs r WHERE r.run_key = found.run_key) AS "run_id!"
FROM (
    SELECT
        first.run_key,
        first.turn
    FROM unnest($3::bytea[]) AS k (label_key)
    CROSS JOIN unnest(ARRAY['', $4]) AS a (audience)
    CROSS JOIN LATERAL (
        SELECT
            q.run_key,
            q.turn
        FROM run_queue q
        JOIN session_heads h ON h.session_key = q.session_key
        WHERE q.pool = $1
          AND q.executor_kind = $2
          AND q.label_key = k.label_key
          AND q.audience = a.audience COLLATE "C"
          AND q.ready_at <= $5
          AND (
            h.owner_id IS NULL
            OR h.owner_id = $6
            OR h.owner_expires_at IS NULL
            OR h.owner_expires_at <= $5
          )
        ORDER BY q.turn, q.run_key
        LIMIT $7
    ) AS first
    UNION
    SELECT
        opened.run_key,
        opened.turn
    FROM unnest($3::bytea[]) AS k (label_key)
    CROSS JOIN LATERAL (
        SELECT
            q.run_key,
            q.turn
        FROM run_queue q
        JOIN session_heads h ON h.session_key = q.session_key
        WHERE q.pool = $1
          AND q.executor_kind = $2
          AND q.label_key = k.label_key
          AND q.opens_at <= $5
          AND q.ready_at <= $5
          AND (
            h.owner_id IS NULL
            OR h.owner_id = $6
            OR h.owner_expires_at IS NULL
            OR h.owner_expires_at <= $5
          )
        ORDER BY q.opens_at
        LIMIT $7
    ) AS opened
) AS found
ORDER BY found.turn, found.run_key
LIMIT $7
