//! Files that the agent reads and writes through us. It owns the way from the agent's path to a
//! file, which must never lead out of the session's directories: each is opened as a directory of
//! its own, and names are resolved below it, links included.

use std::io::{ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt as _};
use serde_json::{Value, json};

use super::rpc::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND};

/// The largest file that is read or written.
const FILE_LIMIT: u64 = 8 * 1024 * 1024;

/// Why a request is refused, as the protocol has it.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(code: i64, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    fn of(error: &std::io::Error, path: &Path) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => NOT_FOUND,
            _ => INTERNAL_ERROR,
        };
        Self::new(code, format!("`{}`: {error}", path.display()))
    }
}

/// The directories of a session.
#[derive(Debug, Clone)]
pub(super) struct Files {
    roots: Vec<PathBuf>,
}

impl Files {
    /// `roots` are absolute and canonical.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots }
    }

    /// `fs/read_text_file`. Blocks.
    pub(super) fn read(&self, params: &Value) -> Result<Value, Refusal> {
        let path = absolute(params)?;
        let (root, name) = self.place(&path)?;
        let fault = |error: std::io::Error| Refusal::of(&error, &path);
        let mut options = OpenOptions::new();
        // A pipe must not hold us up until somebody writes to it.
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let file = root.open_with(&name, &options).map_err(fault)?;
        let metadata = file.metadata().map_err(fault)?;
        if !metadata.is_file() {
            return Err(invalid(&path, "is no file"));
        }
        let mut bytes = Vec::new();
        let read = file.take(FILE_LIMIT + 1).read_to_end(&mut bytes);
        if read.map_err(fault)? as u64 > FILE_LIMIT {
            return Err(invalid(&path, "is larger than 8 MiB"));
        }
        let Ok(text) = String::from_utf8(bytes) else {
            return Err(invalid(&path, "is no UTF-8 text"));
        };
        let number = |name: &str| match params.get(name).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .map(Some)
                .ok_or_else(|| Refusal::new(INVALID_PARAMS, format!("`{name}` is no number"))),
        };
        let (line, limit) = (number("line")?, number("limit")?);
        Ok(json!({"content": lines(&text, line, limit)}))
    }

    /// `fs/write_text_file`. Blocks.
    pub(super) fn write(&self, params: &Value) -> Result<Value, Refusal> {
        let path = absolute(params)?;
        let Some(content) = params["content"].as_str() else {
            return Err(Refusal::new(INVALID_PARAMS, "`content` is missing"));
        };
        if content.len() as u64 > FILE_LIMIT {
            return Err(invalid(&path, "would be larger than 8 MiB"));
        }
        let (root, name) = self.place(&path)?;
        let fault = |error: std::io::Error| Refusal::of(&error, &path);
        if let Some(parent) = name
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            root.create_dir_all(parent).map_err(fault)?;
        }
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .custom_flags(nix::libc::O_NONBLOCK);
        let mut file = root.open_with(&name, &options).map_err(fault)?;
        if !file.metadata().map_err(fault)?.is_file() {
            return Err(invalid(&path, "is no file"));
        }
        // What it was is cut only once it is known to be a file.
        file.set_len(0).map_err(fault)?;
        file.write_all(content.as_bytes()).map_err(fault)?;
        Ok(json!({}))
    }

    /// The workspace.
    pub(super) fn first(&self) -> Result<PathBuf, Refusal> {
        let text = "the session has no directory";
        let first = self.roots.first().cloned();
        first.ok_or_else(|| Refusal::new(INTERNAL_ERROR, text))
    }

    /// A directory of the session's that holds `path`, canonical.
    pub(super) fn directory(&self, path: &Path) -> Result<PathBuf, Refusal> {
        let canonical = path.canonicalize().map_err(|_error| outside(path))?;
        let within = self.roots.iter().any(|root| canonical.starts_with(root));
        if within && canonical.is_dir() {
            return Ok(canonical);
        }
        Err(outside(path))
    }

    /// The session's directory and the name below it.
    fn place(&self, path: &Path) -> Result<(Dir, PathBuf), Refusal> {
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.components().all(plain) {
            return Err(outside(path));
        }
        let found = self
            .roots
            .iter()
            .find_map(|root| Some((root, path.strip_prefix(root).ok()?)));
        let Some((root, name)) = found else {
            return Err(outside(path));
        };
        if name.as_os_str().is_empty() {
            return Err(invalid(path, "is no file"));
        }
        let dir = Dir::open_ambient_dir(root, ambient_authority());
        let dir = dir.map_err(|error| Refusal::of(&error, path))?;
        Ok((dir, name.to_owned()))
    }
}

fn absolute(params: &Value) -> Result<PathBuf, Refusal> {
    let path = params["path"].as_str().map(PathBuf::from);
    path.filter(|path| path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0))
        .ok_or_else(|| Refusal::new(INVALID_PARAMS, "`path` must be an absolute path"))
}

