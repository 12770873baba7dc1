//! That the tests which carry the promises exist and run.

use crate::crates::targets;
use crate::source::{assert_none, root, under};

/// The macros that make tests of names, and whether they do so for every store.
pub(crate) const MACROS: &[(&str, bool)] = &[
    ("on_every_store!", true),
    ("on_both_stores!", true),
    ("on_sqlite!", false),
    ("on_postgres!", false),
];

/// The names inside every list of a file that makes tests: for every store, or for one.
pub(crate) fn listed(text: &str, on_every_store: bool) -> Vec<&str> {
    MACROS
        .iter()
        .filter(|(_, everywhere)| *everywhere == on_every_store)
        .flat_map(|(name, _)| text.split(name).skip(1))
        .filter_map(|rest| rest.trim_start().strip_prefix(['{', '(', '[']))
        .filter_map(|rest| rest.split(['}', ')', ']']).next())
        .flat_map(|names| names.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Whether a function of this name is a test by itself: its attributes say so.
pub(crate) fn stands_alone(text: &str, name: &str) -> bool {
    let definition = format!("fn {name}(");
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    (0..lines.len())
        .filter(|at| lines[*at].contains(&definition))
        .any(|at| {
            lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("#["))
                .any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test"))
        })
}

#[test]
fn a_test_for_one_store_says_why() {
    let one_store = |line: &str| {
        let mut macros = MACROS.iter().filter(|(_, everywhere)| !everywhere);
        macros.any(|(name, _)| line.starts_with(name))
    };
    let mut silent = Vec::new();
    for file in under("tests/") {
        let lines: Vec<_> = file.text().lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if one_store(line) && !(at > 0 && lines[at - 1].starts_with("//")) {
                silent.push(format!("{}:{}", file.path, at + 1));
            }
        }
    }
    assert_none(
        "tests for one store without a comment that says why",
        &silent,
    );
}

#[test]
fn every_suite_is_registered_with_cargo() {
    let root = root();
    let registered: Vec<_> = targets()
        .filter(|target| target.kind.iter().any(|kind| kind == "test"))
        .filter_map(|target| std::path::Path::new(&target.src_path).canonicalize().ok())
        .collect();
    let forgotten: Vec<_> = under("tests/")
        .filter(|file| file.name() == "main.rs")
        .filter(|file| !registered.contains(&root.join(&file.path)))
        .map(|file| file.path.as_str())
        .collect();
    assert_none(
        "suites that no manifest names, so that nothing runs them",
        &forgotten,
    );
}

#[test]
fn no_test_is_switched_off_without_a_reason() {
    let without: Vec<_> = under("")
        .filter(|file| crate::source::has_extension(file, "rs"))
        .flat_map(|file| {
            let lines = file.text().lines().zip(1..);
            lines
                .filter(|(line, _)| line.trim() == "#[ignore]")
                .map(|(_, number)| format!("{}:{number}", file.path))
        })
        .collect();
    assert_none("`ignore` without a reason", &without);
}
