-- Rows in every table of the first released schema: live and settled runs, an open message, an
-- anchor, questions, rules and keys. Words, numbers and texts are such as that release wrote.

INSERT INTO deployment (
    id, deployment_id, log_id, boot_id, alive_at, created_at
) VALUES
    (
        1, x'018c2000000040008000000000000501', x'018c2000000040008000000000000502', 'boot-a',
        5000000, 1700000000000
    );

INSERT INTO sessions (
    session_key, session_id, namespace, title, approval_policy, agent, run_target, origin,
    metadata, tape_id, status, turn_status, active_run_id, last_run_id, last_run_status,
    last_interrupted_run_id, resume_from_event_id, queued_runs, queue_held, pending_interactions,
    checkpoint_count, created_at, updated_at, closed_at
) VALUES
    (
        3, x'018c2000000070008000000000000001', 'default', 'Ü, a "quoted" title 😀', 'interactive',
        '{"model":"m","temperature":1.0}',
        '{"workspace":{"kind":"local_path","path":"/srv/project"},"executor":{"kind":"local_attached","executor_kind":"local_cli","pool":"default","labels":{"gpu":"yes"},"executor_id":null},"isolation":null,"constraints":{},"annotations":{"ticket":"T-7"}}',
        'cli', '{"k":[1,null]}', x'018c2000000070008000000000000401', 'waiting_approval',
        'waiting_approval', x'018c2000000070008000000000000103',
        x'018c2000000070008000000000000102', 'interrupted', x'018c2000000070008000000000000102',
        'seq-12', 1, 0, 1, 0, 1700000000000, 1700000000009, NULL
    ),
    (
        4, x'018c2000000070008000000000000002', 'default', NULL, 'yolo', '{}', '{}', NULL, '{}',
        x'018c2000000070008000000000000402', 'created', 'queued',
        x'018c2000000070008000000000000105', NULL, NULL, NULL, NULL, 0, 1, 0, 0, 1700000000001,
        1700000000001, NULL
    ),
    (
        7, x'018c2000000070008000000000000003', 'other', 'closed', 'auto', '{}', '{}', 'console',
        '{}', x'018c2000000070008000000000000403', 'closed', 'idle', NULL, NULL, NULL, NULL, NULL,
        0, 0, 0, 0, 1700000000002, 1700000000003, 1700000000003
    );

INSERT INTO session_heads (
    session_key, session_id, head_seq, projection_epoch, owner_id, owner_epoch, owner_expires_at,
    active_run_key, last_activity_at
) VALUES
    (
        3, x'018c2000000070008000000000000001', 16, 0, 'server:first', 4, 5060000, 12,
        1700000000009
    ),
    (
        4, x'018c2000000070008000000000000002', 1, 0, 'server:first', 1, NULL, 14, 1700000000001
    ),
    (
        7, x'018c2000000070008000000000000003', 2, 0, NULL, NULL, NULL, NULL, 1700000000003
    );

