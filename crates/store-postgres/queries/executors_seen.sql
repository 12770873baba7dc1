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
    NULL::uuid AS "last_run_id?",
    NULL::uuid AS "last_session_id?",
    NULL::text AS "last_namespace?"
FROM executors e
WHERE e.last_seen > $1
