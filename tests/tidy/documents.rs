//! That the documents name everything a caller or an operator can meet. What there is comes from
//! the types, the binary and the configuration itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use tapedeck_control_plane::commands;
use tapedeck_domain::event::EventKind;
use tapedeck_protocol::ErrorCode;

use crate::source::{assert_none, files, has_extension, mentions, read, root, rust, under};

/// All a person who uses Tapedeck reads.
fn manual() -> String {
    let mut text = read("README.md").to_owned();
    for file in under("docs/").filter(|file| !file.path.starts_with("docs/adr/")) {
        text.push_str(file.text());
    }
    text
}

#[test]
fn every_error_code_is_documented() {
    let reference = read("docs/api.md");
    let missing: Vec<_> = ErrorCode::ALL
        .iter()
        .map(|code| serde_json::to_value(code).unwrap())
        .filter_map(|code| code.as_str().map(str::to_owned))
        .filter(|code| !reference.contains(&format!("`{code}`")))
        .collect();
    assert_none("error codes missing in docs/api.md", &missing);
}

#[test]
fn every_event_kind_is_documented() {
    let manual = manual();
    let missing: Vec<_> = EventKind::ALL
        .iter()
        .map(|kind| kind.as_str())
        .filter(|kind| !manual.contains(&format!("`{kind}`")))
        .collect();
    assert_none("event kinds missing in docs/", &missing);
}

/// What the first cells of a document's tables name.
fn first_cells(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

#[test]
fn every_command_of_the_one_list_has_its_row_among_the_write_paths() {
    let rows = first_cells(read("docs/write-paths.md"));
    let missing: Vec<_> = commands::ALL
        .iter()
        .filter(|name| rows.iter().filter(|row| row == name).count() != 1)
        .collect();
    assert_none("commands without one row in docs/write-paths.md", &missing);
    let strange: Vec<_> = rows
        .iter()
        .filter(|row| !commands::ALL.contains(row))
        .collect();
    assert_none("rows in docs/write-paths.md that are no commands", &strange);
}

/// The help of a command, as a person asks for it.
pub(crate) fn help(path: &[String]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tapedeck"))
        .args(path)
        .arg("--help")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "`tapedeck {} --help` fails: {}",
        path.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The names under a help text's `Commands:`.
fn subcommands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// A command as the words after `tapedeck`; a group of commands does nothing by itself.
struct Page {
    command: String,
    help: String,
    is_group: bool,
}

/// The help of the binary, page by page.
fn pages() -> Vec<Page> {
    let mut open = vec![Vec::new()];
    let mut pages = Vec::new();
    while let Some(path) = open.pop() {
        let help = help(&path);
        let below = subcommands(&help);
        pages.push(Page {
            command: path.join(" "),
            is_group: !below.is_empty(),
            help,
        });
        open.extend(
            below
                .into_iter()
                .map(|name| [path.clone(), vec![name]].concat()),
        );
    }
    pages
}

#[test]
fn every_command_is_documented() {
    let manual = manual();
    let pages = pages();
    assert!(pages.len() > 1, "the binary's help lists no commands");
    let missing: Vec<_> = pages
        .iter()
        .filter(|page| !page.is_group)
        .map(|page| format!("tapedeck {}", page.command))
        .filter(|command| !mentions(&manual, command))
        .collect();
    assert_none("commands that neither the README nor docs/ shows", &missing);
}

#[test]
fn the_help_of_every_command_has_examples() {
    let pages = pages();
    let bare: Vec<_> = pages
        .iter()
        .filter(|page| !page.is_group)
        .filter(|page| {
            let mut below = page.help.lines().skip_while(|line| *line != "Examples:");
            !below.any(|line| line.starts_with("  tapedeck ") || line.contains("| tapedeck "))
        })
        .map(|page| format!("tapedeck {}", page.command))
        .collect();
    assert_none("commands whose help shows no example", &bare);
}

/// The words in a text that start as our variables do.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    const PREFIX: &str = "TAPEDECK_";
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let end = text[at..]
            .find(|c| !part(c))
            .map_or(text.len(), |end| at + end);
        (end > at + PREFIX.len()).then(|| &text[at..end])
    })
}

/// The fields of the structs that a configuration file is read into.
fn fields(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !(line.starts_with("#[derive(") && line.contains("Deserialize")) {
            continue;
        }
        let body = lines
            .by_ref()
            .skip_while(|line| line.starts_with('#'))
            .take_while(|line| *line != "}");
        found.extend(body.filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let (name, _) = line.trim_start_matches("pub(crate) ").split_once(':')?;
            let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            (!name.is_empty() && name.chars().all(part)).then_some(name)
        }));
    }
    found
}

#[test]
fn every_setting_is_documented() {
    let mut settings = BTreeSet::new();
    for page in &pages() {
        settings.extend(variables(&page.help).map(str::to_owned));
    }
    for file in rust().filter(|file| file.path.starts_with("crates/cli/src/config")) {
        settings.extend(variables(file.production()).map(str::to_owned));
        settings.extend(fields(file.production()).into_iter().map(str::to_owned));
    }
    assert!(
        !settings.is_empty(),
        "neither the help nor crates/cli/src/config.rs shows a setting"
    );
    let reference = read("docs/operations.md");
    let missing: Vec<_> = settings
        .iter()
        .filter(|setting| !mentions(reference, setting))
        .collect();
    assert_none("settings missing in docs/operations.md", &missing);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let root = root();
    let mut dead = Vec::new();
    for file in files().iter().filter(|file| has_extension(file, "md")) {
        let folder = root.join(&file.path).parent().map(Path::to_path_buf);
        for rest in file.text().split("](").skip(1) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains(':') || target.contains('\n');
            if !elsewhere && !folder.as_ref().is_some_and(|at| at.join(target).exists()) {
                dead.push(format!("{}: {target}", file.path));
            }
        }
    }
    assert_none("links to files that are not there", &dead);
}
