//! Servers by name, in a file of the user's: names, addresses and tokens. It owns the file's form
//! and what may be a name or an address; a token leaves it for its own server only, and is never
//! shown.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tapedeck_client::Secret;
use url::{ParseError, Url};

use crate::config::{self, Settings};
use crate::exit::{Exit, Failed};
use crate::whole_file::write_whole;

/// Characters of a name.
const NAME_CHARS: usize = 64;
/// What others may do with a file; nothing, if it holds tokens.
const OF_OTHERS: u32 = 0o077;
const SCHEMES: &str = "must begin with `http://` or `https://`";

/// A server and how to prove to it who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Its address.
    pub(crate) url: Url,
    /// The credential.
    pub(crate) token: Option<Secret>,
}

/// The servers by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Remotes(BTreeMap<String, Remote>);

/// The file as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[serde(default)]
    remotes: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    token: Option<String>,
}

impl Remotes {
    /// One of them, by its name.
    pub(crate) fn take(mut self, name: &str) -> anyhow::Result<Remote> {
        self.0.remove(name).ok_or_else(|| self.unknown(name))
    }

    /// All of them, by their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Remote)> {
        self.0.iter().map(|(name, remote)| (&**name, remote))
    }

    /// Adds one, or puts it in the place of another if that is wanted.
    pub(crate) fn add(&mut self, name: &str, remote: Remote, replace: bool) -> anyhow::Result<()> {
        check_name(name)?;
        if let (Some(there), false) = (self.0.get(name), replace) {
            return Err(Failed::with(
                Exit::Conflict,
                format!(
                    "there is a remote `{name}` for {}; `--replace` replaces it",
                    there.url
                ),
            ));
        }
        self.0.insert(name.to_owned(), remote);
        Ok(())
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        match self.0.remove(name) {
            Some(_) => Ok(()),
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> anyhow::Error {
        let known: Vec<_> = self.0.keys().map(String::as_str).collect();
        let known = if known.is_empty() {
            "there are none; `tapedeck remote add NAME URL` adds one".to_owned()
        } else {
            format!("there are {}", known.join(", "))
        };
        Failed::with(
            Exit::NotFound,
            format!("there is no remote `{name}`: {known}"),
        )
    }

    fn of_text(text: &str) -> anyhow::Result<Self> {
        let stored: Stored = toml::from_str(text).map_err(|error| {
            // The text around a fault may be a token: only the fault is told.
            Failed::usage(error.message().to_owned())
        })?;
        let mut remotes = Self::default();
        for (name, entry) in stored.remotes {
            let url = address(&entry.url)?;
            let token = entry.token.as_deref().map(Secret::token).transpose();
            let token = token.with_context(|| format!("the token of `{name}`"))?;
            remotes.add(&name, Remote { url, token }, false)?;
        }
        Ok(remotes)
    }

    fn text(&self) -> anyhow::Result<String> {
        let entry = |remote: &Remote| Entry {
            url: remote.url.to_string(),
            token: remote.token.as_ref().map(|token| token.expose().to_owned()),
        };
        let remotes = self.0.iter();
        let remotes = remotes.map(|(name, remote)| (name.clone(), entry(remote)));
        Ok(toml::to_string(&Stored {
            remotes: remotes.collect(),
        })?)
    }
}

/// The file that holds remotes.
#[derive(Debug)]
pub(crate) struct RemotesFile(PathBuf);

impl RemotesFile {
    /// The configured one, which need not be there.
    pub(crate) fn configured(settings: &Settings) -> anyhow::Result<Self> {
        config::expand(&settings.remotes_file).map(Self)
    }

    /// What is in it.
    pub(crate) fn read(&self) -> anyhow::Result<Remotes> {
        let text = match std::fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Remotes::default()),
            Err(error) => return Err(error).with_context(|| self.name()),
        };
        let remotes = Remotes::of_text(&text).with_context(|| self.name())?;
        let mode = std::fs::metadata(&self.0)?.permissions().mode();
        if mode & OF_OTHERS != 0 && remotes.iter().any(|(_, remote)| remote.token.is_some()) {
            return Err(Failed::usage(format!(
                "{} holds tokens and others can read it: `chmod 600` it",
                self.name()
            )));
        }
        Ok(remotes)
    }

    /// Changes what is in it, whole or not at all, and beside no other change.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&mut Remotes) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Some(folder) = self.0.parent().filter(|folder| !folder.exists()) {
            config::make_private_dir(folder)?;
        }
        // A link stays one, and whoever comes by the file's own name meets the same lock.
        let file = self
            .0
            .canonicalize()
            .unwrap_or_else(|_absent| self.0.clone());
        let lock = file.with_extension("lock");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let opened = options.open(&lock);
        let lock = opened.with_context(|| format!("`{}`", lock.display()))?;
        lock.lock()?;
        let mut remotes = self.read()?;
        change(&mut remotes)?;
        write_whole(&file, &remotes.text()?)
    }

    fn name(&self) -> String {
        format!("`{}`", Path::new(&self.0).display())
    }
}

