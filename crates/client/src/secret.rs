//! A text that must not be shown.

use std::fmt;

/// What a text is that can be no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// There is nothing.
    #[error("there is no token in it")]
    Empty,
    /// It can't stand in a header as one word.
    #[error("a token is one word of visible ASCII characters")]
    Letters,
}

/// A credential. Its `Debug` prints nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a credential.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Takes a bearer token; the space around it isn't its own. Servers and proxies read it as one
    /// word (RFC 6750, section 2.1).
    pub fn token(text: &str) -> Result<Self, NoToken> {
        let text = text.trim();
        if text.is_empty() {
            Err(NoToken::Empty)
        } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self::new(text))
        } else {
            Err(NoToken::Letters)
        }
    }

    /// The credential itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word() {
        for (text, token) in [
            ("abc\n", Ok("abc")),
            (" a.b-c~d+e/f== ", Ok("a.b-c~d+e/f==")),
            (" \n", Err(NoToken::Empty)),
            ("two words", Err(NoToken::Letters)),
            ("a\nb", Err(NoToken::Letters)),
            ("pässword", Err(NoToken::Letters)),
        ] {
            assert_eq!(Secret::token(text), token.map(Secret::new), "{text:?}");
        }
    }
}
