SELECT
    i.session_id AS "session_id?: Vec<u8>",
    i.run_id AS "run_id?: Vec<u8>",
    'its question ran out ' || (d.alive_at - i.deadline) || ' ms ago, and nobody ended it' AS "detail!: String"
FROM interactions i
CROSS JOIN deployment d
WHERE i.status = 'pending' AND i.deadline < d.alive_at - ?2
LIMIT ?1
