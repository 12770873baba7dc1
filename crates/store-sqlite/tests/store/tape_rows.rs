//! What a restore, an executor's own entries and a fork do to a tape: nothing of it is lost.

use serde_json::json;
use tapedeck_domain::checkpoint::ForkOrigin;
use tapedeck_domain::digest::Digest;
use tapedeck_domain::run::{RunStatus, SettledClaim};
use tapedeck_domain::session::Session;
use tapedeck_domain::tape::{EntryKind, EntrySource, NewEntry, TapeEntry};
use tapedeck_domain::{CheckpointId, RunId, RunKey, SessionKey, TapeEntryId, Timestamp};
use tapedeck_store::rows::SettledRun;
use tapedeck_store::{Failure, Store as _, TapeFilter, Tx};
use uuid::Uuid;

use crate::support::{Fixture, WALL, new_run, run, run_id, session_id};

type Placed = (u64, TapeEntryId, NewEntry);

fn entry_id(number: u64) -> TapeEntryId {
    TapeEntryId::new(Uuid::from_u128(0x5000_0000 + u128::from(number)))
}

fn placed(position: u64, kind: EntryKind, run: Option<RunId>, first_seq: u64) -> Placed {
    let entry = NewEntry {
        kind,
        payload: json!({"text": format!("entry {position}")}),
        run_id: run,
        first_seq,
        created_at: Timestamp(WALL),
        anchor_type: None,
        source: EntrySource::Projection,
        meta: None,
    };
    (position, entry_id(position), entry)
}

/// What an executor sent, or a command wrote.
fn from(source: EntrySource, mut entry: Placed) -> Placed {
    entry.2.source = source;
    entry
}

/// The tape of two settled runs with an anchor between them; the first ends at position 4 by event
/// 5, the second at position 9 by event 9.
fn two_runs() -> Vec<Placed> {
    let (first, second) = (Some(run_id(1)), Some(run_id(2)));
    let mut anchor = from(EntrySource::Server, placed(5, EntryKind::Anchor, None, 6));
    anchor.2.anchor_type = Some("resume_boundary".to_owned());
    vec![
        placed(1, EntryKind::UserMessage, first, 2),
        placed(2, EntryKind::Thinking, first, 3),
        placed(3, EntryKind::AssistantMessage, first, 4),
        placed(4, EntryKind::RunEnd, first, 5),
        anchor,
        placed(6, EntryKind::UserMessage, second, 7),
        placed(7, EntryKind::ToolCall, second, 8),
        placed(9, EntryKind::RunEnd, second, 9),
    ]
}

async fn settled(
    tx: &mut dyn Tx,
    session: SessionKey,
    number: u128,
    seq: u64,
) -> Result<RunKey, Failure> {
    let key = tx
        .insert_run(session, &new_run(number, RunStatus::Requested))
        .await?;
    let settled = SettledRun {
        status: RunStatus::Completed,
        result: None,
        error: None,
        recovery: None,
        claim: SettledClaim {
            attempt: 1,
            token_hash: Some(Digest::of_bytes(b"token")),
            body_digest: None,
        },
        agent_state: None,
        event_count: 0,
        settled_at: Timestamp(WALL),
        settled_seq: seq,
    };
    tx.settle_run(key, &settled).await?;
    Ok(key)
}

fn positions(entries: &[TapeEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.position).collect()
}

fn everything(session: &Session) -> TapeFilter {
    TapeFilter {
        session_id: session.session_id,
        after: 0,
        limit: 100,
        max_bytes: 1 << 20,
        include_superseded: true,
    }
}

#[tokio::test]
async fn an_entry_keeps_its_source_and_notes_and_is_known_by_its_id() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    run(&fixture.store, move |tx| {
        let (key, other) = (session.key, other.key);
        Box::pin(async move {
            let own = |position| {
                let run = Some(run_id(1));
                let mut entry = placed(position, EntryKind::AssistantMessage, run, 3);
                entry.2.meta = Some(json!({"model": "m"}));
                from(EntrySource::Executor, entry)
            };
            // An executor's entries of one request share a number, which its own ids tell apart.
            tx.insert_tape_entries(key, &[own(1), own(2)]).await?;
            tx.insert_tape_entries(other, &[placed(3, EntryKind::Plan, None, 3)])
                .await?;
            let ids = [entry_id(3), entry_id(9), entry_id(2)];
            let mut known = tx.known_tape_entries(&ids).await?;
            known.sort_by_key(|known| known.session_id);
            assert_eq!(known.len(), 2);
            assert_eq!(known[0].session_id, session_id(1));
            assert_eq!(
                known[0].entry,
                TapeEntry {
                    position: 2,
                    entry_id: entry_id(2),
                    kind: EntryKind::AssistantMessage,
                    payload: json!({"text": "entry 2"}),
                    anchor_type: None,
                    run_id: Some(run_id(1)),
                    first_seq: 3,
                    created_at: Timestamp(WALL),
                    source: EntrySource::Executor,
                    meta: Some(json!({"model": "m"})),
                    superseded_by_checkpoint_id: None,
                }
            );
            assert_eq!(known[1].session_id, session_id(2));
            assert_eq!(known[1].entry.source, EntrySource::Projection);
            assert_eq!(known[1].entry.meta, None);
            assert!(tx.known_tape_entries(&[]).await?.is_empty());
            Ok(())
        })
    })
    .await
    .unwrap();
    fixture.store.close().await;
}

