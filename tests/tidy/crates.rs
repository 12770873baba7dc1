//! Which crate may depend on which, and on what from outside (design: the arrows).

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::source::{assert_none, read, root, rust, under};

/// An arrow means "may depend on"; nothing else may.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &["domain"]),
    ("store", &["domain"]),
    ("store-sqlite", &["store", "domain"]),
    ("store-postgres", &["store", "domain"]),
    ("control-plane", &["store", "domain"]),
    ("server", &["control-plane", "protocol", "domain"]),
    ("client", &["protocol", "domain"]),
    ("executor", &["client", "protocol", "domain"]),
    ("acp-agent", &["client", "protocol", "domain"]),
    (
        "cli",
        &[
            "domain",
            "protocol",
            "store",
            "store-sqlite",
            "store-postgres",
            "control-plane",
            "server",
            "client",
            "executor",
            "acp-agent",
        ],
    ),
];

/// What a crate's tests may use beyond its arrows: they drive the real thing over a real store
/// instead of over a mock.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("control-plane", &["store-sqlite"]),
    ("server", &["store", "store-sqlite", "client"]),
    (
        "client",
        &["server", "control-plane", "store", "store-sqlite"],
    ),
    (
        "executor",
        &["server", "control-plane", "store", "store-sqlite"],
    ),
    (
        "acp-agent",
        &["server", "control-plane", "store", "store-sqlite"],
    ),
];

/// The outside crates that may appear in few places only, and where.
const KEPT_TO: &[(&str, &[&str])] = &[
    ("sqlx", &["store-sqlite", "store-postgres"]),
    ("axum", &["server", "cli"]),
    ("clap", &["cli"]),
    ("anyhow", &["executor", "acp-agent", "cli"]),
    ("agent-client-protocol", &["executor", "acp-agent", "cli"]),
    ("utoipa", &["protocol", "server"]),
];

/// What a crate without I/O, clock, async and random can't need.
const NOT_IN_DOMAIN: &[&str] = &[
    "async-trait",
    "futures",
    "hyper",
    "nix",
    "rand",
    "rustix",
    "tokio",
    "tokio-util",
    "tower",
    "tracing",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// A thing that cargo builds out of a package.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: String,
}

static METADATA: LazyLock<Metadata> = LazyLock::new(|| {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
});

/// Every target of the workspace.
pub(crate) fn targets() -> impl Iterator<Item = &'static Target> {
    METADATA
        .packages
        .iter()
        .flat_map(|package| &package.targets)
}

fn short(name: &str) -> Option<&str> {
    name.strip_prefix("tapedeck-")
}

fn allowed(arrows: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    arrows
        .iter()
        .find_map(|(from, to)| (*from == name).then_some(*to))
}

#[test]
fn crates_depend_along_the_arrows_only() {
    let mut complaints = Vec::new();
    for package in &METADATA.packages {
        let Some(arrows) = short(&package.name).and_then(|name| allowed(ARROWS, name)) else {
            complaints.push(format!("`{}` has no arrows in this file", package.name));
            continue;
        };
        let name = short(&package.name).unwrap_or_default();
        let of_tests = allowed(TEST_ARROWS, name).unwrap_or_default();
        for dependency in &package.dependencies {
            let Some(to) = short(&dependency.name) else {
                continue;
            };
            let for_tests = dependency.kind.as_deref() == Some("dev");
            if !(arrows.contains(&to) || for_tests && of_tests.contains(&to)) {
                let kind = dependency.kind.as_deref().unwrap_or("normal");
                complaints.push(format!("`{name}` may not depend on `{to}` ({kind})"));
            }
        }
    }
    assert_none("dependencies against the arrows", &complaints);
}

#[test]
fn packages_are_named_after_their_folders() {
    let named: BTreeSet<_> = METADATA
        .packages
        .iter()
        .filter_map(|package| short(&package.name))
        .collect();
    let folders: BTreeSet<_> = under("crates/")
        .filter_map(|file| file.path.strip_suffix("/Cargo.toml"))
        .filter_map(|folder| folder.strip_prefix("crates/"))
        .collect();
    assert_eq!(named, folders);
}

#[test]
fn outside_crates_stay_where_they_belong() {
    let mut complaints = Vec::new();
    for package in &METADATA.packages {
        let name = short(&package.name).unwrap_or_default();
        let outside = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind.as_deref() != Some("dev"));
        for dependency in outside {
            let kept = allowed(KEPT_TO, &dependency.name);
            if kept.is_some_and(|places| !places.contains(&name))
                || name == "domain" && NOT_IN_DOMAIN.contains(&dependency.name.as_str())
            {
                complaints.push(format!("`{}` has no place in `{name}`", dependency.name));
            }
        }
    }
    assert_none("dependencies in the wrong crate", &complaints);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let without: Vec<_> = under("crates/")
        .filter(|file| file.name() == "Cargo.toml")
        .filter(|file| !file.text().contains("[lints]\nworkspace = true\n"))
        .map(|file| file.path.as_str())
        .collect();
    assert_none("manifests without `[lints] workspace = true`", &without);
}

#[test]
fn every_state_is_matched_by_name_in_the_core() {
    for name in ["domain", "protocol", "control-plane"] {
        let root = read(&format!("crates/{name}/src/lib.rs"));
        assert!(
            root.contains("#![deny(clippy::wildcard_enum_match_arm)]"),
            "`{name}` doesn't deny `wildcard_enum_match_arm`"
        );
    }
}

#[test]
fn domain_exports_only_what_is_its_own() {
    let package = METADATA
        .packages
        .iter()
        .find(|package| package.name == "tapedeck-domain")
        .unwrap();
    let mut foreign: BTreeSet<_> = package
        .dependencies
        .iter()
        .map(|dependency| dependency.name.replace('-', "_"))
        .collect();
    foreign.extend(["std", "core", "alloc"].map(str::to_owned));
    let mut complaints = Vec::new();
    for file in rust().filter(|file| file.path.starts_with("crates/domain/src/")) {
        for (number, line) in file.text().lines().enumerate() {
            let line = line.trim_start();
            let path = line
                .strip_prefix("pub use ")
                .or_else(|| line.strip_prefix("pub extern crate "));
            let first =
                path.and_then(|path| path.trim_start_matches("::").split([':', ';', ' ']).next());
            if first.is_some_and(|first| foreign.contains(first)) {
                complaints.push(format!("{}:{}: {line}", file.path, number + 1));
            }
        }
    }
    assert_none("foreign names exported from `domain`", &complaints);
}
