-- Rules have an id of their own, say what a tool's arguments must look like, may deny, and stay to be
-- read once they are revoked. `created_by` is the interaction whose answer made the rule, `made_by` who
-- did. A rule of before lets its tool run whatever the arguments, and is known by its interaction. A
-- rule without a session covers its whole namespace.
ALTER TABLE approval_rules ALTER COLUMN created_by DROP NOT NULL;
ALTER TABLE approval_rules ADD COLUMN rule_id uuid;
ALTER TABLE approval_rules ADD COLUMN arguments text;
ALTER TABLE approval_rules ADD COLUMN decision text COLLATE "C";
ALTER TABLE approval_rules ADD COLUMN made_by text COLLATE "C";
ALTER TABLE approval_rules ADD COLUMN revoked_at bigint;
ALTER TABLE approval_rules ADD COLUMN revoked_by text COLLATE "C";
UPDATE approval_rules r SET
    rule_id = CASE WHEN EXISTS (
        SELECT 1 FROM approval_rules o
        WHERE o.created_by = r.created_by AND o.rule_key < r.rule_key
    ) THEN gen_random_uuid() ELSE created_by END,
    tool_name = replace(replace(replace(tool_name, '\', '\\'), '*', '\*'), '?', '\?'),
    decision = 'allow';
ALTER TABLE approval_rules ALTER COLUMN rule_id SET NOT NULL;
ALTER TABLE approval_rules ALTER COLUMN decision SET NOT NULL;
ALTER TABLE approval_rules ADD CONSTRAINT approval_rules_rule_id UNIQUE (rule_id);
DROP INDEX approval_rules_of_session;
DROP INDEX approval_rules_of_namespace;
CREATE INDEX approval_rules_by_session ON approval_rules (session_key, rule_id)
    WHERE session_key IS NOT NULL;
CREATE INDEX approval_rules_by_namespace ON approval_rules (namespace, rule_id);
CREATE INDEX approval_rules_of_namespace ON approval_rules (namespace)
    WHERE session_key IS NULL AND revoked_at IS NULL;
