//! Owners, epochs and the authority check that precedes every protected write (design §4.8,
//! rules R4, R5).

use crate::id::{RunKey, SessionId, SessionKey};
use crate::rejection::Rejection;
use crate::time::{LeaseInstant, Now, Timestamp};

/// Rises with every change of authority over a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// Who writes. All instances on one database act as `server:<deployment id>`; each local process
/// that embeds the control plane is its own owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The owner's name.
    pub owner_id: String,
    /// The epoch the caller remembers. The deployment remembers none (R4).
    pub epoch: Option<Epoch>,
    /// How long its lease lasts, in milliseconds.
    pub lease_ms: i64,
}

/// The hot row of a session: the log's head and the owner, locked by every write to the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionHead {
    /// The session's row number.
    pub session_key: SessionKey,
    /// The session.
    pub session_id: SessionId,
    /// The number of the newest event; 0 in an empty log.
    pub head_seq: u64,
    /// Rises when a restore opens a new view of the tape.
    pub projection_epoch: u64,
    /// The owner; `None` before the first.
    pub owner: Option<Owner>,
    /// The active run.
    pub active_run: Option<RunKey>,
    /// When a run, an event or an answer last came.
    pub last_activity_at: Timestamp,
}

impl SessionHead {
    /// The head of a session that is being created: its creator owns it with epoch 1.
    pub fn new(
        session_key: SessionKey,
        session_id: SessionId,
        authority: &Authority,
        now: Now,
    ) -> Self {
        Self {
            session_key,
            session_id,
            head_seq: 0,
            projection_epoch: 1,
            owner: Some(Owner {
                owner_id: authority.owner_id.clone(),
                epoch: Epoch(1),
                expires_at: Some(now.lease.plus_ms(authority.lease_ms)),
            }),
            active_run: None,
            last_activity_at: now.wall,
        }
    }

    /// Hands out the next number of the log.
    pub const fn next_seq(&mut self) -> u64 {
        self.head_seq += 1;
        self.head_seq
    }
}

/// The owner of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub owner_id: String,
    /// Its epoch; the row and its epoch stay after a release.
    pub epoch: Epoch,
    /// When its lease ends; `None` once released.
    pub expires_at: Option<LeaseInstant>,
}

impl Owner {
    /// Whether its lease still runs at `at`.
    pub fn is_live(&self, at: LeaseInstant) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at > at)
    }
}

/// How an authority came to hold a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// It held it already.
    Held,
    /// It held it before and its lease had lapsed or been released: epoch + 1, nothing interrupted.
    Reacquired,
    /// Another owner's lease had lapsed: epoch + 1, the active run must be interrupted and
    /// `OwnerChanged` written in the same transaction.
    TakenOver,
}

/// What the names of deployments begin with; all server instances on one database are one owner.
pub const DEPLOYMENT_PREFIX: &str = "server:";

/// Whether an owner is a deployment's servers, and no local process.
pub fn is_deployment(owner_id: &str) -> bool {
    owner_id.starts_with(DEPLOYMENT_PREFIX)
}

/// Whether an owner that is proved dead gives way before its lease ends (rules R8). A local process
/// took its executor along, so it does. A deployment's executors are processes of their own that wait
/// for it to come back (rules R6), so it keeps a session with an active run to the lease's end.
pub fn gives_way(owner_id: &str, has_active_run: bool) -> bool {
    !is_deployment(owner_id) || !has_active_run
}

/// Decides whether `authority` may write to the session now, and gives the owner row as it is
/// afterwards. `owner_is_dead` says that the present owner is proved dead (R8).
pub fn authorise(
    present: Option<&Owner>,
    authority: &Authority,
    owner_is_dead: bool,
    now: Now,
) -> Result<(Owner, Grant), Rejection> {
    let granted = |epoch| Owner {
        owner_id: authority.owner_id.clone(),
        epoch,
        expires_at: Some(now.lease.plus_ms(authority.lease_ms)),
    };
    let Some(present) = present else {
        return match authority.epoch {
            None => Ok((granted(Epoch(1)), Grant::Reacquired)),
            Some(_) => Err(Rejection::StaleEpoch),
        };
    };
    let mine = present.owner_id == authority.owner_id;
    let live = present.is_live(now.judged) && (mine || !owner_is_dead);
    let next = Epoch(present.epoch.0 + 1);
    match (mine, live) {
        (true, live) => {
            if let Some(epoch) = authority.epoch {
                if epoch != present.epoch {
                    return Err(Rejection::StaleEpoch);
                }
                if !live {
                    return Err(Rejection::OwnerLeaseExpired);
                }
            }
            if !live {
                return Ok((granted(next), Grant::Reacquired));
            }
            let renewed = granted(present.epoch);
            Ok((
                Owner {
                    expires_at: renewed.expires_at.max(present.expires_at),
                    ..renewed
                },
                Grant::Held,
            ))
        }
        (false, true) => Err(Rejection::OwnedElsewhere {
            owner_id: present.owner_id.clone(),
            until: present.expires_at.map_or(now.wall, |at| now.wall_of(at)),
        }),
        (false, false) => {
            if authority.epoch.is_some() {
                return Err(Rejection::StaleEpoch);
            }
            Ok((granted(next), Grant::TakenOver))
        }
    }
}

