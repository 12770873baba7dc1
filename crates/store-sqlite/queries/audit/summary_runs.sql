WITH settled AS (
    SELECT
        session_key,
        run_id,
        status,
        settled_seq,
        row_number() OVER (PARTITION BY session_key ORDER BY settled_seq DESC) AS place
    FROM runs
    WHERE settled_seq IS NOT NULL AND superseded_at IS NULL AND ended_queued = 0
),
interrupted AS (
    SELECT
        session_key,
        run_id,
        row_number() OVER (PARTITION BY session_key ORDER BY settled_seq DESC) AS place
    FROM runs
    WHERE status = 'interrupted' AND superseded_at IS NULL
)
SELECT
    s.session_id AS "session_id?: Vec<u8>",
    coalesce(l.run_id, n.run_id) AS "run_id?: Vec<u8>",
    'is the newest run, and its session tells otherwise' AS "detail!: String"
FROM sessions s
LEFT JOIN run_heads l ON l.session_key = s.session_key AND l.status <> 'queued'
LEFT JOIN settled n ON n.session_key = s.session_key AND n.place = 1
LEFT JOIN interrupted i ON i.session_key = s.session_key AND i.place = 1
WHERE s.active_run_id IS DISTINCT FROM l.run_id
   OR s.last_run_id IS DISTINCT FROM coalesce(l.run_id, n.run_id)
   OR s.last_run_status IS DISTINCT FROM coalesce(l.status, n.status)
   OR s.last_interrupted_run_id IS DISTINCT FROM i.run_id
   OR s.resume_from_event_id IS DISTINCT FROM 'srv:' || n.settled_seq
LIMIT ?1
