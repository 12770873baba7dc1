//! The files that people write, as layers of a configuration, and what is wrong with one in one line.

use std::path::Path;

use anyhow::Context as _;
use figment::error::Kind;
use figment::providers::{Format as _, Toml};
use figment::{Figment, Source};

use crate::exit::Failed;

/// Lays a file over the layers below; `what` is said of it where it can't be used.
pub(crate) fn with_file(below: Figment, what: &str, file: &Path) -> anyhow::Result<Figment> {
    let at = || format!("{what} `{}`", file.display());
    let text = std::fs::read_to_string(file).with_context(at)?;
    // So that what has nothing to say needn't be a file.
    if text.is_empty() {
        return Ok(below);
    }
    readable(&text).with_context(at)?;
    Ok(below.merge(Toml::file_exact(file)))
}

/// Refuses what is no TOML, without what stands around the fault.
fn readable(text: &str) -> anyhow::Result<()> {
    let Err(error) = toml::from_str::<toml::Table>(text) else {
        return Ok(());
    };
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    let why = error.message().lines().next().unwrap_or_default();
    Err(Failed::usage(format!("line {line}: {why}")))
}

/// What is wrong with a value, and where it stands as a person wrote it.
pub(crate) fn mistake(error: &figment::Error) -> anyhow::Error {
    let key = error.path.join(".");
    let wrong = match &error.kind {
        Kind::UnknownField(_, known) => {
            format!("`{key}` is no setting; there are {}", listed(known))
        }
        Kind::UnknownVariant(found, known) => {
            format!("`{key}` can't be `{found}`; it can be {}", listed(known))
        }
        Kind::MissingField(name) => format!("`{key}` needs `{name}`"),
        kind => format!("`{key}`: {kind}"),
    };
    let source = error.metadata.as_ref().map(|metadata| {
        let file = metadata.source.as_ref().and_then(Source::file_path);
        file.map_or_else(
            || metadata.name.clone().into_owned(),
            |file| file.display().to_string(),
        )
    });
    Failed::usage(match source {
        Some(source) => format!("`{source}`: {wrong}"),
        None => wrong,
    })
}

fn listed(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}