INSERT INTO runs (
    run_key, run_id, session_key, session_id, namespace, parent_run_id, status, attempt, prompt,
    metadata, result, error, executor_id, requested_at, claimed_at, started_at, settled_at,
    recovery_reclaimable, recovery_reason, recovered_at, superseded_at,
    superseded_by_checkpoint_id, admitted_seq, settled_seq, unservable, event_count,
    settled_attempt, settled_token_hash, settled_body_digest, ended_queued
) VALUES
    (
        10, x'018c2000000070008000000000000101', 3, x'018c2000000070008000000000000001', 'default',
        NULL, 'completed', 1, 'prompt 1', '{"m":1}', '{"text":"done","n":1.0}', NULL, 'e1',
        1700000000001, 1700000000001, 1700000000002, 1700000000003, NULL, NULL, NULL, NULL, NULL,
        2, 8, NULL, 4, 1, x'0101010101010101010101010101010101010101010101010101010101010101',
        x'0202020202020202020202020202020202020202020202020202020202020202', 0
    ),
    (
        11, x'018c2000000070008000000000000102', 3, x'018c2000000070008000000000000001', 'default',
        x'018c2000000070008000000000000101', 'interrupted', 2, 'prompt 2', '{}', NULL,
        'the lease ran out', 'e1', 1700000000002, 1700000000004, 1700000000005, 1700000000006, 1,
        'lease_expired', 1700000000006, NULL, NULL, 9, 12, NULL, 1, 2,
        x'0303030303030303030303030303030303030303030303030303030303030303', NULL, 0
    ),
    (
        12, x'018c2000000070008000000000000103', 3, x'018c2000000070008000000000000001', 'default',
        x'018c2000000070008000000000000102', 'running', 1, 'prompt 3', '{}', NULL, NULL, 'e1',
        1700000000003, 1700000000007, 1700000000008, NULL, NULL, NULL, NULL, NULL, NULL, 13, NULL,
        NULL, 0, NULL, NULL, NULL, 0
    ),
    (
        13, x'018c2000000070008000000000000104', 3, x'018c2000000070008000000000000001', 'default',
        NULL, 'queued', 0, 'prompt 4', '{}', NULL, NULL, NULL, 1700000000004, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, 15, NULL, NULL, 0, NULL, NULL, NULL, 0
    ),
    (
        14, x'018c2000000070008000000000000105', 4, x'018c2000000070008000000000000002', 'default',
        NULL, 'requested', 0, 'prompt 5', '{}', NULL, NULL, NULL, 1700000000005, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, 1, NULL, 'labels', 0, NULL, NULL, NULL, 0
    ),
    (
        15, x'018c2000000070008000000000000106', 3, x'018c2000000070008000000000000001', 'default',
        NULL, 'cancelled', 0, 'prompt 6', '{}', NULL, NULL, NULL, 1700000000006, NULL, NULL,
        1700000000007, NULL, NULL, NULL, NULL, NULL, 14, 16, NULL, 0, NULL, NULL, NULL, 1
    );

INSERT INTO run_materials (
    run_key, resume_context, agent_state
) VALUES
    (
        10, NULL, '{"session":"abc"}'
    ),
    (
        12, '{"composed_prompt":"go on"}', NULL
    );

INSERT INTO run_heads (
    run_key, run_id, session_key, session_id, status, ready_at, attempt, attempts_used,
    unacknowledged, max_attempts, place, event_count, has_output, pending_interactions,
    claim_attempt, token_hash, executor_id, instance_id, request_hash, acknowledged, replayed,
    lease_expires_at, lease_ms, cancel_deadline
) VALUES
    (
        12, x'018c2000000070008000000000000103', 3, x'018c2000000070008000000000000001', 'running',
        NULL, 1, 1, 0, 3, 0, 1, 1, 1, 1,
        x'0404040404040404040404040404040404040404040404040404040404040404', 'e1', 'e1-a',
        x'0505050505050505050505050505050505050505050505050505050505050505', 1, 0, 5030000, 60000,
        NULL
    ),
    (
        13, x'018c2000000070008000000000000104', 3, x'018c2000000070008000000000000001', 'queued',
        NULL, 0, 0, 0, 3, -1, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    ),
    (
        14, x'018c2000000070008000000000000105', 4, x'018c2000000070008000000000000002',
        'requested', 5000001, 0, 0, 0, 3, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL
    );

INSERT INTO claims (
    claim_key, run_key, attempt, token_hash, request_hash, executor_id, instance_id, claimed_at
) VALUES
    (
        1, 10, 1, x'0101010101010101010101010101010101010101010101010101010101010101',
        x'0202020202020202020202020202020202020202020202020202020202020202', 'e1', 'e1-a', 4900000
    ),
    (
        2, 11, 2, x'0303030303030303030303030303030303030303030303030303030303030303',
        x'0606060606060606060606060606060606060606060606060606060606060606', 'e1', NULL, 4950000
    ),
    (
        3, 12, 1, x'0404040404040404040404040404040404040404040404040404040404040404',
        x'0505050505050505050505050505050505050505050505050505050505050505', 'e1', 'e1-a', 4990000
    );

INSERT INTO run_queue (
    run_key, session_key, pool, executor_kind, label_key, pinned_executor, ready_at
) VALUES
    (
        14, 4, 'default', 'local_cli', '{"gpu":"yes"}', NULL, 5000001
    );

