//! What several instances do to one session at once: numbers without gaps, decisions on rows as
//! they are under the lock (rules R1), claims past each other, and no deadlock (rules R2).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all, try_join_all};
use sqlx::PgConnection;
use tapedeck_domain::event::NewEvent;
use tapedeck_domain::executor::Contact;
use tapedeck_domain::run::{LiveRun, RunState, RunStatus, SettledClaim};
use tapedeck_domain::session::{ExecutorTarget, Session};
use tapedeck_domain::{LeaseInstant, Rejection, RunId, RunKey, Timestamp};
use tapedeck_store::rows::{ClaimFilter, LockedRun, QueueEntry, SettledRun};
use tapedeck_store::{Failure, Store, Target, Tx};
use tapedeck_store_postgres::PostgresStore;
use tokio::sync::Semaphore;

use crate::support::{
    Fixture, LEASE, OWNER, Pause, WALL, claim, connect, event, live_run, new_run, now, number,
    question, run, run_id, session_id,
};
use crate::wait::{eventually, within};

const LIMIT: Duration = Duration::from_secs(30);

/// Waits until a transaction of this database waits for a lock.
pub(crate) async fn somebody_waits(conn: &mut PgConnection) {
    let statement = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a transaction waits for a lock", LIMIT, async || {
        (number(conn, statement).await == 1).then_some(())
    })
    .await;
}

/// Uploads events as commands do: look which ids are stored, number the rest, count them in.
async fn append(
    tx: &mut dyn Tx,
    session: &Session,
    locked: LockedRun,
    ids: &[String],
) -> Result<Vec<u64>, Failure> {
    let Some(live) = locked.live else {
        return Err(Rejection::RunSettled {
            status: locked.status,
        }
        .into());
    };
    let known = tx.known_events(locked.key, ids).await?;
    let mut head = locked.head;
    let mut fresh: Vec<NewEvent> = Vec::new();
    for id in ids {
        if known.iter().all(|(known, _)| known != id) {
            head.head_seq += 1;
            let mut new = event(session, Some(&live), head.head_seq);
            new.record.event_id.clone_from(id);
            fresh.push(new);
        }
    }
    tx.insert_events(head.session_key, &fresh).await?;
    tx.save_head(&head).await?;
    Ok(fresh.iter().map(|new| new.record.session_seq).collect())
}

fn ids(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn running(fixture: &Fixture, number: u128) -> (Session, LiveRun) {
    let session = fixture.session(number).await;
    let state = RunState::Running(claim("e", 1, LEASE + 60_000));
    let live = fixture.run(&session, number, state).await;
    (session, live)
}

fn ended(status: RunStatus, seq: u64) -> SettledRun {
    SettledRun {
        status,
        result: None,
        error: None,
        recovery: None,
        claim: SettledClaim {
            attempt: 1,
            token_hash: None,
            body_digest: None,
        },
        agent_state: None,
        event_count: 0,
        settled_at: Timestamp(WALL),
        settled_seq: seq,
    }
}

/// Holds a run's head in a transaction that does `work` once the test lets it go on.
async fn first_holds<T, F>(
    store: &PostgresStore,
    pause: &Arc<Pause>,
    id: RunId,
    work: F,
) -> Result<T, Failure>
where
    T: Send + 'static,
    F: for<'a> Fn(&'a mut dyn Tx, LockedRun) -> BoxFuture<'a, Result<T, Failure>>,
    F: Clone + Send + Sync + 'static,
{
    let pause = Arc::clone(pause);
    run(store, move |tx| {
        let (pause, work) = (Arc::clone(&pause), work.clone());
        Box::pin(async move {
            let locked = tx.lock_run(id).await?.unwrap();
            pause.here().await;
            work(tx, locked).await
        })
    })
    .await
}

