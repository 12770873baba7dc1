//! The demo agent: a coding agent without a model, which does what a script in the prompt says.
//! It speaks the Agent Client Protocol on stdio like any other agent and is run through the `acp`
//! backend, so it must never take a short cut through the control plane.
//!
//! The script is the last paragraph of the prompt (what comes before it, up to a blank line or a
//! heading in brackets, is context), steps one a line or divided by `;`:
//!
//! | step | does |
//! | --- | --- |
//! | `say TEXT`, `think TEXT` | one message, one thought |
//! | `plan A \| B \| C` | a plan of these entries |
//! | `tool NAME {json}` | a tool call: pending, running, result |
//! | `begin NAME {json}` | a tool call that is left running |
//! | `ask TOOL {json}` | asks for permission; on allow calls the tool, on reject says so |
//! | `two-asks` | two permission questions open at the same time |
//! | `late-ask TOOL {json}` | waits for a cancel, and only then asks |
//! | `stream N [EVERY_MS]` | N numbered chunks |
//! | `slow SECONDS` | a tick every 100 ms for that long |
//! | `write PATH TEXT`, `read PATH` | a file inside the working directory |
//! | `usage` | a usage report |
//! | `remember` | says the earlier prompts of the session |
//! | `noise` | lines on stdout that are no JSON-RPC |
//! | `long BYTES` | one message of that size in one line |
//! | `flood N` | N updates as fast as they are read |
//! | `crash [CODE]`, `exit` | ends the process in mid-turn: by abort or with CODE, or with 0 |
//! | `hang` | no output for ever, but can be cancelled |
//! | `ignore-cancel SECONDS` | ticks and is deaf to a cancel for that long |
//! | `spawn` | leaves a child process in a session of its own |
//! | `fail MESSAGE` | answers the prompt with a JSON-RPC error |
//!
//! `\;` is a semicolon inside a text. A prompt without a script gets a friendly answer.

mod agent;
mod canned;
mod files;
mod memory;
mod script;
mod turn;
mod updates;

#[cfg(test)]
mod tests;

pub(crate) use agent::{Options, serve_stdio};