INSERT INTO events (
    event_key, session_key, session_seq, run_key, event_id, kind, payload, digest, attempt,
    executor_id, trace_id, created_at, recorded_at
) VALUES
    (
        20, 3, 1, NULL, 'seq-1', 'SessionCreated', '{}', NULL, NULL, NULL, NULL, 1700000000001,
        1700000000002
    ),
    (
        21, 3, 2, 10, 'seq-2', 'RunRequested', '{"prompt":"prompt 1"}', NULL, NULL, NULL, NULL,
        1700000000002, 1700000000003
    ),
    (
        23, 3, 3, 10, 'seq-3', 'RunClaimed', '{"attempt":1}', NULL, NULL, NULL, NULL,
        1700000000003, 1700000000004
    ),
    (
        24, 3, 4, 10, 'a-1', 'StreamDelta', '{"content":"line\nand ü 😀","n":1.0}',
        x'1414141414141414141414141414141414141414141414141414141414141414', 1, 'e1', 't',
        1700000000004, 1700000000005
    ),
    (
        25, 3, 5, 10, 'a-2', 'ToolCallBegin', '{"call_id":"c1","tool_name":"shell"}',
        x'1515151515151515151515151515151515151515151515151515151515151515', 1, 'e1', NULL,
        1700000000005, 1700000000006
    ),
    (
        26, 3, 6, 10, 'a-3', 'ToolResultDelta', '{"call_id":"c1","display_result":"out"}',
        x'1616161616161616161616161616161616161616161616161616161616161616', 1, 'e1', NULL,
        1700000000006, 1700000000007
    ),
    (
        27, 3, 7, 10, 'a-4', 'ToolCallEnd', '{"call_id":"c1","status":"completed"}',
        x'1717171717171717171717171717171717171717171717171717171717171717', 1, 'e1', NULL,
        1700000000007, 1700000000008
    ),
    (
        28, 3, 8, 10, 'seq-8', 'RunCompleted', '{"run_status":"completed"}', NULL, NULL, NULL,
        NULL, 1700000000008, 1700000000009
    ),
    (
        29, 3, 9, 11, 'seq-9', 'RunRequested', '{"prompt":"prompt 2"}', NULL, NULL, NULL, NULL,
        1700000000009, 1700000000010
    ),
    (
        30, 3, 10, 11, 'seq-10', 'RunClaimed', '{"attempt":2}', NULL, NULL, NULL, NULL,
        1700000000010, 1700000000011
    ),
    (
        31, 3, 11, 11, 'a-5', 'ThinkingDelta', '{"text":"hm"}',
        x'1818181818181818181818181818181818181818181818181818181818181818', 2, 'e1', NULL,
        1700000000011, 1700000000012
    ),
    (
        32, 3, 12, 11, 'seq-12', 'RunInterrupted',
        '{"run_status":"interrupted","error":"the lease ran out"}', NULL, NULL, NULL, NULL,
        1700000000012, 1700000000013
    ),
    (
        33, 3, 13, 12, 'seq-13', 'RunRequested', '{"prompt":"prompt 3"}', NULL, NULL, NULL, NULL,
        1700000000013, 1700000000014
    ),
    (
        34, 3, 14, 15, 'seq-14', 'RunQueued', '{}', NULL, NULL, NULL, NULL, 1700000000014,
        1700000000015
    ),
    (
        35, 3, 15, 13, 'seq-15', 'RunQueued', '{}', NULL, NULL, NULL, NULL, 1700000000015,
        1700000000016
    ),
    (
        36, 3, 16, 15, 'seq-16', 'RunCancelled',
        '{"run_status":"cancelled","never_requested":true}', NULL, NULL, NULL, NULL, 1700000000016,
        1700000000017
    ),
    (
        22, 4, 1, 14, 'seq-1', 'RunRequested', '{"prompt":"prompt 5"}', NULL, NULL, NULL, NULL,
        1700000000001, 1700000000002
    );

INSERT INTO tape_states (
    session_key, state
) VALUES
    (
        3,
        '{"tape_seq":16,"position":8,"open_text":{"thinking":false,"message_id":"m1","text":"so far ü\u0000","run_id":"018c2000-0000-7000-8000-000000000103","first_seq":16,"created_at":"2023-11-14T22:13:20.016Z"},"open_calls":{"15":{"call_id":"c2","tool_name":"shell","arguments":{"n":1},"result":null,"is_error":false,"ended":false,"run_id":"018c2000-0000-7000-8000-000000000103","created_at":"2023-11-14T22:13:20.015Z"}}}'
    ),
    (
        4, '{"tape_seq":0,"position":0,"open_text":null,"open_calls":{}}'
    );

