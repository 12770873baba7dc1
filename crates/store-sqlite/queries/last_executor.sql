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
    NULL AS "last_run_id?: Vec<u8>",
    NULL AS "last_session_id?: Vec<u8>",
    NULL AS "last_namespace?: String"
FROM executors e
WHERE e.executor_id = (
    SELECT newest.executor_id
    FROM (
        SELECT executor_id, settled_seq
        FROM runs
        WHERE session_key = ? AND settled_seq IS NOT NULL AND superseded_at IS NULL
          AND ended_queued = 0
        ORDER BY settled_seq DESC
        LIMIT 16
    ) AS newest
    WHERE newest.executor_id IS NOT NULL
    ORDER BY newest.settled_seq DESC
    LIMIT 1
)
