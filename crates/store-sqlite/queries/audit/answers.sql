SELECT
    i.session_id AS "session_id?: Vec<u8>",
    i.run_id AS "run_id?: Vec<u8>",
    'its question is `' || i.status || '`, and the time of its end says otherwise' AS "detail!: String"
FROM interactions i
WHERE i.status NOT IN ('pending', 'approved', 'denied', 'expired', 'cancelled')
   OR (i.status = 'pending') <> (i.resolved_at IS NULL)
LIMIT ?1
