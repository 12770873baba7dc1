//! What a `git` workspace may say: where its repository is, where it starts, and what part of it is
//! worked in. Whether any of it exists only an executor can tell. It must never let a credential
//! through: a session's workspace is stored, shown and logged.

use serde_json::{Map, Value};

use crate::rejection::FieldError;

/// Texts of a workspace, in characters.
const TEXT_CHARS: usize = 4_096;
/// A name of a branch, a tag or a commit, in characters.
const REF_CHARS: usize = 255;
/// Commits of history to fetch, at most.
const DEPTH_MAX: u64 = 1_000_000;
/// The fields that a `git` workspace has.
const FIELDS: [&str; 6] = ["url", "path", "ref", "branch", "depth", "subdirectory"];

/// How a repository is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// `https://…`
    Https,
    /// `http://…`, which anybody on the way can change.
    Http,
    /// `ssh://…` or `user@host:path`.
    Ssh,
    /// A directory of the executor's machine.
    File,
}

impl Transport {
    /// The word that git has for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::File => "file",
        }
    }
}

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// On another machine.
    Remote {
        /// Its URL, without any credential.
        url: String,
        /// How it is reached.
        transport: Transport,
    },
    /// In a directory of the executor's machine.
    Directory(String),
}

/// Where the work starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// The repository's own default.
    Default,
    /// A branch.
    Branch(String),
    /// A branch, a tag or a commit.
    Ref(String),
}

/// A checked `git` workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitWorkspace {
    /// Where the repository is.
    pub source: Source,
    /// Where the work starts.
    pub start: Start,
    /// How many commits of history are wanted; all where nothing is said.
    pub depth: Option<u32>,
    /// The directory inside the repository that the agent starts in.
    pub subdirectory: Option<String>,
}

impl GitWorkspace {
    /// Reads the fields of a `git` workspace. Errors name the field and never repeat its value,
    /// which might hold a credential.
    pub fn read(fields: &Map<String, Value>) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        for name in fields.keys().filter(|name| !is_field(name)) {
            let message = "is no field of a `git` workspace";
            errors.push(FieldError::new(name.clone(), message));
        }
        let read = Self {
            source: source(&mut errors, fields),
            start: start(&mut errors, fields),
            depth: depth(&mut errors, fields),
            subdirectory: subdirectory(&mut errors, fields),
        };
        if errors.is_empty() {
            Ok(read)
        } else {
            Err(errors)
        }
    }
}

/// What becomes of a session's worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upkeep {
    /// The session goes on.
    Keep,
    /// Nothing would be lost: its commits stay on its branch.
    Remove,
    /// The session is over, and work in it is not committed: it is kept, and somebody is told.
    KeepDirty,
    /// The same, for so long that it is removed, and somebody is told.
    RemoveDirty,
}

/// Decides on a worktree. `dirty_ms` is for how long the session has been over with work that is not
/// committed, nothing if all is.
pub const fn upkeep(session_is_over: bool, dirty_ms: Option<u64>, keep_ms: u64) -> Upkeep {
    match (session_is_over, dirty_ms) {
        (false, _) => Upkeep::Keep,
        (true, None) => Upkeep::Remove,
        (true, Some(dirty_ms)) if dirty_ms < keep_ms => Upkeep::KeepDirty,
        (true, Some(_)) => Upkeep::RemoveDirty,
    }
}

fn is_field(name: &str) -> bool {
    FIELDS.contains(&name)
}

/// A text that is there; null is the same as nothing.
fn text<'a>(
    errors: &mut Vec<FieldError>,
    fields: &'a Map<String, Value>,
    name: &str,
) -> Option<&'a str> {
    match fields.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if plain(text) => Some(text),
        Some(_) => {
            let message = format!("must be a text of 1 to {TEXT_CHARS} printable characters");
            errors.push(FieldError::new(name, message));
            None
        }
    }
}

fn plain(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= TEXT_CHARS && !text.chars().any(char::is_control)
}

fn source(errors: &mut Vec<FieldError>, fields: &Map<String, Value>) -> Source {
    let (url, path) = (text(errors, fields, "url"), text(errors, fields, "path"));
    let nowhere = Source::Directory(String::new());
    match (url, path) {
        (Some(url), None) => match remote(url) {
            Ok(source) => source,
            Err(message) => {
                errors.push(FieldError::new("url", message));
                nowhere
            }
        },
        (None, Some(path)) => Source::Directory(path.to_owned()),
        (Some(_), Some(_)) => {
            errors.push(FieldError::new("path", "can't be given beside `url`"));
            nowhere
        }
        (None, None) => {
            if errors.is_empty() {
                let message = "must be given for a `git` workspace, or `path`";
                errors.push(FieldError::new("url", message));
            }
            nowhere
        }
    }
}