#[tokio::test]
async fn an_executors_own_entries_replace_what_was_projected_of_its_uploads() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let filter = everything(&session);
    run(&fixture.store, move |tx| {
        let key = session.key;
        Box::pin(async move {
            tx.insert_tape_entries(key, &two_runs()).await?;
            let own = placed(10, EntryKind::AssistantMessage, Some(run_id(1)), 4);
            let own = from(EntrySource::Executor, own);
            tx.insert_tape_entries(key, &[own]).await?;
            assert_eq!(tx.replace_projected(key, run_id(1)).await?, 2);
            assert_eq!(tx.replace_projected(key, run_id(1)).await?, 0);
            let tail = tx.tape_tail(key, 100).await?;
            assert_eq!(positions(&tail), [1, 4, 5, 6, 7, 9, 10]);
            // What is replaced is not put aside by a later restore as well.
            let by = CheckpointId::new(Uuid::from_u128(1));
            assert_eq!(tx.supersede_tape(key, 0, by).await?, 7);
            Ok(())
        })
    })
    .await
    .unwrap();
    let all = fixture.store.reader().tape(&filter).await.unwrap();
    assert_eq!(positions(&all), [1, 2, 3, 4, 5, 6, 7, 9, 10]);
    let aside = all
        .iter()
        .filter(|entry| entry.superseded_by_checkpoint_id.is_some());
    assert_eq!(aside.count(), 7);
    fixture.store.close().await;
}

#[tokio::test]
async fn a_restore_puts_later_entries_aside_and_readers_can_still_see_them() {
    let fixture = Fixture::open().await;
    let (session, other) = (fixture.session(1).await, fixture.session(2).await);
    let filter = everything(&session);
    let by = CheckpointId::new(Uuid::from_u128(1));
    run(&fixture.store, move |tx| {
        let (key, other) = (session.key, other.key);
        Box::pin(async move {
            tx.insert_tape_entries(key, &two_runs()).await?;
            tx.insert_tape_entries(other, &[placed(50, EntryKind::Plan, None, 1)])
                .await?;
            assert_eq!(tx.supersede_tape(key, 5, by).await?, 3);
            assert_eq!(positions(&tx.tape_tail(key, 2).await?), [4, 5]);
            // What was put aside keeps the mark of the first restore.
            let again = CheckpointId::new(Uuid::from_u128(2));
            assert_eq!(tx.supersede_tape(key, 4, again).await?, 1);
            assert_eq!(positions(&tx.tape_tail(other, 9).await?), [50]);
            Ok(())
        })
    })
    .await
    .unwrap();

    let reader = fixture.store.reader();
    let active = TapeFilter {
        include_superseded: false,
        ..filter
    };
    let size = json!({"text": "entry 1"}).to_string().len();
    for (case, expected) in [
        (filter, vec![1, 2, 3, 4, 5, 6, 7, 9]),
        (active, vec![1, 2, 3, 4]),
        (TapeFilter { after: 2, ..active }, vec![3, 4]),
        (TapeFilter { after: 6, ..filter }, vec![7, 9]),
        (TapeFilter { limit: 3, ..filter }, vec![1, 2, 3]),
        (TapeFilter { limit: 3, ..active }, vec![1, 2, 3]),
        (
            TapeFilter {
                max_bytes: size + 1,
                ..filter
            },
            vec![1, 2],
        ),
        (
            TapeFilter {
                max_bytes: 1,
                ..active
            },
            vec![1],
        ),
        (
            TapeFilter {
                session_id: session_id(9),
                ..filter
            },
            vec![],
        ),
    ] {
        let found = reader.tape(&case).await.unwrap();
        assert_eq!(positions(&found), expected, "{case:?}");
    }
    let all = reader.tape(&filter).await.unwrap();
    assert_eq!(all[5].superseded_by_checkpoint_id, Some(by));
    assert_eq!(all[3].superseded_by_checkpoint_id, None);
    fixture.store.close().await;
}

