SELECT
    s.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'is offered to other executors than its session names' AS "detail!: String"
FROM run_queue q
JOIN runs r ON r.run_key = q.run_key
JOIN sessions s ON s.session_key = q.session_key
WHERE q.pool IS DISTINCT FROM s.run_target ->> '$.executor.pool'
   OR q.executor_kind IS DISTINCT FROM s.run_target ->> '$.executor.executor_kind'
   OR q.pinned_executor IS DISTINCT FROM s.run_target ->> '$.executor.executor_id'
   OR q.label_key IS DISTINCT FROM s.run_target -> '$.executor.labels'
   OR q.audience <> coalesce(
        q.pinned_executor, CASE WHEN q.opens_at IS NULL THEN '' ELSE q.audience END
   )
   OR (q.opens_at IS NOT NULL AND (q.audience = '' OR q.pinned_executor IS NOT NULL))
   OR q.flow <> s.namespace || '/' || coalesce(q.pinned_executor, '')
LIMIT ?1
