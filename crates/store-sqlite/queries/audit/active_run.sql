SELECT
    a.session_id AS "session_id?: Vec<u8>",
    a.run_id AS "run_id?: Vec<u8>",
    a.detail AS "detail!: String"
FROM (
    SELECT
        h.session_id,
        l.run_id,
        'is active, and its session names another run or none' AS detail
    FROM run_heads l
    JOIN session_heads h ON h.session_key = l.session_key
    JOIN sessions s ON s.session_key = l.session_key
    WHERE l.status <> 'queued'
      AND (
        h.active_run_key IS DISTINCT FROM l.run_key
        OR s.active_run_id IS DISTINCT FROM l.run_id
      )
    UNION ALL
    SELECT h.session_id, NULL, 'names an active run that is not one of its own'
    FROM session_heads h
    LEFT JOIN run_heads l
        ON l.run_key = h.active_run_key
        AND l.session_key = h.session_key
        AND l.status <> 'queued'
    WHERE h.active_run_key IS NOT NULL AND l.run_key IS NULL
) AS a
LIMIT ?1