/// Uploads on an instance that has to wait for the head.
async fn upload(
    store: &PostgresStore,
    session: &Session,
    id: RunId,
    ids: Vec<String>,
) -> Result<Vec<u64>, Failure> {
    let session = session.clone();
    run(store, move |tx| {
        let (session, ids) = (session.clone(), ids.clone());
        Box::pin(async move {
            let locked = tx.lock_run(id).await?;
            let locked = locked.ok_or(Failure::NotFound(Target::Run))?;
            append(tx, &session, locked, &ids).await
        })
    })
    .await
}

#[tokio::test]
async fn a_retried_upload_that_waits_for_the_head_numbers_only_what_is_new() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let mut conn = connect(&fixture.database).await;
    let (session, live) = running(&fixture, 1).await;
    let pause = Pause::new();
    let written = session.clone();
    let first = first_holds(&fixture.store, &pause, live.run_id, move |tx, locked| {
        let session = written.clone();
        Box::pin(async move { append(tx, &session, locked, &ids(&["a", "b"])).await })
    });
    let retry = async {
        pause.reached().await;
        let again = upload(&other, &session, live.run_id, ids(&["b", "c", "a"]));
        let release = async {
            somebody_waits(&mut conn).await;
            pause.release();
        };
        tokio::join!(again, release).0
    };
    let (first, retry) = tokio::join!(first, retry);
    assert_eq!((first.unwrap(), retry.unwrap()), (vec![1, 2], vec![3]));
    let reader = fixture.store.reader();
    assert_eq!(reader.head_seq(session_id(1)).await.unwrap(), Some(3));
    fixture.check_log(1).await;
}

#[tokio::test]
async fn a_run_that_settles_while_an_upload_waits_takes_no_event() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let mut conn = connect(&fixture.database).await;
    let (session, live) = running(&fixture, 1).await;
    let pause = Pause::new();
    let settled_on = session.clone();
    let settle = first_holds(&fixture.store, &pause, live.run_id, move |tx, locked| {
        let session = settled_on.clone();
        Box::pin(async move {
            let mut head = locked.head;
            head.head_seq += 1;
            let end = event(&session, locked.live.as_ref(), head.head_seq);
            tx.settle_run(locked.key, &ended(RunStatus::Completed, head.head_seq))
                .await?;
            tx.delete_live_run(locked.key).await?;
            tx.insert_events(session.key, &[end]).await?;
            Ok(tx.save_head(&head).await?)
        })
    });
    let late = async {
        pause.reached().await;
        let late = upload(&other, &session, live.run_id, ids(&["late"]));
        let release = async {
            somebody_waits(&mut conn).await;
            pause.release();
        };
        tokio::join!(late, release).0
    };
    let (settled, late) = tokio::join!(settle, late);
    settled.unwrap();
    let completed = RunStatus::Completed;
    assert!(
        matches!(late, Err(Failure::Rejected(Rejection::RunSettled { status })) if status == completed),
        "{late:?}"
    );
    let reader = fixture.store.reader();
    assert_eq!(reader.head_seq(session_id(1)).await.unwrap(), Some(1));
    fixture.check_log(1).await;
}

#[tokio::test]
async fn a_run_that_is_deleted_while_somebody_waits_for_it_is_gone() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let mut conn = connect(&fixture.database).await;
    let (session, live) = running(&fixture, 1).await;
    let pause = Pause::new();
    let delete = first_holds(&fixture.store, &pause, live.run_id, move |tx, locked| {
        Box::pin(async move { Ok(tx.delete_session(locked.head.session_key).await?) })
    });
    let late = async {
        pause.reached().await;
        let late = upload(&other, &session, live.run_id, ids(&["late"]));
        let release = async {
            somebody_waits(&mut conn).await;
            pause.release();
        };
        tokio::join!(late, release).0
    };
    let (deleted, late) = tokio::join!(delete, late);
    deleted.unwrap();
    assert!(matches!(late, Err(Failure::NotFound(_))), "{late:?}");
}

