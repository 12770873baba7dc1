-- A row that another transaction holds is left alone: its run moves on just now. What was changed since
-- the statement began is looked at again before it is locked.
WITH free AS MATERIALIZED (
    SELECT run_key
    FROM runs
    WHERE run_key = ANY($2)
      AND status = 'requested'
    ORDER BY run_key
    FOR UPDATE SKIP LOCKED
)
UPDATE runs r
SET unservable = $1
FROM free
WHERE r.run_key = free.run_key
