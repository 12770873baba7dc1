SELECT
    l.session_id AS "session_id?: Vec<u8>",
    l.run_id AS "run_id?: Vec<u8>",
    'has ' || l.open || ' open questions, its head says ' || l.pending_interactions
        || ' and its session ' || s.pending_interactions AS "detail!: String"
FROM (
    SELECT
        session_key,
        session_id,
        run_id,
        status,
        pending_interactions,
        (
            SELECT count(*) FROM interactions i
            WHERE i.run_key = run_heads.run_key AND i.status = 'pending'
        ) AS open
    FROM run_heads
) AS l
JOIN sessions s ON s.session_key = l.session_key
WHERE l.open <> l.pending_interactions
   OR l.status <> 'queued' AND s.pending_interactions <> l.pending_interactions
LIMIT ?1
