//! Groups of commands: one commit for many, one refusal for one, and what failures leave behind
//! (rules R3).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use tapedeck_domain::{LeaseInstant, Rejection, Timestamp};
use tapedeck_store::{Failure, Lane, Store, StoreError, Target};
use tokio::sync::Semaphore;

use crate::support::{
    Fixture, LEASE, WALL, event, options, owner, run, run_on, session, session_id,
};

/// Holds the writer in a command of its own until the gate opens, so that everything sent
/// meanwhile becomes one group.
async fn hold(store: &Arc<dyn Store>) -> Arc<Semaphore> {
    let gate = Arc::new(Semaphore::new(0));
    let entered = Arc::new(Semaphore::new(0));
    let (inside, opened) = (Arc::clone(&entered), Arc::clone(&gate));
    let store = Arc::clone(store);
    drop(spawn(async move {
        run(store.as_ref(), move |_| {
            let (inside, opened) = (Arc::clone(&inside), Arc::clone(&opened));
            Box::pin(async move {
                inside.add_permits(1);
                opened.acquire().await.unwrap().forget();
                Ok(())
            })
        })
        .await
    }));
    entered.acquire().await.unwrap().forget();
    gate
}

#[expect(
    clippy::disallowed_methods,
    reason = "callers of a test have no lifecycle"
)]
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

