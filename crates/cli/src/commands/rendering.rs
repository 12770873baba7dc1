//! Events as a person reads them: messages as they stream, everything else in a line or two.

use std::io;

use serde_json::Value;
use tapedeck_client::StreamEvent;

use crate::output::{Printer, Tone, one_line, printable, short};

/// Characters of arguments and of a tool's first lines.
const SHOWN: usize = 160;
/// Lines of a tool's output.
const SHOWN_LINES: usize = 6;

/// What the unfinished line on the screen holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Message,
    Thought,
    /// A question's prompt, behind which an answer is typed.
    Prompt,
}

/// Prints events one after the other.
#[derive(Debug)]
pub(crate) struct Rendering {
    printer: Printer,
    open: Open,
    /// The agent's id of the message that was printed last.
    message: Option<String>,
}

impl Rendering {
    /// On this printer.
    pub(crate) const fn new(printer: Printer) -> Self {
        Self {
            printer,
            open: Open::Nothing,
            message: None,
        }
    }

    /// Prints an event.
    pub(crate) fn event(&mut self, event: &StreamEvent) -> io::Result<()> {
        match event.kind.as_str() {
            "StreamDelta" => {
                let message = event.text("message_id").map(str::to_owned);
                if message != self.message {
                    self.close()?;
                    self.message = message;
                }
                self.stream(Open::Message, Tone::Plain, event.text("content"))
            }
            "ThinkingDelta" => self.stream(Open::Thought, Tone::Quiet, event.text("text")),
            "RunRequested" | "RunQueued" => {
                let prompt = short(event.text("prompt").unwrap_or_default(), SHOWN);
                self.line(Tone::Strong, "›", &prompt)
            }
            "RunClaimed" => {
                let executor = event.text("executor_id").unwrap_or("an executor");
                self.line(Tone::Quiet, "·", &format!("claimed by {executor}"))
            }
            "RunLeaseExpired" => {
                let text = "the executor's lease ran out";
                self.line(Tone::Alert, "!", text)
            }
            "ToolCallBegin" => {
                let name = event.text("tool_name").unwrap_or("a tool");
                let arguments = brief(event.data.get("arguments"));
                self.line(Tone::Strong, "▸", format!("{name} {arguments}").trim_end())
            }
            "ToolResultDelta" => self.result(event),
            "Plan" => self.plan(event),
            "ApprovalRequest" => {
                let question = Question::of(event);
                self.question(&question)?;
                match (question.is_cut(), &question.interaction_id) {
                    (true, Some(id)) => {
                        let command = format_args!("approvals show {id}");
                        let all = format!("all of it: {}", self.printer.command(command));
                        self.line(Tone::Quiet, " ", &all)
                    }
                    _ => Ok(()),
                }
            }
            "ApprovalResponse" => self.answer(event),
            "TurnCancelling" => self.line(Tone::Alert, "!", "cancelling"),
            "OwnerChanged" => {
                let owner = event.text("owner_id").unwrap_or("another process");
                self.line(Tone::Quiet, "·", &format!("the session is now {owner}'s"))
            }
            "CheckpointCaptured" => {
                let label = event
                    .text("label")
                    .map(|label| format!(" “{}”", one_line(label)));
                let text = format!("checkpoint{}", label.unwrap_or_default());
                self.line(Tone::Quiet, "·", &text)
            }
            "SessionRestored" => {
                let text = "the session was put back to a checkpoint";
                self.line(Tone::Alert, "!", text)
            }
            "SessionForked" => {
                let source = event
                    .text("forked_from_session_id")
                    .unwrap_or("another session");
                self.line(Tone::Quiet, "·", &format!("forked from {source}"))
            }
            "TurnStatusDelta" => match (event.text("status"), event.text("reason")) {
                (Some(status), Some(reason)) => {
                    let text = format!("{}: {reason}", status.replace('_', " "));
                    self.line(Tone::Quiet, "·", &text)
                }
                _ => Ok(()),
            },
            "Error" => self.line(Tone::Bad, "✗", event.text("error").unwrap_or("an error")),
            "TurnEnd" => self.turn_end(event),
            _ => Ok(()),
        }
    }

    /// Prints a line of our own.
    pub(crate) fn line(&mut self, tone: Tone, sign: &str, text: &str) -> io::Result<()> {
        self.close()?;
        let text = printable(text);
        let text = if tone == Tone::Quiet {
            self.printer.paint(tone, text)
        } else {
            text
        };
        self.printer
            .line(format!("{} {text}", self.printer.paint(tone, sign)))
    }

    /// Prints what is asked.
    pub(crate) fn question(&mut self, question: &Question) -> io::Result<()> {
        let text = match &question.asks {
            Asks::Tool { .. } => format!("asks to use {question}"),
            Asks::Form { message, .. } => format!("asks: {}", short(message, SHOWN)),
        };
        self.line(Tone::Alert, "?", &text)
    }

    /// Prints a question's prompt, which stays until anything else is printed.
    pub(crate) fn prompt(&mut self, text: &str) -> io::Result<()> {
        self.close()?;
        self.printer.text(self.printer.paint(Tone::Alert, text))?;
        self.open = Open::Prompt;
        Ok(())
    }

    /// Whether a prompt is the last thing on the screen.
    pub(crate) fn is_prompt(&self) -> bool {
        self.open == Open::Prompt
    }

    /// The person has ended the prompt's line.
    pub(crate) const fn entered(&mut self) {
        self.open = Open::Nothing;
    }

    /// Whether the line on the screen may go on.
    pub(crate) fn is_open(&self) -> bool {
        self.open != Open::Nothing
    }

