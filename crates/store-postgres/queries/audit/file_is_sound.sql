SELECT
    NULL::uuid AS "session_id?",
    NULL::uuid AS "run_id?",
    'the index `' || c.relname || '` is not valid' AS "detail!"
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND NOT i.indisvalid
LIMIT $1
