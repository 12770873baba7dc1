-- Active runs under another owner that is gone. A local owner's lease counts only while its process
-- lives (rules R8).
SELECT
    l.run_key AS "run_key!",
    l.run_id AS "run_id!"
FROM session_heads INDEXED BY session_heads_active
CROSS JOIN run_heads l ON l.run_key = session_heads.active_run_key
WHERE session_heads.active_run_key IS NOT NULL
  AND session_heads.owner_id <> ?1
  AND (
    session_heads.owner_expires_at IS NULL
    OR session_heads.owner_expires_at <= ?2
    OR (
        (session_heads.owner_id LIKE 'cli:%' OR session_heads.owner_id LIKE 'acp-stdio:%')
        AND session_heads.owner_id NOT IN (SELECT value FROM json_each(?3))
    )
  )
  AND l.run_key > ?4
ORDER BY l.run_key
LIMIT ?5