#[tokio::test]
async fn the_settled_conversation_ends_where_the_newest_run_of_its_time_did() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    run(&fixture.store, move |tx| {
        let key = session.key;
        Box::pin(async move {
            assert_eq!(tx.settled_position(key, 100).await?, 0);
            settled(tx, key, 1, 5).await?;
            settled(tx, key, 2, 9).await?;
            tx.insert_tape_entries(key, &two_runs()).await?;
            for (seq, position) in [(0, 0), (4, 0), (5, 4), (8, 4), (9, 9), (100, 9)] {
                assert_eq!(tx.settled_position(key, seq).await?, position, "{seq}");
            }
            // A run that the projection has not come to yet has no end on the tape.
            settled(tx, key, 3, 12).await?;
            assert_eq!(tx.settled_position(key, 100).await?, 9);
            // Nor does what a restore has put aside count, on the tape or among the runs.
            let by = CheckpointId::new(Uuid::from_u128(1));
            tx.supersede_tape(key, 5, by).await?;
            assert_eq!(tx.settled_position(key, 100).await?, 4);
            tx.supersede_runs(key, 0, by, Timestamp(WALL)).await?;
            assert_eq!(tx.settled_position(key, 100).await?, 0);
            Ok(())
        })
    })
    .await
    .unwrap();
    fixture.store.close().await;
}

#[tokio::test]
async fn a_fork_gets_the_active_entries_under_ids_of_its_own() {
    let fixture = Fixture::open().await;
    let (source, fork) = (fixture.session(1).await, fork_of(&fixture, 2).await);
    let second = fork_of(&fixture, 3).await;
    run(&fixture.store, move |tx| {
        let (source, fork, second) = (source.key, fork.key, second.key);
        Box::pin(async move {
            settled(tx, source, 1, 5).await?;
            settled(tx, source, 2, 9).await?;
            let mut entries = two_runs();
            entries[1].2.meta = Some(json!({"n": 1}));
            tx.insert_tape_entries(source, &entries).await?;
            tx.replace_projected(source, run_id(1)).await?;
            let by = CheckpointId::new(Uuid::from_u128(1));
            tx.supersede_tape(source, 8, by).await?;

            assert_eq!(tx.copy_tape(source, fork, 6).await?, 4);
            let (of_source, copied) = (
                tx.tape_tail(source, 100).await?,
                tx.tape_tail(fork, 100).await?,
            );
            assert_eq!(
                positions(&of_source),
                [1, 4, 5, 6, 7],
                "the source is as it was"
            );
            assert_eq!(positions(&copied), [1, 4, 5, 6]);
            for (copy, original) in copied.iter().zip(&of_source) {
                let id = copy.entry_id.uuid();
                assert_eq!(
                    (id.get_version_num(), id.get_variant()),
                    (4, uuid::Variant::RFC4122)
                );
                assert_ne!(copy.entry_id, original.entry_id);
                let entry_id = original.entry_id;
                assert_eq!(
                    &TapeEntry {
                        entry_id,
                        ..copy.clone()
                    },
                    original
                );
            }

            // A fork ends at first where what it got does: the numbers there are another log's. Later
            // its own runs count, and a fork of the fork has all of it.
            assert_eq!(tx.settled_position(fork, 1).await?, 4);
            settled(tx, fork, 7, 3).await?;
            let own = Some(run_id(7));
            let (asked, end) = (
                placed(20, EntryKind::UserMessage, own, 2),
                placed(21, EntryKind::RunEnd, own, 3),
            );
            tx.insert_tape_entries(fork, &[asked, end]).await?;
            assert_eq!(tx.settled_position(fork, 2).await?, 4);
            assert_eq!(tx.settled_position(fork, 3).await?, 21);
            assert_eq!(tx.copy_tape(fork, second, 21).await?, 6);
            assert_eq!(tx.settled_position(second, 1).await?, 21);
            Ok(())
        })
    })
    .await
    .unwrap();
    fixture.store.close().await;
}

/// A session that says that it is a fork.
async fn fork_of(fixture: &Fixture, number: u128) -> Session {
    run(&fixture.store, move |tx| {
        Box::pin(async move {
            let mut session = crate::support::session(number);
            session.forked_from = Some(ForkOrigin {
                session_id: session_id(1),
                checkpoint_id: None,
                session_seq: 9,
            });
            session.key = tx.insert_session(&session).await?;
            Ok(session)
        })
    })
    .await
    .unwrap()
}
