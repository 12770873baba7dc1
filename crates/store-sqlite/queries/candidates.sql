-- The first claimable runs of each satisfied label key: those that everybody may take, those that wait
-- for this executor, and those that have waited long enough for another; then the first of all in the
-- order of turns. Runs that wait for others are never looked at. A local owner's lease counts only
-- while its process lives (rules R8).
SELECT
    f.run_key AS "run_key!",
    (SELECT l.run_id FROM run_heads l WHERE l.run_key = f.run_key) AS "run_id!: Vec<u8>"
FROM (
    SELECT
        r.run_key,
        r.turn
    FROM json_each(?3) k
    CROSS JOIN json_each(json_array('', ?4)) a
    CROSS JOIN run_queue r
    WHERE r.run_key IN (
        SELECT q.run_key
        FROM run_queue q
        CROSS JOIN session_heads h ON h.session_key = q.session_key
        WHERE q.pool = ?1
          AND q.executor_kind = ?2
          AND q.label_key = k.value
          AND q.audience = a.value
          AND q.ready_at <= ?5
          AND (
            h.owner_id IS NULL
            OR h.owner_id = ?6
            OR h.owner_expires_at IS NULL
            OR h.owner_expires_at <= ?5
            OR (
                (h.owner_id LIKE 'cli:%' OR h.owner_id LIKE 'acp-stdio:%')
                AND h.owner_id NOT IN (SELECT value FROM json_each(?7))
            )
          )
        ORDER BY q.turn, q.run_key
        LIMIT ?8
    )
    UNION
    SELECT
        r.run_key,
        r.turn
    FROM json_each(?3) k
    CROSS JOIN run_queue r
    WHERE r.run_key IN (
        SELECT q.run_key
        FROM run_queue q
        CROSS JOIN session_heads h ON h.session_key = q.session_key
        WHERE q.pool = ?1
          AND q.executor_kind = ?2
          AND q.label_key = k.value
          AND q.opens_at <= ?5
          AND q.ready_at <= ?5
          AND (
            h.owner_id IS NULL
            OR h.owner_id = ?6
            OR h.owner_expires_at IS NULL
            OR h.owner_expires_at <= ?5
            OR (
                (h.owner_id LIKE 'cli:%' OR h.owner_id LIKE 'acp-stdio:%')
                AND h.owner_id NOT IN (SELECT value FROM json_each(?7))
            )
          )
        ORDER BY q.opens_at
        LIMIT ?8
    )
) AS f
ORDER BY f.turn, f.run_key
LIMIT ?8
