//! Sizes and counts that bound what comes in (api.md, Errors and limits).

/// A JSON body of an ordinary request, in bytes.
pub const BODY_BYTES: usize = 1024 * 1024;
/// A body of events, snapshot, tape and complete, in bytes.
pub const UPLOAD_BYTES: usize = 16 * 1024 * 1024;
/// One event's payload, in bytes of JSON.
pub const EVENT_BYTES: usize = 256 * 1024;
/// A prompt, in bytes of UTF-8.
pub const PROMPT_BYTES: usize = 256 * 1024;
/// What an executor may say of its capabilities, and of its workspace, in bytes.
pub const SAID_BYTES: usize = 64 * 1024;
/// One line of an agent's output, in bytes.
pub const AGENT_LINE_BYTES: usize = 32 * 1024 * 1024;
/// Nesting of JSON.
pub const JSON_DEPTH: usize = 128;
/// Events in one upload.
pub const UPLOAD_EVENTS: usize = 1_000;
/// An event's id, in characters.
pub const EVENT_ID_CHARS: usize = 200;
/// An event's kind, in characters.
pub const EVENT_KIND_CHARS: usize = 100;
/// Free names: titles, labels, executor ids, pools, in characters.
pub const NAME_CHARS: usize = 200;
/// A page of a list, at most.
pub const PAGE_MAX: u32 = 200;
/// A page of a list where the client doesn't say.
pub const PAGE_DEFAULT: u32 = 50;
/// A page of events, at most (stores §4: readers' transactions stay short).
pub const EVENT_PAGE_MAX: u32 = 500;
/// Payload bytes of a page of events, at most; one event more may pass it.
pub const EVENT_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Payload bytes that a follower holds at once: what a reader that stops costs (fault 23).
pub const FOLLOW_PAGE_BYTES: usize = 256 * 1024;
/// Events folded into the tape in one transaction (rules R19).
pub const PROJECTION_STEP: u32 = 500;
/// Tape entries that a resume context carries.
pub const RESUME_TAIL_ENTRIES: usize = 40;
/// Bytes of tape that a resume context carries.
pub const RESUME_TAIL_BYTES: usize = 32 * 1024;
/// A claim's lease, in seconds: least, most, default (design §6).
pub const LEASE_SECONDS: (u32, u32, u32) = (5, 300, 60);
/// One text inside a resume context, in bytes; longer ones are cut.
pub const RESUME_TEXT_BYTES: usize = 8 * 1024;
/// How long a poll may be held, in seconds.
pub const WAIT_SECONDS_MAX: u32 = 60;
/// How long a question may stay open, in seconds: most and default.
pub const QUESTION_SECONDS: (u32, u32) = (86_400, 3_600);
/// Queued runs of one session.
pub const QUEUED_RUNS: u32 = 100;
/// What a tool was given or gave, as people see it, in bytes; longer is cut.
pub const DISPLAY_OUTPUT_BYTES: usize = 16 * 1024;
/// Bytes of message snapshot that a claim carries; of a larger one only the id is handed out.
pub const RESUME_SNAPSHOT_BYTES: u64 = 1024 * 1024;
/// Artifacts of one run.
pub const RUN_ARTIFACTS: usize = 16;
/// Bytes of the artifacts of one run.
pub const RUN_ARTIFACT_BYTES: u64 = 8 * 1024 * 1024;
/// Tape entries in one upload.
pub const TAPE_ENTRIES: usize = 1_000;
/// A form and a filled-in form, in bytes of JSON.
pub const FORM_BYTES: usize = 64 * 1024;
/// Fields of a form.
pub const FORM_FIELDS: usize = 100;
/// Rules of one session, and of one namespace, that stand at once.
pub const STANDING_RULES: u32 = 500;
/// Fields that a rule looks at.
pub const RULE_FIELDS: usize = 16;
/// A pattern of a rule, in characters.
pub const RULE_PATTERN_CHARS: usize = 2_000;
/// The arguments that a rule was made of, in bytes of JSON.
pub const RULE_ARGUMENT_BYTES: usize = 16 * 1024;
/// How long a token may hold that ends by itself, in seconds: ten years.
pub const TOKEN_SECONDS: u64 = 315_360_000;
/// What a question says, in characters.
pub const MESSAGE_CHARS: usize = 16_384;
