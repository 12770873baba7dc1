//! That each promise has its proof: every invariant is a test of its name, every rule and every fault
//! is named by a test, on every store. A test names what it proves in brackets, in the comment above
//! it or in it, in that of the list it is in, or in the header of its file: `(I7; rules R9, R10;
//! fault 13)`.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{SourceFile, assert_none, files, has_extension, read};
use crate::suites::{MACROS, listed, stands_alone};

/// How many there are; the documents must know as many.
const INVARIANTS: u32 = 24;
const RULES: u32 = 23;
const FAULTS: u32 = 24;

/// What is no matter of both stores, and why.
const NOT_ON_EVERY_STORE: &[(Claim, &str)] = &[
    (Claim::Rule(3), "only SQLite commits groups of commands"),
    (
        Claim::Rule(7),
        "the boot clock is SQLite's; PostgreSQL has its server's",
    ),
    (
        Claim::Rule(8),
        "a data directory is SQLite's; PostgreSQL shares by itself",
    ),
    (
        Claim::Fault(18),
        "SQLite's one writing connection is no caller's; PostgreSQL has a pool",
    ),
    (
        Claim::Fault(19),
        "only PostgreSQL has a listener; every test runs once more without its hints",
    ),
    (Claim::Fault(20), "SQLITE_BUSY is SQLite's"),
    (
        Claim::Fault(24),
        "who may connect is settled before any store is asked",
    ),
];

/// What a test says it proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Invariant(u32),
    Rule(u32),
    Fault(u32),
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invariant(number) => write!(f, "I{number}"),
            Self::Rule(number) => write!(f, "R{number}"),
            Self::Fault(number) => write!(f, "fault {number}"),
        }
    }
}

fn all() -> impl Iterator<Item = Claim> {
    (1..=INVARIANTS)
        .map(Claim::Invariant)
        .chain((1..=RULES).map(Claim::Rule))
        .chain((1..=FAULTS).map(Claim::Fault))
}

/// What a comment claims in its brackets. Those that begin with anything else are a remark.
fn claims(comment: &str) -> Vec<Claim> {
    let mut found = Vec::new();
    for rest in comment.split('(').skip(1) {
        let Some((inside, _)) = rest.split_once(')') else {
            continue;
        };
        let words = inside.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';'));
        let mut faults = false;
        for word in words.filter(|word| !word.is_empty()) {
            let number = |word: &str| word.parse::<u32>().ok();
            match word {
                "fault" | "faults" => faults = true,
                "and" => {}
                _ if faults && number(word).is_some() => {
                    found.extend(number(word).map(Claim::Fault));
                }
                _ => {
                    faults = false;
                    let invariant = word.strip_prefix('I').and_then(number);
                    let rule = word.strip_prefix('R').and_then(number);
                    found.extend(invariant.map(Claim::Invariant));
                    found.extend(rule.map(Claim::Rule));
                }
            }
        }
    }
    found
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("async fn ")
        .or(line.strip_prefix("fn "))?;
    rest.split(['(', '<']).next()
}

/// A claim with what shows it.
#[derive(Debug)]
struct Proof {
    claim: Claim,
    on_every_store: bool,
}

/// The proofs in one file.
fn proofs(file: &SourceFile) -> Vec<Proof> {
    let text = file.text();
    let everywhere: BTreeSet<_> = listed(text, true).into_iter().collect();
    let somewhere: BTreeSet<_> = listed(text, false).into_iter().collect();
    // `None` where no test is meant.
    let of_function = |name: &str| {
        if everywhere.contains(name) {
            return Some(true);
        }
        (somewhere.contains(name) || stands_alone(text, name)).then_some(false)
    };
    let has_tests = !(everywhere.is_empty() && somewhere.is_empty())
        || text.contains("#[test]\n")
        || text.contains("#[tokio::test");
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let is_comment = |line: &&&str| line.trim_start().starts_with("//");
        let block: Vec<_> = lines[at..].iter().take_while(is_comment).collect();
        if block.is_empty() {
            at += 1;
            continue;
        }
        let bare = |line: &&&str| line.trim().trim_start_matches(['/', '!']).trim().to_owned();
        let comment = block.iter().map(bare).collect::<Vec<_>>().join(" ");
        let is_header = block[0].starts_with("//!");
        at += block.len();
        let next = lines[at..]
            .iter()
            .find(|line| !line.trim_start().starts_with("#["));
        let next = next.copied().unwrap_or_default();
        let list = MACROS.iter().find(|(name, _)| next.starts_with(name));
        let shown = if is_header {
            has_tests.then_some(!everywhere.is_empty())
        } else if let Some((_, everywhere)) = list {
            Some(*everywhere)
        } else {
            let before = lines[..at].iter().rev();
            function(next)
                .or_else(|| before.copied().find_map(function))
                .and_then(of_function)
        };
        if let Some(on_every_store) = shown {
            found.extend(claims(&comment).into_iter().map(|claim| Proof {
                claim,
                on_every_store,
            }));
        }
    }
    found
}