#[tokio::test]
async fn a_held_head_is_passed_over_and_a_free_one_is_locked() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let (_, taken) = running(&fixture, 1).await;
    let (_, free) = running(&fixture, 2).await;
    let pause = Pause::new();
    let first = first_holds(&fixture.store, &pause, taken.run_id, |tx, locked| {
        Box::pin(async move {
            let mut head = locked.head;
            head.head_seq = 9;
            Ok(tx.save_head(&head).await?)
        })
    });
    let if_free = |id| {
        run(&other, move |tx| {
            Box::pin(async move { Ok(tx.lock_run_if_free(id).await?) })
        })
    };
    let second = async {
        pause.reached().await;
        assert_eq!(if_free(taken.run_id).await.unwrap(), None);
        assert_eq!(if_free(run_id(99)).await.unwrap(), None);
        let locked = if_free(free.run_id).await.unwrap().unwrap();
        assert_eq!(locked.live, Some(free));
        pause.release();
    };
    let (first, ()) = tokio::join!(first, second);
    first.unwrap();
    let locked = if_free(taken.run_id).await.unwrap().unwrap();
    assert_eq!((locked.head.head_seq, locked.live), (9, Some(taken)));
}

/// Half of the uploads are refused after they have inserted, so their numbers are given again.
#[tokio::test]
async fn parallel_uploads_to_one_session_leave_no_gap() {
    let fixture = Fixture::open().await;
    let stores = [fixture.instance().await, fixture.instance().await];
    let (session, live) = running(&fixture, 1).await;
    let uploads = (0..40_usize).map(|upload| {
        let (store, session) = (&stores[upload % 2], session.clone());
        let id = live.run_id;
        async move {
            let outcome = run(store, move |tx| {
                let session = session.clone();
                Box::pin(async move {
                    let names: Vec<_> = (0..5).map(|event| format!("{upload}-{event}")).collect();
                    let locked = tx.lock_run(id).await?.unwrap();
                    append(tx, &session, locked, &names).await?;
                    if upload % 4 < 2 {
                        return Err(Failure::Rejected(Rejection::ClaimLost));
                    }
                    Ok(())
                })
            })
            .await;
            assert_eq!(outcome.is_err(), upload % 4 < 2, "{outcome:?}");
        }
    });
    within("all uploads", LIMIT, join_all(uploads)).await;
    let reader = fixture.store.reader();
    assert_eq!(reader.head_seq(session_id(1)).await.unwrap(), Some(100));
    fixture.check_log(1).await;
}

async fn waiting(fixture: &Fixture, number: u128) -> LiveRun {
    let session = fixture.session(number).await;
    let ready_at = LeaseInstant(LEASE);
    let live = fixture
        .run(&session, number, RunState::Requested { ready_at })
        .await;
    let entry = QueueEntry {
        run_key: live.key,
        session_key: session.key,
        target: ExecutorTarget::default(),
        preference: None,
        flow: "default/".to_owned(),
        turn: live.key.0,
        ready_at,
    };
    run(&fixture.store, move |tx| {
        let entry = entry.clone();
        Box::pin(async move { Ok(tx.enqueue(&entry).await?) })
    })
    .await
    .unwrap();
    live
}

fn filter() -> ClaimFilter {
    ClaimFilter {
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        executor_id: "e".to_owned(),
        labels: BTreeMap::new(),
        session_id: None,
        owner_id: OWNER.to_owned(),
    }
}

/// Takes the oldest run whose head is free; gives it, and whether there was any candidate.
async fn take(tx: &mut dyn Tx, claimer: &str) -> Result<(Option<RunKey>, bool), Failure> {
    let candidates = tx.candidates(&filter(), LeaseInstant(LEASE), 4).await?;
    for candidate in &candidates {
        let Some(locked) = tx.lock_run_if_free(candidate.run_id).await? else {
            continue;
        };
        if tx.dequeue(locked.key).await?.is_none() {
            continue;
        }
        let mut live = locked.live.unwrap();
        let made = claim(&format!("{claimer}-{}", live.key.0), 1, LEASE + 60_000);
        live.state = RunState::Claimed(made.clone());
        tx.save_live_run(&live).await?;
        tx.insert_claim(live.key, &made, LeaseInstant(LEASE))
            .await?;
        return Ok((Some(live.key), true));
    }
    Ok((None, !candidates.is_empty()))
}

