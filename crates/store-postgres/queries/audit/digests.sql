SELECT
    NULL::uuid AS "session_id?",
    NULL::uuid AS "run_id?",
    'a row of `' || d.place || '` holds something else than a digest of 32 bytes' AS "detail!"
FROM (
    SELECT 'events' AS place FROM events WHERE length(digest) <> 32
    UNION ALL
    SELECT 'runs' AS place FROM runs WHERE length(settled_token_hash) <> 32 OR length(settled_body_digest) <> 32
    UNION ALL
    SELECT 'run_heads' AS place FROM run_heads WHERE length(token_hash) <> 32 OR length(request_hash) <> 32
    UNION ALL
    SELECT 'claims' AS place FROM claims WHERE length(token_hash) <> 32 OR length(request_hash) <> 32
    UNION ALL
    SELECT 'interactions' AS place FROM interactions WHERE length(request_digest) <> 32
    UNION ALL
    SELECT 'artifacts' AS place FROM artifacts WHERE length(digest) <> 32
    UNION ALL
    SELECT 'access_tokens' AS place FROM access_tokens WHERE length(digest) <> 32
    UNION ALL
    SELECT 'idempotency_keys' AS place FROM idempotency_keys WHERE length(body_digest) <> 32
) AS d
LIMIT $1
