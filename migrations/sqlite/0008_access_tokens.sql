-- Who may call: a token's role, its namespace, and the digest of its secret, which is kept nowhere. They
-- stay to be read once they are revoked. A name is at most one token's that is not.
CREATE TABLE access_tokens (
    token_key INTEGER PRIMARY KEY NOT NULL,
    token_id BLOB NOT NULL UNIQUE CHECK (length(token_id) = 16),
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    namespace TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT
) STRICT;
CREATE UNIQUE INDEX access_tokens_of_name ON access_tokens (name) WHERE revoked_at IS NULL;
