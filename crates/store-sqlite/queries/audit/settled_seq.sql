SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'is `' || r.status || '` and names event ' || coalesce(r.settled_seq, 0) || ' as its end' AS "detail!: String"
FROM runs r
LEFT JOIN events e ON e.session_key = r.session_key AND e.session_seq = r.settled_seq
WHERE (r.settled_seq IS NOT NULL) <> (r.status IN ('completed', 'failed', 'cancelled', 'interrupted'))
   OR (r.settled_seq IS NULL) <> (r.settled_at IS NULL)
   OR r.settled_seq IS NOT NULL
      AND (e.kind IS DISTINCT FROM 'TurnEnd' OR e.run_key IS DISTINCT FROM r.run_key)
LIMIT ?1
