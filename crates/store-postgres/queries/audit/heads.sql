SELECT
    s.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'has no head' AS "detail!"
FROM sessions s
LEFT JOIN session_heads h ON h.session_key = s.session_key
WHERE h.session_key IS NULL
LIMIT $1
