//! Texts that only whoever has this client's credential can read: what has to lie on a disk beside
//! programs that may look there. It must never put a credential itself anywhere.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;

use crate::connect::Client;
use crate::secret::Secret;

/// Tells our keys from others that are made of the same credential.
const PURPOSE: &[u8] = b"tapedeck sealed text\0";

impl Client {
    /// Seals a text under this client's credential. Each text needs a `name` of its own, under which
    /// it is opened again. Without a credential everybody can open it; then everybody may also do
    /// to the server what the text could be used for.
    pub fn seal(&self, name: &str, text: &Secret) -> Option<Vec<u8>> {
        let mut bytes = text.expose().as_bytes().to_vec();
        let sealed = self
            .key(name)?
            .seal_in_place_append_tag(nonce(), Aad::empty(), &mut bytes);
        sealed.ok().map(|()| bytes)
    }

    /// Opens what [`Self::seal`] made; `None` if another credential or name was used for it.
    pub fn unseal(&self, name: &str, sealed: &[u8]) -> Option<Secret> {
        let mut bytes = sealed.to_vec();
        let text = self
            .key(name)?
            .open_in_place(nonce(), Aad::empty(), &mut bytes)
            .ok()?;
        std::str::from_utf8(text).ok().map(Secret::new)
    }

    /// A key for one text alone.
    fn key(&self, name: &str) -> Option<LessSafeKey> {
        let credential = self.target.authorization.as_ref();
        let credential = credential.map_or(&[][..], |value| value.as_bytes());
        let message = [PURPOSE, name.as_bytes()].concat();
        let key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, credential), &message);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_ref());
        key.ok().map(LessSafeKey::new)
    }
}

/// The same for all, since no key seals two texts.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(token: Option<&str>) -> Client {
        let token = token.map(Secret::new);
        Client::http("http://127.0.0.1:1", token.as_ref()).unwrap()
    }

    #[test]
    fn a_sealed_text_is_opened_by_its_name_and_credential_only() {
        let text = Secret::new("1.secret");
        let owner = client(Some("credential"));
        let sealed = owner.seal("run-1", &text).unwrap();
        assert!(!sealed.windows(6).any(|bytes| bytes == b"secret"));
        assert_eq!(owner.unseal("run-1", &sealed), Some(text.clone()));
        assert_eq!(owner.unseal("run-2", &sealed), None);
        assert_eq!(client(Some("other")).unseal("run-1", &sealed), None);
        assert_eq!(client(None).unseal("run-1", &sealed), None);
        assert_eq!(owner.unseal("run-1", &sealed[1..]), None);
        assert_eq!(owner.unseal("run-1", &[]), None);
        let open = client(None).seal("run-1", &text).unwrap();
        assert_eq!(client(None).unseal("run-1", &open), Some(text));
    }
}