fn invalid(path: &Path, what: &str) -> Refusal {
    Refusal::new(INVALID_PARAMS, format!("`{}` {what}", path.display()))
}

/// What lies outside is not told apart from what doesn't exist.
fn outside(path: &Path) -> Refusal {
    let text = format!("`{}` is not in the session's directories", path.display());
    Refusal::new(INVALID_PARAMS, text)
}

/// The lines from `first`, counted from 1, at most `limit`.
fn lines(text: &str, first: Option<usize>, limit: Option<usize>) -> String {
    let skipped = first.unwrap_or(1).saturating_sub(1);
    text.split_inclusive('\n')
        .skip(skipped)
        .take(limit.unwrap_or(usize::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        files: Files,
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for folder in ["work/inner", "more", "elsewhere"] {
            std::fs::create_dir_all(base.join(folder)).unwrap();
        }
        std::fs::write(base.join("work/a"), "one\ntwo\nthree").unwrap();
        std::fs::write(base.join("elsewhere/secret"), "secret").unwrap();
        symlink("a", base.join("work/link")).unwrap();
        symlink("../elsewhere/secret", base.join("work/escape")).unwrap();
        symlink(base.join("elsewhere"), base.join("work/folder")).unwrap();
        let files = Files::new(vec![base.join("work"), base.join("more")]);
        Fixture { dir, files }
    }

    impl Fixture {
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().canonicalize().unwrap().join(name)
        }

        fn read(&self, name: &str) -> Result<Value, Refusal> {
            self.files.read(&json!({"path": self.path(name)}))
        }

        fn write(&self, name: &str) -> Result<Value, Refusal> {
            self.files
                .write(&json!({"path": self.path(name), "content": "new"}))
        }
    }

    #[test]
    fn files_inside_are_read_by_lines_and_written_with_their_folders() {
        let fixture = fixture();
        assert_eq!(
            fixture.read("work/a").unwrap()["content"],
            "one\ntwo\nthree"
        );
        assert_eq!(
            fixture.read("work/link").unwrap()["content"],
            "one\ntwo\nthree"
        );
        let part = json!({"path": fixture.path("work/a"), "line": 2, "limit": 1});
        assert_eq!(fixture.files.read(&part).unwrap()["content"], "two\n");
        fixture.write("work/deep/er/b").unwrap();
        fixture.write("more/c").unwrap();
        fixture.write("work/a").unwrap();
        for name in ["work/deep/er/b", "more/c", "work/a"] {
            assert_eq!(std::fs::read_to_string(fixture.path(name)).unwrap(), "new");
        }
        assert_eq!(fixture.read("work/missing").unwrap_err().code, NOT_FOUND);
    }

    #[test]
    fn no_path_and_no_link_leads_outside() {
        let fixture = fixture();
        for name in [
            "elsewhere/secret",
            "work/../elsewhere/secret",
            "work/escape",
            "work/folder/secret",
            "workshop/x",
        ] {
            let refused = fixture.read(name).unwrap_err();
            assert!(!refused.text.contains("secret\""), "{name}");
            fixture.write(name).unwrap_err();
        }
        fixture.write("work/folder/new").unwrap_err();
        assert!(!fixture.path("elsewhere/new").exists());
        let kept = std::fs::read_to_string(fixture.path("elsewhere/secret")).unwrap();
        assert_eq!(kept, "secret");
        for params in [json!({"path": "a"}), json!({}), json!({"path": "/a\0b"})] {
            assert_eq!(
                fixture.files.read(&params).unwrap_err().code,
                INVALID_PARAMS
            );
        }
        fixture
            .files
            .directory(&fixture.path("work/folder"))
            .unwrap_err();
        fixture
            .files
            .directory(&fixture.path("work/inner"))
            .unwrap();
    }

    #[test]
    fn what_is_no_text_file_is_refused_and_left_as_it_is() {
        let fixture = fixture();
        std::fs::write(fixture.path("work/binary"), [0xff, 0xfe]).unwrap();
        let pipe = fixture.path("work/pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let large = std::fs::File::create(fixture.path("work/large")).unwrap();
        large.set_len(FILE_LIMIT + 1).unwrap();
        for name in [
            "work/binary",
            "work/pipe",
            "work/large",
            "work/inner",
            "work",
        ] {
            fixture.read(name).unwrap_err();
        }
        fixture.write("work/pipe").unwrap_err();
        fixture.write("work/inner").unwrap_err();
        let long = "x".repeat(9 << 20);
        let params = json!({"path": fixture.path("work/a"), "content": long});
        fixture.files.write(&params).unwrap_err();
        assert_eq!(
            fixture.read("work/a").unwrap()["content"],
            "one\ntwo\nthree"
        );
    }
}
