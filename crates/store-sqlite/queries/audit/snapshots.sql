SELECT
    r.session_id AS "session_id?: Vec<u8>",
    r.run_id AS "run_id?: Vec<u8>",
    'its message snapshot does not hold ' || m.message_count || ' messages' AS "detail!: String"
FROM message_snapshots m
JOIN runs r ON r.run_key = m.run_key
WHERE json_array_length(m.messages) <> m.message_count
LIMIT ?1
