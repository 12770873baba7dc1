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
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (executor_id) DO UPDATE SET
    instance_id = coalesce(excluded.instance_id, instance_id),
    executor_kind = excluded.executor_kind,
    pool = excluded.pool,
    labels = excluded.labels,
    process_id = coalesce(excluded.process_id, process_id),
    version = coalesce(excluded.version, version),
    capabilities = coalesce(excluded.capabilities, capabilities),
    workspace = coalesce(excluded.workspace, workspace),
    max_runs = coalesce(excluded.max_runs, max_runs),
    last_seen_at = excluded.last_seen_at,
    last_seen = excluded.last_seen
