-- Who was heard of lately. Executors are few, and each has one row.
SELECT
    e.executor_id,
    e.instance_id,
    e.executor_kind,
    e.pool,
    e.labels,
    e.process_id,
    e.version,
    e.capabilities,
    e.workspace,
    e.max_runs,
    e.draining,
    e.last_seen_at,
    e.last_seen,
    NULL AS "last_run_id?: Vec<u8>",
    NULL AS "last_session_id?: Vec<u8>",
    NULL AS "last_namespace?: String"
FROM executors e
WHERE e.last_seen > ?
