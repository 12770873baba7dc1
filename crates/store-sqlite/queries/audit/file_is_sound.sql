SELECT
    NULL AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    '' || i.integrity_check AS "detail!: String"
FROM pragma_integrity_check i
WHERE i.integrity_check <> 'ok'
LIMIT ?1