#[tokio::test]
async fn two_claimers_take_different_runs_without_waiting() {
    let fixture = Fixture::open().await;
    let other = fixture.instance().await;
    let runs = [
        waiting(&fixture, 1).await.key,
        waiting(&fixture, 2).await.key,
    ];
    let pause = Pause::new();
    let held = Arc::clone(&pause);
    let first = run(&fixture.store, move |tx| {
        let pause = Arc::clone(&held);
        Box::pin(async move {
            let taken = take(tx, "first").await?;
            pause.here().await;
            Ok(taken)
        })
    });
    let second = async {
        pause.reached().await;
        let claim = || {
            run(&other, |tx| {
                Box::pin(async move { take(tx, "second").await })
            })
        };
        let taken = within("the second claim", LIMIT, claim()).await.unwrap();
        assert_eq!(taken, (Some(runs[1]), true));
        // The first still holds its head, so its run is seen but not waited for.
        let nothing = within("the third claim", LIMIT, claim()).await.unwrap();
        assert_eq!(nothing, (None, true));
        pause.release();
    };
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.unwrap(), (Some(runs[0]), true));
}

#[tokio::test]
async fn many_claimers_take_every_run_once() {
    let fixture = Fixture::open().await;
    let mut runs = BTreeSet::new();
    for number in 1..=20 {
        runs.insert(waiting(&fixture, number).await.key);
    }
    let stores = [fixture.instance().await, fixture.instance().await];
    let claimers = (0..8_usize).map(|claimer| {
        let store = &stores[claimer % 2];
        async move {
            let mut taken = Vec::new();
            loop {
                let name = claimer.to_string();
                let outcome = run(store, move |tx| {
                    let name = name.clone();
                    Box::pin(async move { take(tx, &name).await })
                });
                match outcome.await? {
                    (Some(run), _) => taken.push(run),
                    (None, true) => {}
                    (None, false) => return Ok::<_, Failure>(taken),
                }
            }
        }
    });
    let taken = within("all claims", LIMIT, try_join_all(claimers)).await;
    let taken: Vec<_> = taken.unwrap().into_iter().flatten().collect();
    assert_eq!(taken.len(), 20, "{taken:?}");
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), runs);
}

/// One command of a kind on a session, in the order of locks that all commands have.
async fn command(store: &dyn Store, kind: usize, number: u128) -> Result<(), Failure> {
    run(store, move |tx| {
        Box::pin(async move {
            match kind {
                0 => upload_one(tx, number).await,
                1 => settle_and_request_again(tx, number).await,
                2 => take(tx, "mixed").await.map(|_taken| ()),
                3 => ask(tx, number).await,
                4 => {
                    let locked = tx.lock_session("default", session_id(number)).await?;
                    let locked = locked.unwrap();
                    tx.save_summary(&locked.session).await?;
                    tx.save_settings(&locked.session).await?;
                    tx.save_head(&locked.head).await?;
                    Ok(tx.save_contact(&contact(), now()).await?)
                }
                _ => {
                    let until = LeaseInstant(LEASE + 90_000);
                    tx.renew_active_heads(OWNER, LeaseInstant(LEASE), until)
                        .await?;
                    tx.release_idle_heads(OWNER, Timestamp(WALL + 1), 9).await?;
                    tx.expired_claims(LeaseInstant(LEASE), RunKey(0), 9).await?;
                    Ok(())
                }
            }
        })
    })
    .await
}

async fn upload_one(tx: &mut dyn Tx, number: u128) -> Result<(), Failure> {
    let locked = tx
        .lock_session("default", session_id(number))
        .await?
        .unwrap();
    let Some(id) = locked.session.summary.active_run_id else {
        return Ok(());
    };
    let run = tx.lock_run(id).await?.unwrap();
    let name = format!("mixed-{}", run.head.head_seq);
    append(tx, &locked.session, run, &[name]).await?;
    Ok(())
}

