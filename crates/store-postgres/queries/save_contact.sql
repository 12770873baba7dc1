-- A row that another transaction holds is left alone, and so is one that appeared meanwhile.
WITH free AS MATERIALIZED (
    SELECT executor_id
    FROM executors
    WHERE executor_id = $1
    FOR UPDATE SKIP LOCKED
),
known AS (
    UPDATE executors e SET
        instance_id = coalesce($2, e.instance_id),
        executor_kind = $3,
        pool = $4,
        labels = $5,
        process_id = coalesce($6, e.process_id),
        version = coalesce($7, e.version),
        capabilities = coalesce($8, e.capabilities),
        workspace = coalesce($9, e.workspace),
        max_runs = coalesce($10, e.max_runs),
        last_seen_at = $11,
        last_seen = $12
    FROM free
    WHERE e.executor_id = free.executor_id
)
INSERT INTO executors (
    executor_id,
    instance_id,
    executor_kind,
    pool,
    labels,
    process_id,
    version,
    capabilities,
    workspace,
    max_runs,
    last_seen_at,
    last_seen
)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12
WHERE NOT EXISTS (SELECT FROM executors WHERE executor_id = $1)
ON CONFLICT (executor_id) DO NOTHING
