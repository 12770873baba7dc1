//! Where files may be and how large they may get; which of them mirror each other; which are
//! numbered.

use std::collections::BTreeSet;

use crate::source::{assert_none, files, has_extension, under};

/// The top level, beside the tools' own hidden files.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "crates",
    "docker-compose.yml",
    "docs",
    "migrations",
    "tests",
];

const HIDDEN: &[&str] = &[
    ".cargo",
    ".ci",
    ".clippy.toml",
    ".config",
    ".dockerignore",
    ".github",
    ".gitignore",
    ".rustfmt.toml",
];

const MOST_LINES: usize = 500;
/// Tests are read case by case, and a theme may need more of them.
const MOST_TEST_LINES: usize = 700;

fn names(prefix: &str) -> BTreeSet<&'static str> {
    under(prefix)
        .map(|file| &file.path[prefix.len()..])
        .collect()
}

#[test]
fn the_top_level_holds_what_it_should() {
    let found: BTreeSet<_> = files()
        .iter()
        .filter_map(|file| file.path.split('/').next())
        .collect();
    let strange: Vec<_> = found
        .iter()
        .filter(|name| !TOP_LEVEL.contains(name) && !HIDDEN.contains(name))
        .collect();
    assert_none("names that don't belong at the top level", &strange);
    let missing: Vec<_> = TOP_LEVEL
        .iter()
        .filter(|name| !found.contains(*name))
        .collect();
    assert_none("names missing at the top level", &missing);
}

#[test]
fn no_source_file_is_longer_than_a_person_reads() {
    let long: Vec<_> = files()
        .iter()
        .filter(|file| has_extension(file, "rs"))
        .filter_map(|file| {
            let (lines, most) = if file.is_test() {
                (file.text().lines().count(), MOST_TEST_LINES)
            } else {
                (file.production().lines().count(), MOST_LINES)
            };
            (lines > most).then(|| format!("{}: {lines} lines, {most} at most", file.path))
        })
        .collect();
    assert_none("files over the limit", &long);
}

#[test]
fn stores_mirror_the_row_traits() {
    let traits = names("crates/store/src/rows/");
    assert!(!traits.is_empty());
    for store in ["store-sqlite", "store-postgres"] {
        if names(&format!("crates/{store}/")).is_empty() && store != "store-sqlite" {
            continue;
        }
        let rows = names(&format!("crates/{store}/src/rows/"));
        let differences: Vec<_> = traits
            .symmetric_difference(&rows)
            .map(|name| format!("`{name}` is in one of crates/{{store,{store}}}/src/rows only"))
            .collect();
        assert_none("row files without a twin", &differences);
    }
}

/// The complaints about names that should be `NNNN<separator>name.<extension>`, numbered from 1.
fn misnumbered(names: &BTreeSet<&str>, separator: char, extension: &str) -> Vec<String> {
    let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == separator;
    names
        .iter()
        .zip(1..)
        .filter(|(name, number)| {
            let rest = name
                .strip_prefix(&format!("{number:04}{separator}"))
                .and_then(|rest| rest.strip_suffix(extension));
            !rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(part))
        })
        .map(|(name, number)| format!("`{name}` should be `{number:04}{separator}…{extension}`"))
        .collect()
}

#[test]
fn migrations_are_consecutive_and_paired() {
    let sqlite = names("migrations/sqlite/");
    assert!(!sqlite.is_empty());
    assert_none("migrations of SQLite", &misnumbered(&sqlite, '_', ".sql"));
    let postgres = names("migrations/postgres/");
    if !postgres.is_empty() {
        assert_eq!(
            sqlite, postgres,
            "the two dialects have the same migrations"
        );
    }
    assert_eq!(
        names("migrations/").len(),
        sqlite.len() + postgres.len(),
        "only the two dialects have migrations"
    );
}

#[test]
fn decisions_are_numbered_and_say_why() {
    let decisions = names("docs/adr/");
    assert!(!decisions.is_empty(), "there are no decision records");
    let mut complaints = misnumbered(&decisions, '-', ".md");
    for file in under("docs/adr/") {
        let has = |heading: &str| file.text().lines().any(|line| line == heading);
        if !has("## Context") || !has("## Decision") {
            complaints.push(format!(
                "{}: needs `## Context` and `## Decision`",
                file.path
            ));
        }
        // What it costs, or what was turned down for it.
        if !has("## Consequences") && !has("## Rejected") {
            complaints.push(format!(
                "{}: needs `## Consequences` or `## Rejected`",
                file.path
            ));
        }
    }
    assert_none("decision records", &complaints);
}
