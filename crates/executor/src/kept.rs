//! What of a claim outlives this process: what proves it, and beside it the spool. It owns the files,
//! their form and their removal. The token must never lie on the disk as it is: agents work under
//! the same user, and some look around.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tapedeck_client::Client;
use tapedeck_domain::RunId;

use crate::files::{if_there, private_dir, private_file};
use crate::held::{ClaimKey, Held};

const CLAIM: &str = "claim";
const EVENTS: &str = "events";

/// After that nobody will come for a claim any more; no lease and no outage is that long.
const STALE: Duration = Duration::from_hours(24);

/// The files of one claim. They stay until [`Self::remove`], so that a later process finds them if
/// this one dies.
#[derive(Debug)]
pub(crate) struct KeptClaim {
    claim: PathBuf,
    events: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Whose claim it is: what is kept for one server must never be sent to another.
    server: String,
    run_id: RunId,
    attempt: u32,
    executor_id: String,
    /// Sealed under the executor's credential.
    token: Vec<u8>,
}

/// What a later process can do about a kept claim.
#[derive(Debug)]
pub(crate) enum Reopened {
    /// It can speak in the claim's name.
    Ours(ClaimKey),
    /// An executor of another server may come for it.
    Others,
    /// Nobody can do anything with it.
    Unusable,
}

impl KeptClaim {
    /// Keeps a claim in `folder`. A run whose claim can't be kept goes on all the same; should this
    /// process die, its lease has to end it.
    pub(crate) fn keep(folder: &Path, client: &Client, held: &Held) -> Self {
        let name = format!("{}-{}", held.run_id, held.attempt);
        let kept = Self::named(&folder.join(name));
        if let Err(error) = kept.write(folder, client, held) {
            tracing::warn!(run.id = %held.run_id, %error, "the claim can't be kept");
        }
        kept
    }

    fn named(path: &Path) -> Self {
        Self {
            claim: path.with_extension(CLAIM),
            events: path.with_extension(EVENTS),
        }
    }

    fn write(&self, folder: &Path, client: &Client, held: &Held) -> io::Result<()> {
        private_dir(folder)?;
        let token = client.seal(&seal_name(held.run_id, held.attempt), &held.token);
        let record = Record {
            server: client.base_url().to_string(),
            run_id: held.run_id,
            attempt: held.attempt,
            executor_id: held.executor_id.clone(),
            token: token.ok_or_else(|| io::Error::other("its token can't be sealed"))?,
        };
        private_file(&self.claim)?.write_all(&serde_json::to_vec(&record)?)
    }

    /// Where its batches are spooled.
    pub(crate) fn events(&self) -> &Path {
        &self.events
    }

    /// The run has ended, or is not ours any more.
    pub(crate) fn remove(&self) {
        for path in [&self.claim, &self.events] {
            if let Err(error) = if_there(std::fs::remove_file(path)) {
                tracing::warn!(path = %path.display(), %error, "file could not be removed");
            }
        }
    }

    /// The claims in a folder.
    pub(crate) fn all_in(folder: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in if_there(std::fs::read_dir(folder))?.into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == CLAIM) {
                found.push(Self::named(&path));
            }
        }
        Ok(found)
    }

    /// Reads what was kept.
    pub(crate) fn reopen(&self, client: &Client) -> Reopened {
        let read = std::fs::read(&self.claim);
        let record = read.and_then(|bytes| Ok(serde_json::from_slice::<Record>(&bytes)?));
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(path = %self.claim.display(), %error, "a kept claim can't be read");
                return Reopened::Unusable;
            }
        };
        if record.server != client.base_url().as_str() {
            return if self.is_stale() {
                Reopened::Unusable
            } else {
                Reopened::Others
            };
        }
        let name = seal_name(record.run_id, record.attempt);
        let Some(token) = client.unseal(&name, &record.token) else {
            tracing::warn!(run.id = %record.run_id, "a kept claim is of another credential");
            return Reopened::Unusable;
        };
        Reopened::Ours(ClaimKey {
            run_id: record.run_id,
            executor_id: record.executor_id,
            token,
            attempt: record.attempt,
        })
    }

    fn is_stale(&self) -> bool {
        let age = |path: &Path| {
            path.metadata()?
                .modified()?
                .elapsed()
                .map_err(io::Error::other)
        };
        [&self.claim, &self.events]
            .into_iter()
            .filter_map(|path| age(path).ok())
            .min()
            .is_none_or(|age| age > STALE)
    }
}

fn seal_name(run_id: RunId, attempt: u32) -> String {
    format!("claim {run_id} {attempt}")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    use tapedeck_client::Secret;

    use super::*;
    use crate::testing::claim;

    fn client(port: u16, token: &str) -> Client {
        let base = format!("http://127.0.0.1:{port}");
        Client::http(&base, Some(&Secret::new(token))).unwrap()
    }

    #[test]
    fn a_kept_claim_is_private_shows_no_token_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("spool");
        let (held, own) = (Held::new(&claim(2)), client(1, "credential"));
        let kept = KeptClaim::keep(&folder, &own, &held);
        std::fs::write(kept.events(), "[]\n").unwrap();
        let text = std::fs::read(&kept.claim).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("secret"));
        let mode = kept.claim.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let found = KeptClaim::all_in(&folder).unwrap();
        assert_eq!(found.len(), 1);
        let Reopened::Ours(key) = found[0].reopen(&own) else {
            panic!("it is ours")
        };
        assert_eq!(key.token, held.token);
        assert_eq!((key.run_id, key.attempt), (held.run_id, 2));
        assert_eq!(key.executor_id, held.executor_id);
        assert!(matches!(
            found[0].reopen(&client(2, "credential")),
            Reopened::Others
        ));
        assert!(matches!(
            found[0].reopen(&client(1, "other")),
            Reopened::Unusable
        ));
        found[0].remove();
        assert!(KeptClaim::all_in(&folder).unwrap().is_empty());
        assert!(!kept.events().exists());
    }

    #[test]
    fn a_claim_of_another_server_is_given_up_after_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptClaim::keep(dir.path(), &client(1, "credential"), &Held::new(&claim(1)));
        let file = File::options().write(true).open(&kept.claim).unwrap();
        let written = file.metadata().unwrap().modified().unwrap();
        file.set_modified(written - STALE - Duration::from_mins(1))
            .unwrap();
        let reopened = kept.reopen(&client(2, "credential"));
        assert!(matches!(reopened, Reopened::Unusable));
    }

    #[test]
    fn a_record_that_was_cut_off_is_no_claim() {
        let dir = tempfile::tempdir().unwrap();
        let own = client(1, "credential");
        let kept = KeptClaim::keep(dir.path(), &own, &Held::new(&claim(1)));
        let file = File::options().write(true).open(&kept.claim).unwrap();
        file.set_len(20).unwrap();
        assert!(matches!(kept.reopen(&own), Reopened::Unusable));
    }
}
