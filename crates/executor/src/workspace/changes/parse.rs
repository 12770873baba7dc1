//! What git's plumbing prints, read. Paths are bytes: not every file's name is text.

use super::GitError;

/// A change as `git diff-tree --raw -z` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawChange {
    pub(super) old_mode: String,
    pub(super) new_mode: String,
    pub(super) old_id: String,
    pub(super) new_id: String,
    /// The letter, without a score.
    pub(super) status: u8,
    /// The file before, where it had another name.
    pub(super) old_path: Option<Vec<u8>>,
    pub(super) path: Vec<u8>,
}

impl RawChange {
    /// The ids of what is there before and after.
    pub(super) fn sides(&self) -> impl Iterator<Item = &str> {
        let there = |id: &&String| id.bytes().any(|byte| byte != b'0');
        [&self.old_id, &self.new_id]
            .into_iter()
            .filter(there)
            .map(String::as_str)
    }

    /// A submodule: only the name of its commit is there.
    pub(super) fn is_link_to_repository(&self) -> bool {
        self.old_mode == "160000" || self.new_mode == "160000"
    }
}

/// Lines added and deleted; none for binary content.
pub(super) type Counts = Option<(u64, u64)>;

fn broken(what: &str) -> GitError {
    GitError::Output {
        what: "diff-tree".to_owned(),
        why: format!("unreadable {what}"),
    }
}

fn fields(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    let output = output.strip_suffix(b"\0").unwrap_or(output);
    output
        .split(|byte| *byte == 0)
        .filter(|field| !field.is_empty())
}

/// Paths that end with NUL.
pub(super) fn paths(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    fields(output)
}

/// `git diff-tree --raw -z`.
pub(super) fn raw(output: &[u8]) -> Result<Vec<RawChange>, GitError> {
    let mut fields = fields(output);
    let mut changes = Vec::new();
    while let Some(head) = fields.next() {
        let head = std::str::from_utf8(head).map_err(|_error| broken("change"))?;
        let words: Vec<_> = head.trim_start_matches(':').split(' ').collect();
        let [old_mode, new_mode, old_id, new_id, status] = words[..] else {
            return Err(broken("change"));
        };
        let status = *status.as_bytes().first().ok_or_else(|| broken("status"))?;
        let mut path = || {
            let path = fields.next().ok_or_else(|| broken("path"));
            path.map(<[u8]>::to_vec)
        };
        let first = path()?;
        let (old_path, path) = if matches!(status, b'R' | b'C') {
            (Some(first), path()?)
        } else {
            (None, first)
        };
        changes.push(RawChange {
            old_mode: old_mode.to_owned(),
            new_mode: new_mode.to_owned(),
            old_id: old_id.to_owned(),
            new_id: new_id.to_owned(),
            status,
            old_path,
            path,
        });
    }
    Ok(changes)
}

/// `git diff-tree --numstat -z`: each file by its present path.
pub(super) fn counts(output: &[u8]) -> Result<Vec<(Vec<u8>, Counts)>, GitError> {
    let output = output.strip_suffix(b"\0").unwrap_or(output);
    let mut fields = output.split(|byte| *byte == 0);
    let mut found = Vec::new();
    while let Some(field) = fields.next() {
        if field.is_empty() {
            continue;
        }
        let mut parts = field.splitn(3, |byte| *byte == b'\t');
        let mut part = || parts.next().ok_or_else(|| broken("count"));
        let (added, deleted, path) = (part()?, part()?, part()?);
        let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
        let counts = number(added).zip(number(deleted));
        let path = if path.is_empty() {
            // The old name is followed by the new one.
            fields.next().and_then(|_old| fields.next())
        } else {
            Some(path)
        };
        let path = path.ok_or_else(|| broken("path"))?;
        found.push((path.to_vec(), counts));
    }
    Ok(found)
}

/// Whether a file of this patch begins with this line. Content is indented by one character, and
/// binary content holds no spaces.
pub(super) fn begins_file(line: &[u8]) -> bool {
    line.starts_with(b"diff --git ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_with_names_that_are_no_text() {
        let output =
            b":100644 100644 1111 2222 M\0a b\0:000000 100755 0000 3333 A\0\xff\n\0:100644 \
            100644 4444 4444 R100\0old\0new\0";
        let changes = raw(output).unwrap();
        assert_eq!(changes.len(), 3);
        assert_eq!(changes[0].path, b"a b");
        assert_eq!(changes[1].path, b"\xff\n");
        assert_eq!(changes[1].sides().collect::<Vec<_>>(), ["3333"]);
        assert_eq!(changes[2].old_path.as_deref(), Some(&b"old"[..]));
        assert_eq!(
            (changes[2].status, &changes[2].path[..]),
            (b'R', &b"new"[..])
        );
        assert!(raw(b"").unwrap().is_empty());
        for cut in [&b":100644\0a\0"[..], b":1 2 3 4 M\0", b":1 2 3 4 R1\0a\0"] {
            assert!(raw(cut).is_err());
        }
    }

    #[test]
    fn counts_are_read_by_the_present_path() {
        let found = counts(b"3\t1\ta\tb\0-\t-\tpicture\x000\t0\t\0old\0new\0").unwrap();
        let expected: [(Vec<u8>, Counts); 3] = [
            (b"a\tb".to_vec(), Some((3, 1))),
            (b"picture".to_vec(), None),
            (b"new".to_vec(), Some((0, 0))),
        ];
        assert_eq!(found, expected);
        assert!(counts(b"3\t1\0").is_err());
    }
}
