SELECT
    i.session_id AS "session_id?",
    i.run_id AS "run_id?",
    'has an open question of attempt ' || i.attempt || ', which nobody waits for' AS "detail!"
FROM interactions i
LEFT JOIN run_heads l ON l.run_key = i.run_key
WHERE i.status = 'pending'
  AND (
    l.claim_attempt IS DISTINCT FROM i.attempt
    OR l.status NOT IN ('claimed', 'running')
  )
LIMIT $1
