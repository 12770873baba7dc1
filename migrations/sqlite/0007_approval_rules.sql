-- Rules have an id of their own, say what a tool's arguments must look like, may deny, and stay to be
-- read once they are revoked. `created_by` is the interaction whose answer made the rule, `made_by` who
-- did. A rule of before lets its tool run whatever the arguments, and is known by its interaction. A
-- rule without a session covers its whole namespace.
CREATE TABLE new_approval_rules (
    rule_key INTEGER PRIMARY KEY NOT NULL,
    rule_id BLOB NOT NULL UNIQUE CHECK (length(rule_id) = 16),
    namespace TEXT NOT NULL,
    session_key INTEGER REFERENCES sessions (session_key) ON DELETE CASCADE,
    tool_name TEXT NOT NULL,
    arguments TEXT,
    decision TEXT NOT NULL,
    created_by BLOB,
    made_by TEXT,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    revoked_by TEXT
) STRICT;
INSERT INTO new_approval_rules (
    rule_key, rule_id, namespace, session_key, tool_name, decision, created_by, created_at
)
SELECT
    rule_key,
    CASE WHEN EXISTS (
        SELECT 1 FROM approval_rules o
        WHERE o.created_by = r.created_by AND o.rule_key < r.rule_key
    ) THEN randomblob(16) ELSE created_by END,
    namespace, session_key,
    replace(replace(replace(tool_name, '\', '\\'), '*', '\*'), '?', '\?'),
    'allow', created_by, created_at
FROM approval_rules r;
DROP TABLE approval_rules;
ALTER TABLE new_approval_rules RENAME TO approval_rules;
CREATE INDEX approval_rules_by_session ON approval_rules (session_key, rule_id)
    WHERE session_key IS NOT NULL;
CREATE INDEX approval_rules_by_namespace ON approval_rules (namespace, rule_id);
CREATE INDEX approval_rules_of_namespace ON approval_rules (namespace)
    WHERE session_key IS NULL AND revoked_at IS NULL;
