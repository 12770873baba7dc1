//! The script language of the demo agent: prompt text in, steps out. It owns the grammar and the
//! bounds of its numbers, and must never do anything that a step says.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

const MAX_CHUNKS: u32 = 1_000_000;
const MAX_BYTES: usize = 64 << 20;
const MAX_SECONDS: f64 = 86_400.0;
const STREAM_EVERY: Duration = Duration::from_millis(20);

/// One thing that the agent does in a turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Say(String),
    Think(String),
    Plan(Vec<String>),
    Tool(Call),
    /// A call that begins and is left running.
    Begin(Call),
    Ask(Call),
    TwoAsks,
    /// Asks only once the turn is cancelled.
    LateAsk(Call),
    Stream {
        count: u32,
        every: Duration,
    },
    Slow(Duration),
    Write {
        path: String,
        text: String,
    },
    Read {
        path: String,
    },
    Usage,
    Remember,
    Noise,
    Long {
        bytes: usize,
    },
    Flood {
        count: u32,
    },
    Crash {
        code: Option<u8>,
    },
    Exit,
    Hang,
    IgnoreCancel(Duration),
    Spawn,
    Fail {
        message: String,
    },
}

/// A tool and what it is called with.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) arguments: Value,
}

/// What a prompt asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Script {
    /// The last paragraph is a script.
    Steps(Vec<Step>),
    /// The prompt is prose, given here without what stands before its last paragraph.
    Prose(String),
}

/// Why a script can't be performed; nothing of it has been done then.
#[derive(Debug, PartialEq)]
pub(super) struct ScriptError {
    step: String,
    reason: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cannot read the step `{}`: {}",
            self.step, self.reason
        )
    }
}

/// Reads the last paragraph of `prompt`. It is a script if its first step is one; from there on
/// every step has to be right, so that a slip in a long script isn't taken for prose.
pub(super) fn parse(prompt: &str) -> Result<Script, ScriptError> {
    let paragraph = last_paragraph(prompt);
    let mut steps = Vec::new();
    for line in paragraph.lines() {
        let mut rest = line.trim_start_matches([';', ' ', '\t']);
        while !rest.is_empty() {
            match step(rest) {
                Ok((step, after)) => {
                    steps.push(step);
                    rest = after.trim_start_matches([';', ' ', '\t']);
                }
                Err(_) if steps.is_empty() => return Ok(Script::Prose(paragraph)),
                Err(reason) => {
                    let step = until_semicolon(rest).0.chars().take(80).collect();
                    return Err(ScriptError { step, reason });
                }
            }
        }
    }
    if steps.is_empty() {
        Ok(Script::Prose(paragraph))
    } else {
        Ok(Script::Steps(steps))
    }
}

/// What stands after the last blank line or heading in brackets, as a context note has them.
pub(super) fn last_paragraph(prompt: &str) -> String {
    let starts = |line: &str| line.is_empty() || (line.starts_with('[') && line.ends_with(']'));
    let mut lines: Vec<&str> = prompt
        .trim()
        .lines()
        .rev()
        .map(str::trim)
        .take_while(|line| !starts(line))
        .collect();
    lines.reverse();
    lines.join("\n")
}

/// One step at the start of `input`, and what follows it.
fn step(input: &str) -> Result<(Step, &str), String> {
    let end = input.find([' ', '\t', ';']).unwrap_or(input.len());
    let (verb, after) = input.split_at(end);
    let of_call: Option<fn(Call) -> Step> = match verb {
        "tool" => Some(Step::Tool),
        "begin" => Some(Step::Begin),
        "ask" => Some(Step::Ask),
        "late-ask" => Some(Step::LateAsk),
        _ => None,
    };
    if let Some(step) = of_call {
        let (call, after) = call(after)?;
        return Ok((step(call), after));
    }
    let (argument, after) = until_semicolon(after);
    Ok((simple_step(verb, argument.trim())?, after))
}

