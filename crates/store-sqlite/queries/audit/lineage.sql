SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'continues a run that is not an earlier one of its session' AS "detail!: String"
FROM runs r
LEFT JOIN runs p ON p.run_id = r.parent_run_id
WHERE r.parent_run_id IS NOT NULL
  AND (p.session_key IS DISTINCT FROM r.session_key OR coalesce(p.settled_seq, 0) = 0
       OR p.settled_seq >= r.admitted_seq)
LIMIT ?1
