SELECT
    c.session_id AS "session_id?: Vec<u8>",
    c.run_id AS "run_id?: Vec<u8>",
    '`' || c.place || '` does not repeat what it is a copy of' AS "detail!: String"
FROM (
    SELECT s.session_id, NULL AS run_id, 'session_heads' AS place
    FROM session_heads h
    JOIN sessions s ON s.session_key = h.session_key
    WHERE h.session_id <> s.session_id
    UNION ALL
    SELECT s.session_id, r.run_id, 'runs'
    FROM runs r
    JOIN sessions s ON s.session_key = r.session_key
    WHERE r.session_id <> s.session_id OR r.namespace <> s.namespace
    UNION ALL
    SELECT s.session_id, i.run_id, 'interactions'
    FROM interactions i
    JOIN sessions s ON s.session_key = i.session_key
    JOIN runs r ON r.run_key = i.run_key
    WHERE i.session_id <> s.session_id OR i.namespace <> s.namespace
       OR i.run_id <> r.run_id OR i.session_key <> r.session_key
    UNION ALL
    SELECT s.session_id, NULL, 'checkpoints'
    FROM checkpoints c
    JOIN sessions s ON s.session_key = c.session_key
    WHERE c.session_id <> s.session_id
    UNION ALL
    SELECT r.session_id, r.run_id, 'message_snapshots'
    FROM message_snapshots m
    JOIN runs r ON r.run_key = m.run_key
    WHERE m.run_id <> r.run_id OR m.session_key <> r.session_key
    UNION ALL
    SELECT r.session_id, r.run_id, 'artifacts'
    FROM artifacts a
    JOIN runs r ON r.run_key = a.run_key
    WHERE a.run_id <> r.run_id OR a.session_key <> r.session_key
) AS c
LIMIT ?1