fn simple_step(verb: &str, argument: &str) -> Result<Step, String> {
    let bare = |step: Step| {
        if argument.is_empty() {
            Ok(step)
        } else {
            Err(format!("`{verb}` takes nothing"))
        }
    };
    match verb {
        "say" => Ok(Step::Say(required(argument, "a text")?.to_owned())),
        "think" => Ok(Step::Think(required(argument, "a text")?.to_owned())),
        "plan" => plan(argument),
        "two-asks" => bare(Step::TwoAsks),
        "stream" => stream(argument),
        "slow" => Ok(Step::Slow(seconds(argument)?)),
        "write" => {
            let (path, text) = argument
                .split_once(char::is_whitespace)
                .unwrap_or((argument, ""));
            let path = required(path, "a path")?.to_owned();
            Ok(Step::Write {
                path,
                text: text.trim_start().to_owned(),
            })
        }
        "read" => Ok(Step::Read {
            path: required(argument, "a path")?.to_owned(),
        }),
        "usage" => bare(Step::Usage),
        "remember" => bare(Step::Remember),
        "noise" => bare(Step::Noise),
        "long" => Ok(Step::Long {
            bytes: number(argument, MAX_BYTES)?,
        }),
        "flood" => Ok(Step::Flood {
            count: number(argument, MAX_CHUNKS)?,
        }),
        "crash" if argument.is_empty() => Ok(Step::Crash { code: None }),
        "crash" => Ok(Step::Crash {
            code: Some(number(argument, u8::MAX)?),
        }),
        "exit" => bare(Step::Exit),
        "hang" => bare(Step::Hang),
        "ignore-cancel" => Ok(Step::IgnoreCancel(seconds(argument)?)),
        "spawn" => bare(Step::Spawn),
        "fail" => Ok(Step::Fail {
            message: required(argument, "a message")?.to_owned(),
        }),
        _ => Err("there is no such step".to_owned()),
    }
}

/// The text up to the next `;`, with `\;` read as a semicolon, and what follows.
fn until_semicolon(input: &str) -> (String, &str) {
    let mut text = String::new();
    let mut rest = input;
    while let Some(at) = rest.find(';') {
        let piece = &rest[..at];
        rest = &rest[at + 1..];
        let Some(piece) = piece.strip_suffix('\\') else {
            text.push_str(piece);
            return (text, rest);
        };
        text.push_str(piece);
        text.push(';');
    }
    text.push_str(rest);
    (text, "")
}

/// `NAME {json}`; the object may hold semicolons, and may be left out.
fn call(input: &str) -> Result<(Call, &str), String> {
    let input = input.trim_start();
    let end = input.find([' ', '\t', ';', '{']).unwrap_or(input.len());
    let (tool, after) = input.split_at(end);
    let tool = required(tool, "the name of a tool")?.to_owned();
    let after = after.trim_start();
    if !after.starts_with('{') {
        let (extra, after) = until_semicolon(after);
        return match extra.trim() {
            "" => Ok((
                Call {
                    tool,
                    arguments: Value::Object(Map::new()),
                },
                after,
            )),
            _ => Err("arguments are a JSON object".to_owned()),
        };
    }
    let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
    let arguments = match values.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => return Err(format!("arguments are no JSON: {error}")),
        None => return Err("arguments are a JSON object".to_owned()),
    };
    let (extra, after) = until_semicolon(&after[values.byte_offset()..]);
    if !extra.trim().is_empty() {
        return Err("nothing may follow the arguments".to_owned());
    }
    Ok((Call { tool, arguments }, after))
}

fn plan(argument: &str) -> Result<Step, String> {
    let entries: Vec<String> = argument
        .split('|')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect();
    if entries.is_empty() {
        return Err("`plan` needs an entry".to_owned());
    }
    Ok(Step::Plan(entries))
}

fn stream(argument: &str) -> Result<Step, String> {
    let mut words = argument.split_whitespace();
    let count = number(words.next().unwrap_or(""), MAX_CHUNKS)?;
    let every = match words.next() {
        Some(word) => Duration::from_millis(number(word, 86_400_000_u64)?),
        None => STREAM_EVERY,
    };
    match words.next() {
        None => Ok(Step::Stream { count, every }),
        Some(_) => Err("`stream` takes a count and milliseconds".to_owned()),
    }
}

fn required<'a>(argument: &'a str, what: &str) -> Result<&'a str, String> {
    if argument.is_empty() {
        Err(format!("it needs {what}"))
    } else {
        Ok(argument)
    }
}

fn number<N>(word: &str, most: N) -> Result<N, String>
where
    N: std::str::FromStr + PartialOrd + fmt::Display + Copy,
{
    match word.parse::<N>() {
        Ok(number) if number <= most => Ok(number),
        _ => Err(format!("it needs a number from 0 to {most}")),
    }
}

