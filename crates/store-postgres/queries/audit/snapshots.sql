SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'its message snapshot does not hold ' || m.message_count || ' messages' AS "detail!"
FROM message_snapshots m
JOIN runs r ON r.run_key = m.run_key
WHERE json_array_length(m.messages::json) <> m.message_count
LIMIT $1