/// Renews without acquiring: keeps the epoch and fails once the lease has ended (design §4.8).
pub fn renew(present: Option<&Owner>, authority: &Authority, now: Now) -> Result<Owner, Rejection> {
    match present {
        Some(owner) if owner.owner_id == authority.owner_id => {
            if authority.epoch.is_some_and(|epoch| epoch != owner.epoch) {
                return Err(Rejection::StaleEpoch);
            }
            if !owner.is_live(now.judged) {
                return Err(Rejection::OwnerLeaseExpired);
            }
            let expires_at = Some(now.lease.plus_ms(authority.lease_ms)).max(owner.expires_at);
            Ok(Owner {
                expires_at,
                ..owner.clone()
            })
        }
        Some(_) | None => Err(Rejection::StaleEpoch),
    }
}

/// Releases: the row and its epoch stay, the lease ends.
pub fn release(present: &Owner, authority: &Authority) -> Result<Owner, Rejection> {
    if present.owner_id != authority.owner_id
        || authority.epoch.is_some_and(|epoch| epoch != present.epoch)
    {
        return Err(Rejection::StaleEpoch);
    }
    Ok(Owner {
        expires_at: None,
        ..present.clone()
    })
}

/// Decides whether a repair may touch the session: only where no live owner exists, this process
/// included (design §4.8). It takes nothing over: owner and epoch stay as they are.
pub fn maintain(present: Option<&Owner>, owner_is_dead: bool, now: Now) -> Result<(), Rejection> {
    match present {
        Some(owner) if owner.is_live(now.judged) && !owner_is_dead => {
            Err(Rejection::OwnedElsewhere {
                owner_id: owner.owner_id.clone(),
                until: owner.expires_at.map_or(now.wall, |at| now.wall_of(at)),
            })
        }
        Some(_) | None => Ok(()),
    }
}

/// Decides whether house-keeping may touch the session: where it is this process's or nobody's. Like a
/// repair it takes nothing over, since what it changes is no decision of an owner's.
pub fn tend(
    present: Option<&Owner>,
    authority: &Authority,
    owner_is_dead: bool,
    now: Now,
) -> Result<(), Rejection> {
    match present {
        Some(owner)
            if owner.owner_id == authority.owner_id
                && authority.epoch.is_none_or(|epoch| epoch == owner.epoch) =>
        {
            Ok(())
        }
        Some(_) | None => maintain(present, owner_is_dead, now),
    }
}

