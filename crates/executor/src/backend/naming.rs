//! Names and ids as agents give them, made fit for the log and the server. It owns their bounds: what
//! an event calls a tool or a call, a question calls the same, so both must come through here.

use tapedeck_domain::digest::{Digest, hex};
use tapedeck_domain::limits::NAME_CHARS;

use crate::process::Redactor;

/// Of a call's id that is too long; the rest is told apart by its digest.
const ID_BEGINNING: usize = NAME_CHARS - 24;

/// A tool's name: titles can be whole commands, and some agents name nothing.
pub(super) fn tool_name(text: &str, redactor: &Redactor) -> String {
    match short(text, redactor).trim() {
        "" => "tool".to_owned(),
        name => name.to_owned(),
    }
}

/// A tool call's id. Two different ones stay different.
pub(super) fn call_id(id: &str, redactor: &Redactor) -> String {
    let cleaned = clean(id, redactor);
    if cleaned.chars().count() <= NAME_CHARS {
        return cleaned;
    }
    let beginning: String = cleaned.chars().take(ID_BEGINNING).collect();
    let Digest(digest) = Digest::of_bytes(id.as_bytes());
    format!("{beginning}…{}", hex(&digest[..8]))
}

/// A word or a line of the agent's, cut to a name's length.
pub(super) fn short(text: &str, redactor: &Redactor) -> String {
    clean(text, redactor).chars().take(NAME_CHARS).collect()
}

/// Redaction comes before a cut, which might go through a secret.
fn clean(text: &str, redactor: &Redactor) -> String {
    redactor.redact(text.to_owned()).replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Environment;

    #[test]
    fn names_are_short_and_without_nul_and_secrets() {
        let pairs = [("API_KEY".to_owned(), "sk-secret".to_owned())];
        let redactor = Environment::select([], &[], &pairs).redactor();
        assert_eq!(tool_name(" a\0b ", &redactor), "a\u{fffd}b");
        assert_eq!(tool_name(" \n", &redactor), "tool");
        let long = format!("{}sk-secret", "x".repeat(NAME_CHARS - 2));
        assert!(tool_name(&long, &redactor).ends_with("x[r"));
    }

    #[test]
    fn ids_that_fit_stay_and_longer_ones_stay_different() {
        let of = |id: &str| call_id(id, &Redactor::default());
        assert_eq!(of("call-1"), "call-1");
        assert_eq!(of("a\0"), "a\u{fffd}");
        let most = "é".repeat(NAME_CHARS);
        assert_eq!(of(&most), most);
        let (one, two) = (of(&format!("{most}1")), of(&format!("{most}2")));
        assert!(one.chars().count() <= NAME_CHARS, "{one}");
        assert_ne!(one, two);
        assert_eq!(one, of(&format!("{most}1")));
        assert_eq!(of(&one), one, "what is cleaned stays");
    }
}