/// The suites and the tests of crates, without this one.
fn suites() -> impl Iterator<Item = &'static SourceFile> {
    files()
        .iter()
        .filter(|file| file.is_test() && has_extension(file, "rs"))
        .filter(|file| !file.path.starts_with("tests/tidy/"))
}

/// The invariants' numbers and names in the design notes: `name (I7)`.
fn invariants() -> BTreeMap<u32, &'static str> {
    let design = read("docs/design.md");
    let (_, section) = design.split_once("\n## 5. ").unwrap();
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut found = BTreeMap::new();
    for (at, _) in section.match_indices(" (I") {
        let number = section[at + 3..].split(')').next().unwrap_or_default();
        let name = section[..at].split_whitespace().next_back();
        found.insert(number.parse().unwrap(), name.unwrap_or_default());
    }
    found
}

#[test]
fn every_invariant_is_a_test_of_its_name_on_every_store() {
    let invariants = invariants();
    let numbers: Vec<_> = invariants.keys().copied().collect();
    let expected: Vec<_> = (1..=INVARIANTS).collect();
    assert_eq!(numbers, expected, "docs/design.md §5 names each once");
    let tests: BTreeSet<_> = suites()
        .flat_map(|file| listed(file.text(), true))
        .collect();
    let missing: Vec<_> = invariants
        .iter()
        .filter(|(_, name)| !tests.contains(*name))
        .map(|(number, name)| format!("I{number} {name}"))
        .collect();
    assert_none("invariants without a test of their name", &missing);
}

#[test]
fn every_rule_and_every_fault_is_named_by_a_test_on_every_store() {
    let mut found: BTreeMap<Claim, bool> = BTreeMap::new();
    for proof in suites().flat_map(proofs) {
        *found.entry(proof.claim).or_default() |= proof.on_every_store;
    }
    let mut complaints = Vec::new();
    for claim in all().filter(|claim| !matches!(claim, Claim::Invariant(_))) {
        let exception = NOT_ON_EVERY_STORE.iter().find(|(of, _)| *of == claim);
        match (found.get(&claim), exception) {
            (None, _) => complaints.push(format!("{claim}: no test names it")),
            (Some(false), None) => complaints.push(format!("{claim}: on one store only")),
            (Some(true), Some((_, reason))) => {
                complaints.push(format!("{claim} is on every store, in spite of: {reason}"));
            }
            (Some(true), None) | (Some(false), Some(_)) => {}
        }
    }
    assert_none("rules and faults without their proof", &complaints);
}

#[test]
fn no_test_names_what_is_not_there() {
    let known: BTreeSet<_> = all().collect();
    let unknown: Vec<_> = suites()
        .flat_map(|file| proofs(file).into_iter().map(move |proof| (file, proof)))
        .filter(|(_, proof)| !known.contains(&proof.claim))
        .map(|(file, proof)| format!("{}: {}", file.path, proof.claim))
        .collect();
    assert_none("tests that name an unknown rule or fault", &unknown);
}

#[test]
fn the_documents_know_every_rule_and_every_fault() {
    let rules: Vec<u32> = read("docs/rules.md")
        .lines()
        .filter_map(|line| line.strip_prefix("**R")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(rules, (1..=RULES).collect::<Vec<_>>(), "docs/rules.md");
    let faults: Vec<u32> = read("docs/faults.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(faults, (1..=FAULTS).collect::<Vec<_>>(), "docs/faults.md");
}

#[test]
fn claims_are_read_as_they_are_written() {
    use Claim::{Fault, Invariant, Rule};
    let read =
        claims("Words (I4, I5; faults 6, 8 and 13; rules R9,\nR10) and (fault 15), (1 of 2).");
    let expected = [
        Invariant(4),
        Invariant(5),
        Fault(6),
        Fault(8),
        Fault(13),
        Rule(9),
        Rule(10),
        Fault(15),
    ];
    assert_eq!(read, expected);
    assert_eq!(claims("(design §4.8; 7) I3 R4 fault 5"), []);
}
