-- The forks of a session: a fold must not span the number that one begins after.
CREATE INDEX sessions_forks ON sessions (forked_from_session_id, forked_from_seq)
    WHERE forked_from_session_id IS NOT NULL;