/// A name is one word that a shell takes as it is.
fn check_name(name: &str) -> anyhow::Result<()> {
    let part = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let starts_well = name.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_CHARS && name.chars().all(part) {
        return Ok(());
    }
    Err(Failed::usage(format!(
        "`{}` can't name a remote: a name has 1 to {NAME_CHARS} letters, digits, `-`, `_` or `.`, \
         and starts with a letter or a digit",
        name.escape_debug()
    )))
}

/// Reads a server's address, which is shown in lists and so must hold no secret.
pub(crate) fn address(text: &str) -> anyhow::Result<Url> {
    let refused = |why: &str| Err(Failed::usage(format!("the server's address {why}")));
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(ParseError::RelativeUrlWithoutBase) => return refused(SCHEMES),
        Err(error) => return Err(Failed::usage(format!("`{text}`: {error}"))),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return refused("must hold no name or password; a token goes into a file");
    }
    if !matches!(url.scheme(), "http" | "https") {
        return refused(SCHEMES);
    }
    if url.query().is_some() || url.fragment().is_some() {
        return refused("must hold no `?` and no `#`");
    }
    Ok(url)
}

/// Whether an address is this machine's own.
pub(crate) fn is_on_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str, token: Option<&str>) -> Remote {
        Remote {
            url: address(url).unwrap(),
            token: token.map(Secret::new),
        }
    }

    fn file(dir: &tempfile::TempDir) -> RemotesFile {
        RemotesFile(dir.path().join("new/remotes.toml"))
    }

    #[test]
    fn a_link_to_the_file_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real.toml");
        std::fs::write(&real, "").unwrap();
        let link = dir.path().join("remotes.toml");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = RemotesFile(link.clone());
        let added = file.change(|remotes| remotes.add("x", remote("http://x", None), false));
        added.unwrap();
        assert!(link.is_symlink());
        let text = std::fs::read_to_string(&real).unwrap();
        assert!(text.contains("http://x"), "{text}");
        let lock = std::fs::metadata(real.with_extension("lock")).unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_was_added_is_read_again_and_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir);
        assert_eq!(file.read().unwrap(), Remotes::default());
        let home = remote("https://tapedeck.example.com", Some("s3cr\"t"));
        let other = remote("http://127.0.0.1:7070", None);
        let add = |name: &'static str, remote: &Remote| {
            file.change(|remotes| remotes.add(name, remote.clone(), false))
        };
        add("home", &home).unwrap();
        add("b.2", &other).unwrap();
        let remotes = file.read().unwrap();
        let names: Vec<_> = remotes.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b.2", "home"]);
        assert_eq!(remotes.clone().take("home").unwrap(), home);
        let mode = std::fs::metadata(&file.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let again = add("home", &other).unwrap_err();
        assert_eq!(Exit::of_error(&again), Exit::Conflict);
        file.change(|remotes| remotes.add("home", other.clone(), true))
            .unwrap();
        assert_eq!(file.read().unwrap().take("home").unwrap(), other);
        file.change(|remotes| remotes.remove("home")).unwrap();
        let gone = file.change(|remotes| remotes.remove("home")).unwrap_err();
        assert_eq!(Exit::of_error(&gone), Exit::NotFound);
        assert!(gone.to_string().contains("there are b.2"), "{gone}");
    }

    #[test]
    fn tokens_that_others_can_read_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir);
        file.change(|remotes| remotes.add("a", remote("http://a", Some("x")), false))
            .unwrap();
        std::fs::set_permissions(&file.0, PermissionsExt::from_mode(0o644)).unwrap();
        let refused = file.read().unwrap_err();
        assert_eq!(Exit::of_error(&refused), Exit::Usage);
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn a_fault_in_the_file_is_told_without_what_stands_there() {
        for text in [
            "[remotes.a]\nurl = \"http://a\"\ntoken = \"s3cret",
            "[remotes.a]\nurl = \"http://a\"\ntoken = \"s3cret\"\nwho = 1\n",
            "[remotes.\"-\"]\nurl = \"http://a\"\n",
        ] {
            let error = format!("{:#}", Remotes::of_text(text).unwrap_err());
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn names_and_addresses_follow_their_rules() {
        for name in ["home", "a", "B-2_c.d", "9"] {
            check_name(name).unwrap();
        }
        let long = "n".repeat(NAME_CHARS + 1);
        for name in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", &long] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for url in [
            "http://127.0.0.1:7070",
            "https://x.example/tapedeck",
            "http://[::1]:1",
        ] {
            address(url).unwrap();
        }
        for url in [
            "",
            "home",
            "ftp://x",
            "http://",
            "http://u:p@x",
            "http://x?token=y",
            "http://x#y",
            "127.0.0.1:7070",
            "foo",
        ] {
            let error = address(url).unwrap_err();
            assert_eq!(Exit::of_error(&error), Exit::Usage, "{url}");
        }
        assert!(is_on_this_machine(&address("http://[::1]:1").unwrap()));
        assert!(!is_on_this_machine(&address("https://x.example").unwrap()));
    }
}