fn seconds(word: &str) -> Result<Duration, String> {
    match word.parse::<f64>() {
        Ok(seconds) if (0.0..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("it needs seconds from 0 to {MAX_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn steps(prompt: &str) -> Vec<Step> {
        match parse(prompt) {
            Ok(Script::Steps(steps)) => steps,
            other => panic!("`{prompt}` is no script but {other:?}"),
        }
    }

    fn call(tool: &str, arguments: Value) -> Call {
        Call {
            tool: tool.to_owned(),
            arguments,
        }
    }

    #[rstest]
    #[case("say hello there", Step::Say("hello there".into()))]
    #[case("think  twice ", Step::Think("twice".into()))]
    #[case("plan look | do it |", Step::Plan(vec!["look".into(), "do it".into()]))]
    #[case("tool grep", Step::Tool(call("grep", json!({}))))]
    #[case(r#"tool sh {"c": "a; b"}"#, Step::Tool(call("sh", json!({"c": "a; b"}))))]
    #[case(r#"ask write{"p": 1}"#, Step::Ask(call("write", json!({"p": 1}))))]
    #[case("begin sh", Step::Begin(call("sh", json!({}))))]
    #[case(r#"late-ask sh {"c": 1}"#, Step::LateAsk(call("sh", json!({"c": 1}))))]
    #[case("two-asks", Step::TwoAsks)]
    #[case("stream 3", Step::Stream { count: 3, every: Duration::from_millis(20) })]
    #[case("stream 3 250", Step::Stream { count: 3, every: Duration::from_millis(250) })]
    #[case("slow 0.5", Step::Slow(Duration::from_millis(500)))]
    #[case("write a/b.txt x  y", Step::Write { path: "a/b.txt".into(), text: "x  y".into() })]
    #[case("write empty", Step::Write { path: "empty".into(), text: String::new() })]
    #[case("read a b.txt", Step::Read { path: "a b.txt".into() })]
    #[case("usage", Step::Usage)]
    #[case("remember", Step::Remember)]
    #[case("noise", Step::Noise)]
    #[case("long 1024", Step::Long { bytes: 1024 })]
    #[case("flood 9", Step::Flood { count: 9 })]
    #[case("crash", Step::Crash { code: None })]
    #[case("crash 7", Step::Crash { code: Some(7) })]
    #[case("exit", Step::Exit)]
    #[case("hang", Step::Hang)]
    #[case("ignore-cancel 2", Step::IgnoreCancel(Duration::from_secs(2)))]
    #[case("spawn", Step::Spawn)]
    #[case("fail no luck", Step::Fail { message: "no luck".into() })]
    fn a_step_is_read(#[case] prompt: &str, #[case] expected: Step) {
        assert_eq!(steps(prompt), [expected]);
    }

    #[rstest]
    #[case("say a; say b", &["a", "b"])]
    #[case("say a\nsay b", &["a", "b"])]
    #[case(" say a ;; \n ; say b;\n", &["a", "b"])]
    #[case(r"say a\; b; say c", &["a; b", "c"])]
    #[case("Earlier:\nsay old\n\nsay new", &["new"])]
    #[case("say old\n   \n\n  say new\n\n", &["new"])]
    #[case("[Record, oldest first]\nsay old\n\n[Request]\nsay new", &["new"])]
    fn steps_are_divided_and_only_the_last_paragraph_counts(
        #[case] prompt: &str,
        #[case] said: &[&str],
    ) {
        let expected: Vec<Step> = said
            .iter()
            .map(|text| Step::Say((*text).to_owned()))
            .collect();
        assert_eq!(steps(prompt), expected);
    }

    #[rstest]
    #[case("tool a {\"x\": \";\"}; say b")]
    #[case("tool a {\"x\": \";\"}\nsay b")]
    fn a_semicolon_inside_arguments_divides_nothing(#[case] prompt: &str) {
        let expected = [
            Step::Tool(call("a", json!({"x": ";"}))),
            Step::Say("b".into()),
        ];
        assert_eq!(steps(prompt), expected);
    }

    #[rstest]
    #[case("")]
    #[case("  \n ")]
    #[case("Continue from the last known state.")]
    #[case("Say hello")]
    #[case("crash on start-up, please look")]
    #[case("say old\n\nThank you.")]
    #[case("hang on")]
    fn prose_is_no_script(#[case] prompt: &str) {
        let Ok(Script::Prose(text)) = parse(prompt) else {
            panic!("`{prompt}` was read as script")
        };
        assert_eq!(text, last_paragraph(prompt));
    }

    #[rstest]
    #[case("say a; jump", "jump", "no such step")]
    #[case("say a; slow", "slow", "seconds")]
    #[case("say a; slow -1", "slow -1", "seconds")]
    #[case("say a; slow NaN", "slow NaN", "seconds")]
    #[case("say a; crash 256", "crash 256", "from 0 to 255")]
    #[case("say a; long 99999999999", "long 99999999999", "from 0 to")]
    #[case("say a; stream 1 2 3", "stream 1 2 3", "milliseconds")]
    #[case("say a; plan |", "plan |", "entry")]
    #[case("say a; exit 3", "exit 3", "takes nothing")]
    #[case("say a; tool", "tool", "name of a tool")]
    #[case("say a; tool x {\"y\"", "tool x {\"y\"", "no JSON")]
    #[case("say a; tool x {} y", "tool x {} y", "nothing may follow")]
    #[case("say a; ask x y", "ask x y", "JSON object")]
    fn a_slip_after_the_first_step_is_named(
        #[case] prompt: &str,
        #[case] step: &str,
        #[case] reason: &str,
    ) {
        let error = parse(prompt).unwrap_err();
        assert_eq!(error.step, step);
        assert!(error.reason.contains(reason), "{error}");
    }
}
