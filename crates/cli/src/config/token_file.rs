//! A file that holds a token, which may be a pipe of the shell's. It must never wait for long nor
//! read much, whatever the path leads to.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use tapedeck_client::Secret;

use crate::exit::Failed;

/// Longer files hold something else.
pub(crate) const MOST_BYTES: usize = 64 * 1024;
/// How long whoever writes into a pipe may be silent.
const SILENCE_MS: u16 = 5_000;

/// Reads a token file.
pub(crate) fn read_token(path: &Path) -> anyhow::Result<Secret> {
    let at = || format!("the token file `{}`", path.display());
    let bytes = read(path).with_context(at)?;
    let text = str::from_utf8(&bytes).ok();
    let text = text.ok_or_else(|| Failed::usage("it holds no text"));
    let text = text.with_context(at)?;
    Secret::token(text).with_context(at)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut options = File::options();
    // A pipe that nobody has opened for writing would hold the process here.
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
    }
    if !kind.is_file() && !kind.is_fifo() {
        return Err(Failed::usage("it is no regular file and no pipe"));
    }
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if kind.is_fifo() {
            wait(&file)?;
        }
        match file.read(&mut piece)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&piece[..count]),
        }
        if bytes.len() > MOST_BYTES {
            let text = format!("it has more than {MOST_BYTES} bytes, which is no token");
            return Err(Failed::usage(text));
        }
    }
}

/// Waits until the pipe has something to say or has ended.
fn wait(pipe: &File) -> anyhow::Result<()> {
    let mut asked = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    match poll(&mut asked, SILENCE_MS)? {
        0 => Err(Failed::usage("nothing comes from this pipe")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use crate::exit::Exit;

    #[test]
    fn a_token_comes_from_a_file_or_a_pipe_and_from_nothing_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        assert_eq!(read_token(&file).unwrap().expose(), "s3cret");
        // What `<(…)` of a shell is.
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"piped\n").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_token(Path::new(&path)).unwrap().expose(), "piped");
        std::fs::write(&file, vec![b'x'; MOST_BYTES + 1]).unwrap();
        for path in [&*file, dir.path(), Path::new("/dev/zero")] {
            let error = read_token(path).unwrap_err();
            assert_eq!(Exit::of_error(&error), Exit::Usage, "{error:#}");
        }
    }
}
