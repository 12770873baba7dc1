//! Texts for people and for the wire: cut where a letter ends, and never within one.

use std::error::Error;

/// Pieces of at most so many bytes that are the whole text together.
pub fn pieces(mut rest: &str, bytes: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (piece, left) = rest.split_at(rest.floor_char_boundary(bytes));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The end of a text that is longer than so many bytes.
pub fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// The beginning of a text that is longer than so many characters, with a mark where it was cut.
pub fn beginning(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An error and its causes in one line.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // A transparent wrapper repeats its source's text.
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_a_letter_ends() {
        assert_eq!(pieces("aäöü", 2).collect::<Vec<_>>(), ["a", "ä", "ö", "ü"]);
        assert_eq!(pieces("", 2).count(), 0);
        assert_eq!((tail("aäö", 3), tail("aäö", 9)), ("ö", "aäö"));
        assert_eq!(
            (&*beginning("äöü", 2), &*beginning("äöü", 3)),
            ("äö…", "äöü")
        );
    }
}