/// Takes a URL apart as far as needed to know how it is reached and that it holds no credential.
fn remote(url: &str) -> Result<Source, &'static str> {
    const SHAPE: &str = "must be an `https`, `http`, `ssh` or `file` URL, or `user@host:path`";
    if url.contains(['?', '#', ' ', '\\']) {
        return Err("must hold no query, no fragment, no space and no backslash");
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return short_ssh(url).ok_or(SHAPE);
    };
    let transport = match scheme.to_ascii_lowercase().as_str() {
        "https" => Transport::Https,
        "http" => Transport::Http,
        "ssh" => Transport::Ssh,
        "file" => {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            let absolute = path.starts_with('/') && !path.contains('%');
            return if absolute {
                Ok(Source::Directory(path.to_owned()))
            } else {
                Err("must name an absolute path after `file://`, without percent signs")
            };
        }
        _ => return Err(SHAPE),
    };
    let (authority, path) = rest.split_once('/').ok_or(SHAPE)?;
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let user_alone = |user: &str| transport == Transport::Ssh && is_name(user);
    if user.is_some_and(|user| !user_alone(user)) {
        return Err("must hold no credentials; give them to git on the executor's machine");
    }
    if path.is_empty() || !is_host(host) {
        return Err(SHAPE);
    }
    let url = url.to_owned();
    Ok(Source::Remote { url, transport })
}

/// `user@host:path`, or `host:path`.
fn short_ssh(url: &str) -> Option<Source> {
    let (authority, path) = url.split_once(':')?;
    let (user, host) = match authority.split_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let good = user.is_none_or(is_name)
        && is_host(host)
        && !host.contains(':')
        && !path.is_empty()
        && !path.starts_with(['-', ':'])
        && !path.contains('@');
    good.then(|| Source::Remote {
        url: url.to_owned(),
        transport: Transport::Ssh,
    })
}

fn is_name(user: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !user.is_empty() && !user.starts_with('-') && user.bytes().all(plain)
}

/// A host with or without a port. It never begins with a dash, which ssh would take for an option.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
    let begins = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'[';
    host.as_bytes().first().is_some_and(begins) && host.bytes().all(plain)
}

fn start(errors: &mut Vec<FieldError>, fields: &Map<String, Value>) -> Start {
    let named = text(errors, fields, "ref");
    let branch = text(errors, fields, "branch");
    for (field, name) in [("ref", named), ("branch", branch)] {
        if name.is_some_and(|name| !is_ref(name)) {
            errors.push(FieldError::new(
                field,
                "is no name of a branch, tag or commit",
            ));
        }
    }
    match (named, branch) {
        (None, None) => Start::Default,
        (None, Some(branch)) => Start::Branch(branch.to_owned()),
        (Some(named), None) => Start::Ref(named.to_owned()),
        (Some(_), Some(_)) => {
            errors.push(FieldError::new("branch", "can't be given beside `ref`"));
            Start::Default
        }
    }
}

/// What git takes as a name, and a little less: nothing that could be read as an option or as an
/// expression over commits.
fn is_ref(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+#=,%@!".contains(&byte) || byte > 127;
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.strip_suffix(".lock").is_none()
            && !part.ends_with('.')
    };
    name.len() <= REF_CHARS
        && name.bytes().all(plain)
        && !name.starts_with('-')
        && name != "@"
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(part)
}

fn depth(errors: &mut Vec<FieldError>, fields: &Map<String, Value>) -> Option<u32> {
    let given = fields.get("depth").filter(|value| !value.is_null())?;
    let depth = given
        .as_u64()
        .filter(|depth| (1..=DEPTH_MAX).contains(depth));
    let depth = depth.and_then(|depth| u32::try_from(depth).ok());
    if depth.is_none() {
        let message = format!("must be a number from 1 to {DEPTH_MAX}");
        errors.push(FieldError::new("depth", message));
    }
    depth
}

fn subdirectory(errors: &mut Vec<FieldError>, fields: &Map<String, Value>) -> Option<String> {
    let given = text(errors, fields, "subdirectory")?;
    let part = |part: &str| !matches!(part, "" | "." | "..") && !part.eq_ignore_ascii_case(".git");
    let path = given.strip_suffix('/').unwrap_or(given);
    if !path.split('/').all(part) {
        let message = "must be a path inside the repository, such as `services/api`";
        errors.push(FieldError::new("subdirectory", message));
        return None;
    }
    Some(path.to_owned())
}

#[cfg(test)]
mod tests;
