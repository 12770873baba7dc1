SELECT
    s.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'event ' || e.session_seq || ' stands for ' || e.first_seq || ' to ' || e.session_seq
        || ', and the one before it ends at ' || e.seq_before AS "detail!"
FROM (
    SELECT
        session_key,
        session_seq,
        coalesce(folded_from, session_seq) AS first_seq,
        coalesce(lag(session_seq) OVER (PARTITION BY session_key ORDER BY session_seq), 0)
            AS seq_before
    FROM events
) AS e
JOIN sessions s ON s.session_key = e.session_key
WHERE e.first_seq <> e.seq_before + 1 OR e.first_seq > e.session_seq
LIMIT $1
