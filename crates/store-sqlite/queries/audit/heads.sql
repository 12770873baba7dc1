SELECT
    s.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'has no head' AS "detail!: String"
FROM sessions s
LEFT JOIN session_heads h ON h.session_key = s.session_key
WHERE h.session_key IS NULL
LIMIT ?1
