//! The named pipes between an executor and a guard, in a directory that only this user can enter.
//! It owns their names, which must never outlast the start of the guard.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe;

use crate::files::private_dir;

/// The named pipes of one guard. The executor keeps the control pipe open for reading as well, so
/// that opening and writing never wait for the guard.
pub(super) struct Pipes {
    pub(super) names: PipeNames,
    pub(super) control: pipe::Sender,
    pub(super) status: pipe::Receiver,
    /// A writer that keeps the status pipe from ending before the guard has opened it.
    pub(super) status_hold: File,
}

impl Pipes {
    pub(super) fn create(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join("guards");
        private_dir(&folder)?;
        let mut names = PipeNames::default();
        names.control = new_pipe(&folder, "control")?;
        names.status = new_pipe(&folder, "status")?;
        let control = pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(&names.control)?;
        let status = pipe::OpenOptions::new().open_receiver(&names.status)?;
        let status_hold = File::options().write(true).open(&names.status)?;
        Ok(Self {
            names,
            control,
            status,
            status_hold,
        })
    }
}

/// Removes the names of a guard that did not come to remove them itself.
#[derive(Default)]
pub(super) struct PipeNames {
    pub(super) control: PathBuf,
    pub(super) status: PathBuf,
}

impl Drop for PipeNames {
    fn drop(&mut self) {
        for name in [&self.control, &self.status] {
            // As a rule the guard was faster.
            let _ = std::fs::remove_file(name);
        }
    }
}

fn new_pipe(folder: &Path, end: &str) -> io::Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}.{end}", std::process::id()));
        match mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(()) => return Ok(path),
            // Left by a process of the same number.
            Err(nix::errno::Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
