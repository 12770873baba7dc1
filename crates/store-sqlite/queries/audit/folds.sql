SELECT
    s.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'event ' || e.session_seq || ' is folded where it may not be, or the session does not say so' AS "detail!: String"
FROM events e
JOIN sessions s ON s.session_key = e.session_key
LEFT JOIN runs r ON r.run_key = e.run_key
WHERE e.folded_from IS NOT NULL
  AND (
    r.settled_seq IS NULL
    OR e.folded_from >= e.session_seq
    OR s.folded_seq IS NULL
    OR s.folded_seq < e.session_seq - 1
  )
LIMIT ?1
