SELECT
    NULL::uuid AS "session_id?",
    NULL::uuid AS "run_id?",
    'a row of `' || o.child || '` refers to row ' || o.key || ' of `' || o.parent || '`, which is not there' AS "detail!"
FROM (
    SELECT 'session_heads' AS child, c.session_key AS key, 'sessions' AS parent FROM session_heads c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'runs' AS child, c.session_key AS key, 'sessions' AS parent FROM runs c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'run_materials' AS child, c.run_key AS key, 'runs' AS parent FROM run_materials c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'run_heads' AS child, c.run_key AS key, 'runs' AS parent FROM run_heads c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'run_heads' AS child, c.session_key AS key, 'sessions' AS parent FROM run_heads c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'claims' AS child, c.run_key AS key, 'runs' AS parent FROM claims c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'run_queue' AS child, c.run_key AS key, 'runs' AS parent FROM run_queue c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'run_queue' AS child, c.session_key AS key, 'sessions' AS parent FROM run_queue c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'events' AS child, c.session_key AS key, 'sessions' AS parent FROM events c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'events' AS child, c.run_key AS key, 'runs' AS parent FROM events c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key) AND c.run_key IS NOT NULL
    UNION ALL
    SELECT 'tape_states' AS child, c.session_key AS key, 'sessions' AS parent FROM tape_states c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'tape_entries' AS child, c.session_key AS key, 'sessions' AS parent FROM tape_entries c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'interactions' AS child, c.session_key AS key, 'sessions' AS parent FROM interactions c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'interactions' AS child, c.run_key AS key, 'runs' AS parent FROM interactions c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'approval_rules' AS child, c.session_key AS key, 'sessions' AS parent FROM approval_rules c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key) AND c.session_key IS NOT NULL
    UNION ALL
    SELECT 'message_snapshots' AS child, c.run_key AS key, 'runs' AS parent FROM message_snapshots c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'message_snapshots' AS child, c.session_key AS key, 'sessions' AS parent FROM message_snapshots c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'artifacts' AS child, c.run_key AS key, 'runs' AS parent FROM artifacts c
    WHERE NOT EXISTS (SELECT FROM runs p WHERE p.run_key = c.run_key)
    UNION ALL
    SELECT 'artifacts' AS child, c.session_key AS key, 'sessions' AS parent FROM artifacts c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
    UNION ALL
    SELECT 'checkpoints' AS child, c.session_key AS key, 'sessions' AS parent FROM checkpoints c
    WHERE NOT EXISTS (SELECT FROM sessions p WHERE p.session_key = c.session_key)
) AS o
LIMIT $1
