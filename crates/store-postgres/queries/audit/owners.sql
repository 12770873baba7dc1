SELECT
    h.session_id AS "session_id?",
    NULL::uuid AS "run_id?",
    'has epoch ' || coalesce(h.owner_epoch, 0) || ' under the owner `' || coalesce(h.owner_id, '') || '`' AS "detail!"
FROM session_heads h
WHERE (h.owner_id IS NULL) <> (h.owner_epoch IS NULL)
   OR h.owner_epoch < 1
   OR h.owner_id IS NULL AND (h.owner_expires_at IS NOT NULL OR h.active_run_key IS NOT NULL)
LIMIT $1