/// Ends the session's run and puts a new one into the queue, as promotion does.
async fn settle_and_request_again(tx: &mut dyn Tx, number: u128) -> Result<(), Failure> {
    let mut locked = tx
        .lock_session("default", session_id(number))
        .await?
        .unwrap();
    let mut next = number * 1_000;
    if let Some(id) = locked.session.summary.active_run_id {
        next = id.uuid().as_u128() - run_id(0).uuid().as_u128() + 1;
        let run = tx.lock_run(id).await?.unwrap();
        tx.dequeue(run.key).await?;
        tx.settle_run(run.key, &ended(RunStatus::Completed, run.head.head_seq))
            .await?;
        tx.delete_live_run(run.key).await?;
    }
    let ready_at = LeaseInstant(LEASE);
    let new = new_run(next, RunStatus::Requested);
    let mut live = live_run(&locked.session, next, RunState::Requested { ready_at });
    live.key = tx.insert_run(locked.session.key, &new).await?;
    tx.insert_live_run(&live).await?;
    let entry = QueueEntry {
        run_key: live.key,
        session_key: locked.session.key,
        target: ExecutorTarget::default(),
        preference: None,
        flow: "default/".to_owned(),
        turn: live.key.0,
        ready_at,
    };
    tx.enqueue(&entry).await?;
    locked.session.summary.active_run_id = Some(live.run_id);
    tx.save_summary(&locked.session).await?;
    locked.head.active_run = Some(live.key);
    Ok(tx.save_head(&locked.head).await?)
}

async fn ask(tx: &mut dyn Tx, number: u128) -> Result<(), Failure> {
    let locked = tx
        .lock_session("default", session_id(number))
        .await?
        .unwrap();
    let Some(id) = locked.session.summary.active_run_id else {
        return Ok(());
    };
    let run = tx.lock_run(id).await?.unwrap();
    let asked = question(&locked.session, &run.live.unwrap(), id.uuid().as_u128());
    if tx.interaction(asked.interaction_id).await?.is_none() {
        tx.insert_interaction(locked.session.key, &asked).await?;
    }
    Ok(tx.save_interaction(&asked).await?)
}

fn contact() -> Contact {
    Contact {
        executor_id: "e".to_owned(),
        instance_id: None,
        executor_kind: "local_cli".to_owned(),
        pool: "default".to_owned(),
        labels: BTreeMap::new(),
        process_id: None,
        version: None,
        capabilities: None,
        workspace: None,
        max_runs: None,
    }
}

#[tokio::test]
async fn parallel_commands_of_all_kinds_never_deadlock() {
    const SESSIONS: usize = 5;
    let fixture = Fixture::open().await;
    for number in 1..=SESSIONS as u128 {
        fixture.session(number).await;
    }
    let stores = [fixture.instance().await, fixture.instance().await];
    let open = Semaphore::new(12);
    let commands = (0..600_usize).map(|step| {
        let (store, open) = (&stores[step % 2], &open);
        async move {
            let _permit = open.acquire().await.unwrap();
            let number = (step * 7 / 3 % SESSIONS + 1) as u128;
            command(store, step % 6, number).await
        }
    });
    within("all commands", LIMIT * 2, try_join_all(commands))
        .await
        .unwrap();
    for number in 1..=SESSIONS as u128 {
        fixture.check_log(number).await;
    }
    for store in stores {
        store.close().await;
    }
    fixture.store.close().await;
    // What a connection counted is shown for certain once it has ended.
    let mut conn = connect(&fixture.database).await;
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("all other connections end", LIMIT, async || {
        (number(&mut conn, others).await == 0).then_some(())
    })
    .await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&mut conn, deadlocks).await, 0);
    let claims = number(&mut conn, "SELECT count(*) FROM claims").await;
    assert!(claims > 20, "{claims} claims are too few to show anything");
}
