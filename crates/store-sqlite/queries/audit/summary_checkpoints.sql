WITH active AS (
    SELECT
        session_key,
        checkpoint_id,
        label,
        count(*) OVER (PARTITION BY session_key) AS checkpoints,
        row_number() OVER (
            PARTITION BY session_key ORDER BY session_seq DESC, checkpoint_key DESC
        ) AS place
    FROM checkpoints
    WHERE superseded_at IS NULL AND deleted_at IS NULL
)
SELECT
    s.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'has ' || coalesce(c.checkpoints, 0) || ' checkpoints, and its summary tells otherwise' AS "detail!: String"
FROM sessions s
LEFT JOIN active c ON c.session_key = s.session_key AND c.place = 1
WHERE s.checkpoint_count <> coalesce(c.checkpoints, 0)
   OR s.latest_checkpoint_id IS DISTINCT FROM c.checkpoint_id
   OR s.latest_checkpoint_label IS DISTINCT FROM c.label
LIMIT ?1