async fn queued(store: &dyn Store, commands: usize) {
    while store.health().queued < commands {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_producers_number_their_sessions_without_gaps() {
    let fixture = Fixture::open().await;
    let mut sessions = Vec::new();
    for number in 1..=64 {
        sessions.push(fixture.session(number).await);
    }
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let producers = sessions.clone().into_iter().map(|session| {
        let store = Arc::clone(&store);
        spawn(async move {
            for _ in 0..20 {
                let session = session.clone();
                run(store.as_ref(), move |tx| {
                    let session = session.clone();
                    Box::pin(async move {
                        let mut head = tx.lock_session_by_key(session.key).await?.head;
                        let seq = head.next_seq();
                        tx.insert_events(session.key, &[event(&session, None, seq)])
                            .await?;
                        Ok(tx.save_head(&head).await?)
                    })
                })
                .await
                .unwrap();
            }
        })
    });
    for producer in join_all(producers).await {
        producer.unwrap();
    }
    for session in sessions {
        let (head, seqs) = run(store.as_ref(), move |tx| {
            Box::pin(async move {
                let head = tx.lock_session_by_key(session.key).await?.head;
                let events = tx.events_after(session.key, 0, 100, 1 << 20).await?;
                let seqs: Vec<_> = events.iter().map(|event| event.session_seq).collect();
                Ok((head.head_seq, seqs))
            })
        })
        .await
        .unwrap();
        assert_eq!(head, 20);
        assert_eq!(seqs, (1..=20).collect::<Vec<_>>());
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_a_group_undoes_its_own_command_only() {
    let fixture = Fixture::open().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut callers = Vec::new();
    for number in 1..=9_u128 {
        let (caller, runs) = (Arc::clone(&store), Arc::clone(&runs));
        callers.push(spawn(async move {
            run(caller.as_ref(), move |tx| {
                runs.fetch_add(1, Ordering::SeqCst);
                Box::pin(async move {
                    if number == 2 {
                        return Err(Failure::NotFound(Target::Run));
                    }
                    // The same id twice breaks a constraint, which concerns one command as well.
                    let mut session = session(if number == 6 { 5 } else { number });
                    session.key = tx.insert_session(&session).await?;
                    let head = tapedeck_domain::owner::SessionHead::new(
                        session.key,
                        session.session_id,
                        &owner(),
                        tx.now(),
                    );
                    tx.insert_head(&head).await?;
                    match number {
                        3 | 4 => Err(Rejection::SessionClosed.into()),
                        8 => Ok(tx.delete_live_run(tapedeck_domain::RunKey(9)).await?),
                        _ => Ok(()),
                    }
                })
            })
            .await
        }));
        let sent = usize::try_from(number).unwrap();
        queued(store.as_ref(), sent).await;
    }
    gate.add_permits(1);
    let mut accepted = Vec::new();
    for (number, answer) in (1..=9_u128).zip(join_all(callers).await) {
        if answer.unwrap().is_ok() {
            accepted.push(number);
        }
    }
    assert_eq!(accepted, [1, 5, 7, 9]);
    assert_eq!(runs.load(Ordering::SeqCst), 9, "no command was run twice");
    for number in 1..=9_u128 {
        let found = store.reader().session("default", session_id(number)).await;
        let expected = accepted.contains(&number);
        assert_eq!(found.unwrap().is_some(), expected, "session {number}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_its_own_command_only() {
    let fixture = Fixture::open().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let mut callers = Vec::new();
    for number in 1..=3_u128 {
        let caller = Arc::clone(&store);
        callers.push(spawn(async move {
            run(caller.as_ref(), move |tx| {
                Box::pin(async move {
                    let key = tx.insert_session(&session(number)).await?;
                    assert_ne!(number, 2, "this command panics");
                    Ok(key)
                })
            })
            .await
        }));
        queued(store.as_ref(), callers.len()).await;
    }
    gate.add_permits(1);
    let answers: Vec<_> = join_all(callers)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(
        answers[1],
        Err(Failure::Store(StoreError::Internal(_)))
    ));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_fails_the_commands_that_do_not_fit_and_no_others() {
    let fixture = Fixture::with(|options| options.max_page_count = Some(150)).await;
    let session = fixture.session(1).await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let mut callers = Vec::new();
    // The third command is larger than all the room there is.
    for number in 1..=5_u64 {
        let (caller, session) = (Arc::clone(&store), session.clone());
        callers.push(spawn(async move {
            run(caller.as_ref(), move |tx| {
                let session = session.clone();
                Box::pin(async move {
                    let mut large = event(&session, None, number);
                    if number == 3 {
                        let text = serde_json::json!({"content": "x".repeat(1024 * 1024)});
                        large.record.payload = text.into();
                    }
                    Ok(tx.insert_events(session.key, &[large]).await?)
                })
            })
            .await
        }));
        queued(store.as_ref(), callers.len()).await;
    }
    gate.add_permits(1);
    let answers: Vec<_> = join_all(callers)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    for (index, answer) in answers.iter().enumerate() {
        if index == 2 {
            assert!(
                matches!(answer, Err(Failure::Store(StoreError::StorageFull))),
                "{answer:?}"
            );
        } else {
            assert!(answer.is_ok(), "{answer:?}");
        }
    }
    let seqs = run(store.as_ref(), move |tx| {
        Box::pin(async move {
            let events = tx.events_after(session.key, 0, 9, 1 << 20).await?;
            Ok(events
                .iter()
                .map(|event| event.session_seq)
                .collect::<Vec<_>>())
        })
    });
    assert_eq!(seqs.await.unwrap(), [1, 2, 4, 5]);
    assert!(store.health().writable);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_one_session_keep_their_order_over_all_lanes() {
    let fixture = Fixture::open().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let lanes = [
        Lane::Background,
        Lane::Append,
        Lane::Urgent,
        Lane::Admission,
    ];
    let mut callers = Vec::new();
    for number in 0..1_200_usize {
        let (caller, order) = (Arc::clone(&store), Arc::clone(&order));
        let session = u128::try_from(number % 3).unwrap();
        callers.push(spawn(async move {
            let lane = lanes[number % lanes.len()];
            run_on(
                caller.as_ref(),
                lane,
                Some(session_id(session)),
                move |_| {
                    let order = Arc::clone(&order);
                    Box::pin(async move {
                        order.lock().unwrap().push((session, number));
                        Ok(())
                    })
                },
            )
            .await
        }));
        queued(store.as_ref(), callers.len()).await;
    }
    gate.add_permits(1);
    for answer in join_all(callers).await {
        answer.unwrap().unwrap();
    }
    let order = std::mem::take(&mut *order.lock().unwrap());
    for session in 0..3 {
        let numbers: Vec<_> = order
            .iter()
            .filter(|(of, _)| *of == session)
            .map(|(_, number)| *number)
            .collect();
        assert_eq!(numbers.len(), 400);
        assert!(numbers.is_sorted(), "session {session}: {numbers:?}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_at_once_and_a_gone_caller_cancels_nothing() {
    let fixture = Fixture::with(|options| options.queue_commands = 2).await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let mut callers = Vec::new();
    for number in 1..=2_u128 {
        let caller = Arc::clone(&store);
        callers.push(spawn(async move {
            run(caller.as_ref(), move |tx| {
                Box::pin(async move {
                    let mut session = session(number);
                    session.key = tx.insert_session(&session).await?;
                    let head = tapedeck_domain::owner::SessionHead::new(
                        session.key,
                        session.session_id,
                        &owner(),
                        tx.now(),
                    );
                    Ok(tx.insert_head(&head).await?)
                })
            })
            .await
        }));
        queued(store.as_ref(), callers.len()).await;
    }
    let refused = run(store.as_ref(), |_| Box::pin(async { Ok(()) })).await;
    assert!(matches!(
        refused,
        Err(Failure::Store(StoreError::Overloaded { .. }))
    ));
    for caller in callers {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
    gate.add_permits(1);
    store.close().await;
    let reopened =
        tapedeck_store_sqlite::SqliteStore::open(options(fixture.dir.path(), &fixture.clock));
    let reopened = reopened.await.unwrap();
    for number in 1..=2 {
        let found = reopened
            .reader()
            .session("default", session_id(number))
            .await;
        assert!(found.unwrap().is_some(), "session {number}");
    }
    reopened.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_judged_at_the_commands_arrival() {
    let fixture = Fixture::open().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let caller = Arc::clone(&store);
    let reading = spawn(async move {
        run(caller.as_ref(), |tx| {
            let now = tx.now();
            Box::pin(async move { Ok(now) })
        })
        .await
    });
    queued(store.as_ref(), 1).await;
    fixture.clock.advance(70_000);
    gate.add_permits(1);
    let now = reading.await.unwrap().unwrap();
    assert_eq!(now.judged, LeaseInstant(LEASE));
    assert_eq!(now.lease, LeaseInstant(LEASE + 70_000));
    assert_eq!(now.wall, Timestamp(WALL + 70_000));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_finishes_what_was_accepted_and_refuses_the_rest() {
    let fixture = Fixture::open().await;
    let store: Arc<dyn Store> = Arc::new(fixture.store);
    let gate = hold(&store).await;
    let caller = Arc::clone(&store);
    let accepted = spawn(async move {
        run(caller.as_ref(), |tx| {
            Box::pin(async move { Ok(tx.insert_session(&session(1)).await?) })
        })
        .await
    });
    queued(store.as_ref(), 1).await;
    let closer = Arc::clone(&store);
    let closing = spawn(async move { closer.close().await });
    while store.health().writable {
        tokio::task::yield_now().await;
    }
    let refused = run(store.as_ref(), |_| Box::pin(async { Ok(()) })).await;
    assert!(matches!(
        refused,
        Err(Failure::Store(StoreError::Unavailable { .. }))
    ));
    gate.add_permits(1);
    accepted.await.unwrap().unwrap();
    closing.await.unwrap();
    store.close().await;
    let log = fixture.dir.path().join("tapedeck.db-wal");
    assert!(!log.exists(), "the log is copied and removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_reset_under_load() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let log = fixture.dir.path().join("tapedeck.db-wal");
    let mut longest = 0;
    let text = serde_json::json!({"content": "x".repeat(256 * 1024)});
    // 80 MiB in all, without a quiet moment.
    for number in 0..40 {
        let (session, text) = (session.clone(), text.clone());
        run(&fixture.store, move |tx| {
            let events: Vec<_> = (1..=8)
                .map(|seq| {
                    let mut large = event(&session, None, number * 8 + seq);
                    large.record.payload = (&text).into();
                    large
                })
                .collect();
            let key = session.key;
            Box::pin(async move { Ok(tx.insert_events(key, &events).await?) })
        })
        .await
        .unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    assert!(
        longest > 30 * 1024 * 1024,
        "the test must fill the log: {longest}"
    );
    assert!(longest < 64 * 1024 * 1024, "{longest}");
    fixture.store.close().await;
}
