SELECT
    l.session_id AS "session_id?: Vec<u8>",
    l.run_id AS "run_id?: Vec<u8>",
    'is held under attempt ' || coalesce(l.claim_attempt, 0) || ', and no claim is recorded like that' AS "detail!: String"
FROM run_heads l
LEFT JOIN claims c ON c.run_key = l.run_key AND c.attempt = l.claim_attempt
WHERE l.status IN ('claimed', 'running', 'cancelling')
  AND (
    c.token_hash IS DISTINCT FROM l.token_hash
    OR c.request_hash IS DISTINCT FROM l.request_hash
    OR c.executor_id IS DISTINCT FROM l.executor_id
    OR c.instance_id IS DISTINCT FROM l.instance_id
  )
LIMIT ?1
