//! A copy of the database file while servers and commands write to it: whole, of one moment, and
//! proved before it gets its name. It never touches a file that is there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tapedeck_domain::id::LogId;
use tapedeck_store::{ArchiveError, StoreError};
use uuid::Builder;

use crate::clock::Clock;
use crate::encode::blob;
use crate::error::{expect_rows, from_sqlx, internal};
use crate::file::SqliteFile;

/// What a backup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// The copy's log, which is another one: a cursor of the original says nothing there.
    pub log_id: LogId,
    /// Its size.
    pub bytes: u64,
}

impl SqliteFile {
    /// Writes a copy to `target`, where nothing may be yet.
    pub async fn backup(&self, target: &Path) -> Result<Backup, ArchiveError> {
        if target.symlink_metadata().is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
        }
        let part = Part::create(target)?;
        self.copy_into(&part.0).await?;
        let log_id = finish(&part.0).await?;
        let bytes = part.publish(target)?;
        Ok(Backup { log_id, bytes })
    }

    async fn copy_into(&self, part: &Path) -> Result<(), StoreError> {
        let name = part
            .to_str()
            .ok_or_else(|| internal("the backup's name must be UTF-8"))?;
        let statement = format!("VACUUM INTO '{}'", name.replace('\'', "''"));
        let mut conn = self.connect().await?;
        sqlx::Executor::execute(&mut conn, AssertSqlSafe(statement))
            .await
            .map_err(from_sqlx)?;
        conn.close().await.map_err(from_sqlx)
    }
}

/// Gives the copy a log of its own and looks whether it is sound.
async fn finish(part: &Path) -> Result<LogId, StoreError> {
    let file = SqliteFile::new(part, Clock::system());
    let mut conn = file.connect_to_write().await?;
    let log_id = LogId::new(Builder::from_random_bytes(rand::random()).into_uuid());
    let id = blob(log_id.uuid());
    let done = sqlx::query!("UPDATE deployment SET log_id = ? WHERE id = 1", id)
        .execute(&mut conn)
        .await
        .map_err(from_sqlx)?;
    expect_rows("deployment", done.rows_affected(), 1)?;
    refuse_damage(&mut conn).await?;
    conn.close().await.map_err(from_sqlx)?;
    Ok(log_id)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a pragma is none of the schema that statements are checked against"
)]
async fn refuse_damage(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    let said: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
        .fetch_one(conn)
        .await
        .map_err(from_sqlx)?;
    if said == "ok" {
        Ok(())
    } else {
        Err(internal(format!("the copy is not sound: {said}")))
    }
}

/// The copy under a name of its own; it goes with this value unless it is published.
struct Part(PathBuf);

impl Part {
    /// An empty file, for its owner alone, beside the target.
    fn create(target: &Path) -> io::Result<Self> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{:08x}.part", rand::random::<u32>()));
        let part = PathBuf::from(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        Ok(Self(part))
    }

    /// Makes the copy last and gives it the target's name, if that is still free.
    fn publish(&self, target: &Path) -> io::Result<u64> {
        let file = File::open(&self.0)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        // A second name is refused where there is one already; a new name would replace it.
        std::fs::hard_link(&self.0, target)?;
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(bytes)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}