/// A live claim keeps its session owned: the lease reaches at least to the claim's end (R5).
pub fn cover_claim(owner: &mut Owner, claim_expires_at: LeaseInstant) {
    if let Some(expires_at) = owner.expires_at {
        owner.expires_at = Some(expires_at.max(claim_expires_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(at: i64) -> Now {
        Now {
            wall: Timestamp(at),
            lease: LeaseInstant(at),
            judged: LeaseInstant(at),
        }
    }

    fn authority(owner_id: &str) -> Authority {
        Authority {
            owner_id: owner_id.to_owned(),
            epoch: None,
            lease_ms: 60,
        }
    }

    fn owner(owner_id: &str, epoch: i64, expires_at: Option<i64>) -> Owner {
        Owner {
            owner_id: owner_id.to_owned(),
            epoch: Epoch(epoch),
            expires_at: expires_at.map(LeaseInstant),
        }
    }

    #[test]
    fn acquire_follows_the_table_of_design_4_8() {
        let cases = [
            ("no row", None, Ok((1, Grant::Reacquired))),
            (
                "mine and live",
                Some(owner("me", 4, Some(150))),
                Ok((4, Grant::Held)),
            ),
            (
                "mine but expired",
                Some(owner("me", 4, Some(100))),
                Ok((5, Grant::Reacquired)),
            ),
            (
                "mine but released",
                Some(owner("me", 4, None)),
                Ok((5, Grant::Reacquired)),
            ),
            (
                "another's expired",
                Some(owner("you", 4, Some(100))),
                Ok((5, Grant::TakenOver)),
            ),
            (
                "another's released",
                Some(owner("you", 4, None)),
                Ok((5, Grant::TakenOver)),
            ),
            (
                "another's live",
                Some(owner("you", 4, Some(150))),
                Err(Rejection::OwnedElsewhere {
                    owner_id: "you".to_owned(),
                    until: Timestamp(150),
                }),
            ),
        ];
        for (name, present, expected) in cases {
            let got = authorise(present.as_ref(), &authority("me"), false, now(100))
                .map(|(owner, grant)| (owner.epoch.0, grant));
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn a_dead_owner_counts_as_lapsed_now() {
        let present = owner("cli:1", 1, Some(500));
        let (taken, grant) = authorise(Some(&present), &authority("me"), true, now(100)).unwrap();
        assert_eq!((taken.epoch, grant), (Epoch(2), Grant::TakenOver));
    }

    #[test]
    fn house_is_kept_where_no_other_owner_is_live() {
        let tended = |present: Option<Owner>, dead| {
            tend(present.as_ref(), &authority("me"), dead, now(100)).is_ok()
        };
        assert!(tended(None, false));
        assert!(tended(Some(owner("me", 4, Some(150))), false));
        assert!(tended(Some(owner("me", 4, None)), false));
        assert!(tended(Some(owner("you", 4, Some(100))), false));
        assert!(tended(Some(owner("you", 4, Some(150))), true), "it is dead");
        assert!(!tended(Some(owner("you", 4, Some(150))), false));
        let stale = Authority {
            epoch: Some(Epoch(3)),
            ..authority("me")
        };
        let present = owner("me", 4, Some(150));
        assert!(tend(Some(&present), &stale, false, now(100)).is_err());
    }

    #[test]
    fn a_remembered_epoch_must_match_and_be_live() {
        let mut me = authority("me");
        me.epoch = Some(Epoch(3));
        let stale = authorise(Some(&owner("me", 4, Some(150))), &me, false, now(100));
        assert_eq!(stale, Err(Rejection::StaleEpoch));
        let expired = authorise(Some(&owner("me", 3, Some(100))), &me, false, now(100));
        assert_eq!(expired, Err(Rejection::OwnerLeaseExpired));
        let gone = authorise(Some(&owner("you", 4, None)), &me, false, now(100));
        assert_eq!(gone, Err(Rejection::StaleEpoch));
        let never = authorise(None, &me, false, now(100));
        assert_eq!(
            never,
            Err(Rejection::StaleEpoch),
            "an epoch of a row that never was"
        );
    }

    #[test]
    fn a_release_keeps_the_epoch_and_needs_the_owner_itself() {
        let mut me = authority("me");
        let released = release(&owner("me", 4, Some(150)), &me);
        assert_eq!(released, Ok(owner("me", 4, None)));
        let stranger = release(&owner("you", 4, Some(150)), &me);
        assert_eq!(stranger, Err(Rejection::StaleEpoch));
        me.epoch = Some(Epoch(3));
        let stale = release(&owner("me", 4, Some(150)), &me);
        assert_eq!(stale, Err(Rejection::StaleEpoch));
    }

    #[test]
    fn renewal_keeps_the_epoch_and_never_shortens() {
        let renewed = renew(Some(&owner("me", 2, Some(500))), &authority("me"), now(100)).unwrap();
        assert_eq!(renewed, owner("me", 2, Some(500)));
        let renewed = renew(Some(&owner("me", 2, Some(101))), &authority("me"), now(100)).unwrap();
        assert_eq!(renewed, owner("me", 2, Some(160)));
        let ended = renew(Some(&owner("me", 2, Some(100))), &authority("me"), now(100));
        assert_eq!(ended, Err(Rejection::OwnerLeaseExpired));
    }

    #[test]
    fn maintenance_needs_that_no_live_owner_exists() {
        let elsewhere = Err(Rejection::OwnedElsewhere {
            owner_id: "me".to_owned(),
            until: Timestamp(150),
        });
        let cases = [
            ("no owner", None, false, Ok(())),
            ("released", Some(owner("me", 4, None)), false, Ok(())),
            ("lapsed", Some(owner("me", 4, Some(100))), false, Ok(())),
            ("live", Some(owner("me", 4, Some(150))), false, elsewhere),
            ("dead", Some(owner("cli:1", 4, Some(150))), true, Ok(())),
        ];
        for (name, present, dead, expected) in cases {
            assert_eq!(
                maintain(present.as_ref(), dead, now(100)),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn a_live_claim_keeps_the_session_owned() {
        let mut held = owner("me", 1, Some(100));
        cover_claim(&mut held, LeaseInstant(400));
        assert_eq!(held.expires_at, Some(LeaseInstant(400)));
        let mut released = owner("me", 1, None);
        cover_claim(&mut released, LeaseInstant(400));
        assert_eq!(released.expires_at, None);
    }
}
