SELECT
    r.session_id AS "session_id?",
    r.run_id AS "run_id?",
    'its artifact ' || a.artifact_key || ' is not what its row says' AS "detail!"
FROM artifacts a
JOIN runs r ON r.run_key = a.run_key
WHERE a.encoding NOT IN ('text', 'base64')
   OR a.attempt NOT BETWEEN 1 AND r.attempt
   OR (a.encoding = 'text' AND octet_length(a.content) <> a.bytes)
   OR (a.encoding = 'base64' AND octet_length(a.content) / 4 * 3 NOT BETWEEN a.bytes AND a.bytes + 2)
LIMIT $1
