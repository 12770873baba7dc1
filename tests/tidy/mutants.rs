//! That the list of mutants can't rot: what each takes out of the code is there, once.

use figment::Figment;
use figment::providers::{Format as _, Toml};
use serde::Deserialize;

use crate::source::{assert_none, read, root};

#[derive(Deserialize)]
struct Table {
    mutant: Vec<Mutant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    guard: String,
    file: String,
    text: String,
    with: String,
    suite: String,
    tests: Vec<String>,
}

/// What `tests/mutants/run` knows how to run.
const SUITES: &[&str] = &["invariants", "domain", "store-sqlite", "store-postgres"];
/// Fewer would leave a kind of guard out.
const LEAST: usize = 16;

fn mutants() -> Vec<Mutant> {
    let table = Toml::string(read("tests/mutants/mutants.toml"));
    Figment::from(table).extract::<Table>().unwrap().mutant
}

#[test]
fn every_mutant_finds_its_guard_once() {
    let mutants = mutants();
    assert!(mutants.len() >= LEAST, "{} mutants", mutants.len());
    let mut complaints = Vec::new();
    for mutant in &mutants {
        let text = std::fs::read_to_string(root().join(&mutant.file)).unwrap_or_default();
        let found = text.matches(&mutant.text).count();
        if found != 1 {
            let (name, file) = (&mutant.name, &mutant.file);
            complaints.push(format!("{name}: its text is {found} times in {file}"));
        }
        if mutant.text == mutant.with {
            complaints.push(format!("{}: changes nothing", mutant.name));
        }
    }
    assert_none("mutants without their guard", &complaints);
}

#[test]
fn every_mutant_names_tests_that_are_there() {
    let mut complaints = Vec::new();
    for mutant in mutants() {
        if !SUITES.contains(&mutant.suite.as_str()) {
            complaints.push(format!("{}: no suite `{}`", mutant.name, mutant.suite));
        }
        if mutant.tests.is_empty() || mutant.guard.is_empty() {
            complaints.push(format!("{}: no tests or no guard named", mutant.name));
        }
        for test in &mutant.tests {
            // A filter is a module, or the beginning of a test in one.
            let (module, name) = test.split_once("::").unwrap_or((test, ""));
            let (_store, name) = name.split_once("::").unwrap_or(("", name));
            let of_module = |path: &str| {
                path.ends_with(&format!("/{module}.rs")) || path.contains(&format!("/{module}/"))
            };
            let there = crate::source::files().iter().any(|file| {
                of_module(&file.path)
                    && file.is_test()
                    && file.text().contains(&format!("fn {name}"))
            });
            if !there {
                complaints.push(format!("{}: no test `{test}`", mutant.name));
            }
        }
    }
    assert_none("mutants that nothing could kill", &complaints);
}
