-- With ?2 the first name itself is part of the page.
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
    r.run_id AS "last_run_id?",
    r.session_id AS "last_session_id?",
    r.namespace AS "last_namespace?"
FROM executors e
LEFT JOIN runs r ON r.run_key = (
    SELECT c.run_key
    FROM claims c
    WHERE c.executor_id = e.executor_id
    ORDER BY c.claim_key DESC
    LIMIT 1
)
WHERE e.executor_id >= ?1
  AND (?2 OR e.executor_id > ?1)
ORDER BY e.executor_id
LIMIT ?3
