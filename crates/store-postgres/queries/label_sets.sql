-- The distinct label sets of a pool, each found by one step down the index: the cost grows with the
-- label sets in use, not with the queue.
WITH RECURSIVE sets (label_key, labels) AS (
    (
        SELECT label_key, labels FROM run_queue
        WHERE pool = $1 AND executor_kind = $2
        ORDER BY label_key
        LIMIT 1
    )
    UNION ALL
    SELECT next.label_key, next.labels
    FROM sets
    CROSS JOIN LATERAL (
        SELECT q.label_key, q.labels FROM run_queue q
        WHERE q.pool = $1 AND q.executor_kind = $2 AND q.label_key > sets.label_key
        ORDER BY q.label_key
        LIMIT 1
    ) AS next
)
SELECT label_key AS "label_key!", labels AS "labels!" FROM sets
