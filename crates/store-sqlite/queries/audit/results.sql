SELECT
    NULL AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'the stored result of a `' || k.operation || '` is no object' AS "detail!: String"
FROM idempotency_keys k
WHERE json_type(k.result) <> 'object'
LIMIT ?1
