-- The distinct label keys of a pool, each found by one step down the index: the cost grows with the
-- label sets in use, not with the queue.
WITH RECURSIVE keys (label_key) AS (
    SELECT min(label_key) FROM run_queue WHERE pool = ?1 AND executor_kind = ?2
    UNION ALL
    SELECT (
        SELECT min(label_key) FROM run_queue
        WHERE pool = ?1 AND executor_kind = ?2 AND label_key > keys.label_key
    )
    FROM keys
    WHERE keys.label_key IS NOT NULL
)
SELECT label_key AS "label_key!: String" FROM keys WHERE label_key IS NOT NULL
