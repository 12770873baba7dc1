-- A row that another claim holds is left alone, and so is one that appeared meanwhile: who comes next
-- records a later turn.
WITH free AS MATERIALIZED (
    SELECT queue_key
    FROM queue_turns
    WHERE pool = $1
      AND executor_kind = $2
      AND turn < $3
    FOR UPDATE SKIP LOCKED
),
known AS (
    UPDATE queue_turns t
    SET turn = $3
    FROM free
    WHERE t.queue_key = free.queue_key
)
INSERT INTO queue_turns (pool, executor_kind, turn)
SELECT $1, $2, $3
WHERE NOT EXISTS (SELECT FROM queue_turns WHERE pool = $1 AND executor_kind = $2)
ON CONFLICT (pool, executor_kind) DO NOTHING
