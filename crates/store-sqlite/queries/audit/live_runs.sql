SELECT
    l.session_id AS "session_id?: Vec<u8>",
    l.run_id AS "run_id?: Vec<u8>",
    'is `' || l.status || '`, and its record says `' || coalesce(r.status, 'nothing') || '` or else differs' AS "detail!: String"
FROM run_heads l
LEFT JOIN runs r ON r.run_key = l.run_key
WHERE r.run_id IS DISTINCT FROM l.run_id
   OR r.session_key IS DISTINCT FROM l.session_key
   OR r.session_id IS DISTINCT FROM l.session_id
   OR r.status IS DISTINCT FROM l.status
   OR r.attempt IS DISTINCT FROM l.attempt
   OR r.settled_seq IS NOT NULL
LIMIT ?1
