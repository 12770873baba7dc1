SELECT
    NULL::uuid AS "session_id?",
    NULL::uuid AS "run_id?",
    'the stored result of a `' || k.operation || '` is no object' AS "detail!"
FROM idempotency_keys k
WHERE json_typeof(k.result::json) <> 'object'
LIMIT $1