INSERT INTO tape_entries (
    entry_key, session_key, position, entry_id, kind, payload, anchor_type, run_id, first_seq,
    created_at, superseded_by_checkpoint_id
) VALUES
    (
        41, 3, 1, x'018c2000000040008000000000000341', 'user_message', '{"text":"prompt 1"}', NULL,
        x'018c2000000070008000000000000101', 2, 1700000000002, NULL
    ),
    (
        42, 3, 2, x'018c2000000040008000000000000342', 'assistant_message',
        '{"text":"line\nand ü 😀"}', NULL, x'018c2000000070008000000000000101', 4, 1700000000004,
        NULL
    ),
    (
        43, 3, 3, x'018c2000000040008000000000000343', 'tool_call',
        '{"call_id":"c1","tool_name":"shell","arguments":null,"result":"out","is_error":false}',
        NULL, x'018c2000000070008000000000000101', 5, 1700000000005, NULL
    ),
    (
        44, 3, 4, x'018c2000000040008000000000000344', 'run_end',
        '{"status":"completed","error":null}', NULL, x'018c2000000070008000000000000101', 8,
        1700000000008, NULL
    ),
    (
        46, 3, 5, x'018c2000000040008000000000000346', 'user_message', '{"text":"prompt 2"}', NULL,
        x'018c2000000070008000000000000102', 9, 1700000000009, NULL
    ),
    (
        45, 3, 6, x'018c2000000040008000000000000345', 'run_end',
        '{"status":"interrupted","error":"the lease ran out"}', NULL,
        x'018c2000000070008000000000000102', 12, 1700000000012, NULL
    ),
    (
        47, 3, 7, x'018c2000000040008000000000000347', 'anchor', '{"reason":"resume"}',
        'resume_boundary', x'018c2000000070008000000000000103', 13, 1700000000013, NULL
    ),
    (
        48, 3, 8, x'018c2000000040008000000000000348', 'plan', '{"entries":[]}', NULL, x'', 13,
        1700000000013, NULL
    );

INSERT INTO interactions (
    interaction_id, namespace, session_key, session_id, run_key, run_id, attempt, request_id,
    request_digest, kind, status, request, response, created_at, expires_at, deadline, resolved_at,
    resolved_by
) VALUES
    (
        x'018c2000000070008000000000000201', 'default', 3, x'018c2000000070008000000000000001', 10,
        x'018c2000000070008000000000000101', 1, 'q1',
        x'1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f', 'approval',
        'approved', '{"tool_call":{"tool_name":"shell"}}', '{"approved":true,"scope":"session"}',
        1700000000004, 1700000001004, 5001004, 1700000000005, 'ann'
    ),
    (
        x'018c2000000070008000000000000202', 'default', 3, x'018c2000000070008000000000000001', 12,
        x'018c2000000070008000000000000103', 1, 'q2',
        x'2020202020202020202020202020202020202020202020202020202020202020', 'approval', 'pending',
        '{"tool_call":{"tool_name":"shell"}}', NULL, 1700000000004, 1700000001004, 5001004, NULL,
        NULL
    );

INSERT INTO approval_rules (
    rule_key, namespace, session_key, tool_name, created_by, created_at
) VALUES
    (
        1, 'default', 3, 'shell', x'018c2000000070008000000000000201', 1700000000005
    ),
    (
        2, 'default', NULL, 'read', x'018c2000000070008000000000000201', 1700000000006
    );

INSERT INTO executors (
    executor_id, instance_id, executor_kind, pool, labels, process_id, version, capabilities,
    workspace, max_runs, draining, last_seen_at, last_seen
) VALUES
    (
        'e1', 'e1-a', 'local_cli', 'default', '{"gpu":"yes"}', 77, '0.1.0', '{"backends":["acp"]}',
        '{"kind":"scratch"}', 2, 1, 1700000000008, 4999000
    ),
    (
        'e2', NULL, 'local_cli', 'default', '{}', NULL, NULL, NULL, NULL, NULL, 0, 1700000000000,
        4000000
    );

INSERT INTO idempotency_keys (
    entry_key, namespace, principal, operation, key, body_digest, result, created_at
) VALUES
    (
        1, 'default', 'ann', 'prompt', 'k1',
        x'2828282828282828282828282828282828282828282828282828282828282828',
        '{"run_id":"018c2000-0000-7000-8000-000000000101"}', 1700000000001
    );
