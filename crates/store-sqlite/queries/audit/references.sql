SELECT
    NULL AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'a row of `' || f."table" || '` refers to a row of `' || f.parent || '` that is not there' AS "detail!: String"
FROM pragma_foreign_key_check f
LIMIT ?1
