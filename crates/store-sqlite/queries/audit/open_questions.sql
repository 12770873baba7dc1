SELECT
    i.session_id AS "session_id?: Vec<u8>",
    i.run_id AS "run_id?: Vec<u8>",
    'has an open question of attempt ' || i.attempt || ', which nobody waits for' AS "detail!: String"
FROM interactions i
LEFT JOIN run_heads l ON l.run_key = i.run_key
WHERE i.status = 'pending'
  AND (
    l.claim_attempt IS DISTINCT FROM i.attempt
    OR l.status NOT IN ('claimed', 'running')
  )
LIMIT ?1
