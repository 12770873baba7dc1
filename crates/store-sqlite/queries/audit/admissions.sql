SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'event ' || r.admitted_seq || ' does not admit it' AS "detail!: String"
FROM runs r
LEFT JOIN events e ON e.session_key = r.session_key AND e.session_seq = r.admitted_seq
WHERE e.kind IS NULL OR e.kind NOT IN ('RunRequested', 'RunQueued')
   OR e.run_key IS DISTINCT FROM r.run_key
LIMIT ?1
