-- A restore puts aside what ended after a number, however many runs came before: `runs_settled` finds
-- those that were active once, and this the few others.
CREATE INDEX runs_ended_queued ON runs (session_key, settled_seq)
    WHERE ended_queued = 1 AND superseded_at IS NULL;
