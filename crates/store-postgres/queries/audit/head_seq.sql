SELECT
    h.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'the head is at ' || h.head_seq || ', and the newest event is ' || h.newest AS "detail!"
FROM (
    SELECT
        session_id,
        head_seq,
        coalesce(
            (SELECT max(e.session_seq) FROM events e WHERE e.session_key = session_heads.session_key),
            0
        ) AS newest
    FROM session_heads
) AS h
WHERE h.head_seq <> h.newest
LIMIT $1
