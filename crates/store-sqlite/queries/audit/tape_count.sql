SELECT
    c.session_id AS "session_id?: Vec<u8>",
    NULL AS "run_id?: Vec<u8>",
    'has ' || c.active || ' entries on the active tape, and its state says ' || c.counted AS "detail!: String"
FROM (
    SELECT
        s.session_id,
        coalesce(t.state ->> '$.entries', 0) AS counted,
        (
            SELECT count(*) FROM tape_entries e
            WHERE e.session_key = s.session_key
              AND e.superseded_by_checkpoint_id IS NULL AND e.replaced = 0
        ) AS active
    FROM sessions s
    LEFT JOIN tape_states t ON t.session_key = s.session_key
) AS c
WHERE c.active <> c.counted
LIMIT ?1