    /// Ends a line that is still open.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        if self.open != Open::Nothing {
            self.open = Open::Nothing;
            self.printer.line("")?;
        }
        Ok(())
    }

    fn stream(&mut self, open: Open, tone: Tone, text: Option<&str>) -> io::Result<()> {
        if self.open != open {
            self.close()?;
        }
        let text = printable(text.unwrap_or_default());
        if text.is_empty() {
            return Ok(());
        }
        self.printer.text(self.printer.paint(tone, &text))?;
        self.open = if text.ends_with('\n') {
            Open::Nothing
        } else {
            open
        };
        Ok(())
    }

    fn result(&mut self, event: &StreamEvent) -> io::Result<()> {
        let failed = event.data.get("is_error") == Some(&Value::Bool(true));
        let text = match event.data.get("display_result") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(value) => value.to_string(),
        };
        let mut lines = text.lines();
        for line in lines.by_ref().take(SHOWN_LINES) {
            let tone = if failed { Tone::Bad } else { Tone::Quiet };
            self.line(tone, " ", &short(line, SHOWN))?;
        }
        match lines.count() {
            0 => Ok(()),
            more => self.line(Tone::Quiet, " ", &format!("… {more} more lines")),
        }
    }

    fn plan(&mut self, event: &StreamEvent) -> io::Result<()> {
        let entries = event.data.get("entries").and_then(Value::as_array);
        for entry in entries.into_iter().flatten() {
            let done = entry["status"] == "completed";
            let text = entry["content"].as_str().unwrap_or_default();
            let sign = if done { "■" } else { "□" };
            self.line(Tone::Quiet, sign, &short(text, SHOWN))?;
        }
        Ok(())
    }

    fn answer(&mut self, event: &StreamEvent) -> io::Result<()> {
        let approved = event.data.get("approved") == Some(&Value::Bool(true));
        let is_form = event.text("kind") == Some("question");
        let (tone, word) = match (approved, event.text("status")) {
            (true, _) if is_form => (Tone::Good, "answered"),
            (true, _) => (Tone::Good, "approved"),
            (false, Some(status @ ("expired" | "cancelled"))) => (Tone::Quiet, status),
            (false, _) if is_form => (Tone::Bad, "declined"),
            (false, _) => (Tone::Bad, "denied"),
        };
        let by = event
            .text("resolved_by")
            .map(|by| format!(" by {by}"))
            .unwrap_or_default();
        let feedback = event
            .text("feedback")
            .map(|text| format!(": {text}"))
            .unwrap_or_default();
        self.line(tone, "?", &format!("{word}{by}{feedback}"))
    }

    fn turn_end(&mut self, event: &StreamEvent) -> io::Result<()> {
        let status = event.text("run_status").unwrap_or("ended");
        let error = event
            .text("error")
            .map(|text| format!(": {text}"))
            .unwrap_or_default();
        let stopped = event
            .text("stop_reason")
            .filter(|reason| *reason != "end_turn" && status != "cancelled")
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default();
        let (tone, sign) = match status {
            "completed" if !stopped.is_empty() => (Tone::Alert, "✓"),
            "completed" => (Tone::Good, "✓"),
            "failed" => (Tone::Bad, "✗"),
            _ => (Tone::Alert, "!"),
        };
        self.line(tone, sign, &format!("{status}{stopped}{error}"))
    }
}

/// A question as its event carries it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    /// The executor's id of it.
    pub(crate) request_id: String,
    /// The server's id of it.
    pub(crate) interaction_id: Option<String>,
    /// What it asks for.
    pub(crate) asks: Asks,
}

/// What a question asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asks {
    /// To use a tool.
    Tool {
        /// Its name.
        name: String,
        /// What with, in a few words.
        arguments: String,
    },
    /// To fill in a form.
    Form {
        /// What it is for.
        message: String,
        /// Its JSON schema.
        schema: Value,
    },
}

impl Question {
    /// Reads the event.
    pub(crate) fn of(event: &StreamEvent) -> Self {
        let call = event.data.get("tool_call").unwrap_or(&Value::Null);
        Self {
            request_id: event.text("request_id").unwrap_or_default().to_owned(),
            interaction_id: event.text("interaction_id").map(str::to_owned),
            asks: if event.text("kind") == Some("question") {
                Asks::Form {
                    message: event.text("message").unwrap_or_default().to_owned(),
                    schema: event.data.get("form").cloned().unwrap_or_default(),
                }
            } else {
                Asks::Tool {
                    name: one_line(call["tool_name"].as_str().unwrap_or("a tool")),
                    arguments: brief(call.get("arguments")),
                }
            },
        }
    }

    /// Whether there is more to it than is shown.
    fn is_cut(&self) -> bool {
        match &self.asks {
            Asks::Tool { arguments, .. } => arguments.ends_with('…'),
            Asks::Form { message, .. } => short(message, SHOWN).ends_with('…'),
        }
    }
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.asks {
            Asks::Tool { name, arguments } => {
                let space = if arguments.is_empty() { "" } else { " " };
                write!(f, "{name}{space}{arguments}")
            }
            Asks::Form { message, .. } => f.write_str(message),
        }
    }
}

/// A value in a few words.
pub(crate) fn brief(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::Object(fields)) if fields.is_empty() => String::new(),
        Some(Value::String(text)) => short(&one_line(text), SHOWN),
        Some(value) => short(&value.to_string(), SHOWN),
    }
}

/// What an event has beside its envelope, in a few words.
pub(crate) fn payload(event: &StreamEvent) -> String {
    const ENVELOPE: [&str; 6] = [
        "type",
        "session_id",
        "run_id",
        "session_seq",
        "event_id",
        "timestamp",
    ];
    let mut payload = event.data.clone();
    payload.retain(|name, _| !ENVELOPE.contains(&name.as_str()));
    brief(Some(&payload.into()))
}
