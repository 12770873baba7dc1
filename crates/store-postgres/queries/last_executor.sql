-- Who last had a run of a session; the newest few runs are looked at.
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
WHERE e.executor_id = (
    SELECT newest.executor_id
    FROM (
        SELECT executor_id, settled_seq
        FROM runs
        WHERE session_key = $1 AND settled_seq IS NOT NULL AND superseded_at IS NULL
          AND NOT ended_queued
        ORDER BY settled_seq DESC
        LIMIT 16
    ) AS newest
    WHERE newest.executor_id IS NOT NULL
    ORDER BY newest.settled_seq DESC
    LIMIT 1
)
