//! Readers: pages, filters, what they may not do, and what they cost.

use tapedeck_domain::interaction::InteractionStatus;
use tapedeck_domain::run::{RunState, RunStatus};
use tapedeck_domain::session::Session;
use tapedeck_store::read::{EventFilter, InteractionFilter};
use tapedeck_store::{PageRequest, RunFilter, Store as _};

use crate::support::{Fixture, event, question, run, run_id, session_id};

const FIRST: PageRequest = PageRequest {
    before: None,
    limit: 2,
};

#[tokio::test]
async fn sessions_come_newest_first_in_pages_of_one_statement_each() {
    let fixture = Fixture::open().await;
    for number in 1..=5 {
        fixture.session(number).await;
    }
    let reader = fixture.store.reader();
    let before = fixture.store.read_statements();
    let mut page = FIRST;
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let found = reader.sessions("default", page).await.unwrap();
        pages += 1;
        seen.extend(found.items.iter().map(|view| view.session.session_id));
        let Some(next) = found.next else { break };
        page.before = Some(next);
    }
    assert_eq!(seen, [5, 4, 3, 2, 1].map(session_id));
    assert_eq!(fixture.store.read_statements() - before, pages);
    assert!(
        reader
            .sessions("other", FIRST)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    fixture.store.close().await;
}

#[tokio::test]
async fn runs_come_newest_first_of_one_session_or_of_all() {
    let fixture = Fixture::open().await;
    let (one, two) = (fixture.session(1).await, fixture.session(2).await);
    for number in 1..=3 {
        fixture.run(&one, number, RunState::Queued).await;
    }
    fixture.run(&two, 4, RunState::Queued).await;
    let reader = fixture.store.reader();
    let ids = |page: &tapedeck_store::Page<tapedeck_domain::run::Run>| -> Vec<_> {
        page.items.iter().map(|run| run.run_id).collect()
    };
    let all = RunFilter::default();
    let page = reader.runs("default", all, FIRST).await.unwrap();
    assert_eq!(ids(&page), [run_id(4), run_id(3)]);
    let rest = PageRequest {
        before: page.next,
        ..FIRST
    };
    let page = reader.runs("default", all, rest).await.unwrap();
    assert_eq!(ids(&page), [run_id(2), run_id(1)]);
    assert_eq!(page.next, None);
    let session = RunFilter {
        session_id: Some(one.session_id),
        ..all
    };
    let of_one = reader.runs("default", session, FIRST).await.unwrap();
    assert_eq!(ids(&of_one), [run_id(3), run_id(2)]);
    let hidden = reader.runs("other", session, FIRST).await.unwrap();
    assert!(hidden.items.is_empty());
    let run = reader.run("default", run_id(4)).await.unwrap().unwrap();
    assert_eq!(
        (run.session_id, run.status),
        (two.session_id, RunStatus::Queued)
    );
    assert_eq!(reader.run("other", run_id(4)).await.unwrap(), None);
    fixture.store.close().await;
}

/// One event of the session's own, four of run 1 and three of run 2.
async fn insert_events_of_two_runs(fixture: &Fixture, session: &Session) {
    let mine = fixture.run(session, 1, RunState::Queued).await;
    let other = fixture.run(session, 2, RunState::Queued).await;
    let written = session.clone();
    run(&fixture.store, move |tx| {
        let (session, mine, other) = (written.clone(), mine.clone(), other.clone());
        Box::pin(async move {
            let events: Vec<_> = (1..=8)
                .map(|seq| match seq {
                    1 => event(&session, None, seq),
                    2..=5 => event(&session, Some(&mine), seq),
                    _ => event(&session, Some(&other), seq),
                })
                .collect();
            Ok(tx.insert_events(session.key, &events).await?)
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn events_are_filtered_by_run_and_kind() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    insert_events_of_two_runs(&fixture, &session).await;
    let reader = fixture.store.reader();
    let all = EventFilter {
        session_id: session.session_id,
        after: 0,
        limit: 100,
        max_bytes: 1 << 20,
        run_id: None,
        kinds: Vec::new(),
    };
    let kinds = vec!["StreamDelta".to_owned()];
    let cases: [(EventFilter, Vec<u64>); 6] = [
        (all.clone(), (1..=8).collect()),
        (
            EventFilter {
                after: 6,
                ..all.clone()
            },
            [7, 8].into(),
        ),
        (
            EventFilter {
                limit: 2,
                ..all.clone()
            },
            vec![1, 2],
        ),
        (
            EventFilter {
                run_id: Some(run_id(1)),
                ..all.clone()
            },
            vec![2, 3, 4, 5],
        ),
        (
            EventFilter {
                kinds: kinds.clone(),
                ..all.clone()
            },
            vec![2, 4, 6, 8],
        ),
        (
            EventFilter {
                kinds,
                run_id: Some(run_id(1)),
                after: 2,
                ..all.clone()
            },
            vec![4],
        ),
    ];
    for (filter, expected) in cases {
        let found = reader.events(&filter).await.unwrap();
        let seqs: Vec<_> = found.events.iter().map(|event| event.session_seq).collect();
        assert_eq!(seqs, expected, "{filter:?}");
    }
    let elsewhere = EventFilter {
        session_id: session_id(9),
        ..all
    };
    assert!(reader.events(&elsewhere).await.unwrap().events.is_empty());
    fixture.store.close().await;
}

#[tokio::test]
async fn a_slice_of_events_is_bounded_by_rows_and_by_bytes() {
    let fixture = Fixture::open().await;
    let session = fixture.session(1).await;
    let written = session.clone();
    run(&fixture.store, move |tx| {
        let session = written.clone();
        Box::pin(async move {
            let events: Vec<_> = (1..=8).map(|seq| event(&session, None, seq)).collect();
            Ok(tx.insert_events(session.key, &events).await?)
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    for (limit, max_bytes, expected) in [
        (8, 1, (1, true)),
        (3, 1 << 20, (3, true)),
        (9, 1 << 20, (8, false)),
    ] {
        let filter = EventFilter {
            session_id: session.session_id,
            after: 0,
            limit,
            max_bytes,
            run_id: None,
            kinds: Vec::new(),
        };
        let slice = reader.events(&filter).await.unwrap();
        assert_eq!((slice.events.len(), slice.bounded), expected);
    }
    fixture.store.close().await;
}

#[tokio::test]
async fn the_inbox_is_filtered_by_status_session_and_run() {
    let fixture = Fixture::open().await;
    let mut asked = Vec::new();
    for number in 1..=2 {
        let session: Session = fixture.session(number).await;
        let live = fixture.run(&session, number, RunState::Queued).await;
        for question_number in [number, number + 10] {
            let mut question = question(&session, &live, question_number);
            if question_number > 10 {
                question.status = InteractionStatus::Denied;
            }
            asked.push((session.key, question));
        }
    }
    run(&fixture.store, move |tx| {
        let asked = asked.clone();
        Box::pin(async move {
            for (session, question) in &asked {
                tx.insert_interaction(*session, question).await?;
            }
            Ok(())
        })
    })
    .await
    .unwrap();
    let reader = fixture.store.reader();
    let all = InteractionFilter::default();
    let pending = Some(InteractionStatus::Pending);
    let one = Some(session_id(1));
    let cases = [
        (all.clone(), vec!["request-12", "request-11"]),
        (
            InteractionFilter {
                status: pending,
                ..all.clone()
            },
            vec!["request-2", "request-1"],
        ),
        (
            InteractionFilter {
                session_id: one,
                ..all.clone()
            },
            vec!["request-11", "request-1"],
        ),
        (
            InteractionFilter {
                session_id: one,
                status: pending,
                ..all.clone()
            },
            vec!["request-1"],
        ),
        (
            InteractionFilter {
                run_id: Some(run_id(2)),
                ..all
            },
            vec!["request-12", "request-2"],
        ),
    ];
    for (filter, expected) in cases {
        let page = reader
            .interactions("default", &filter, FIRST)
            .await
            .unwrap();
        let ids: Vec<_> = page
            .items
            .iter()
            .map(|item| item.request_id.as_str())
            .collect();
        assert_eq!(ids, expected, "{filter:?}");
        let hidden = reader.interactions("other", &filter, FIRST).await.unwrap();
        assert!(hidden.items.is_empty());
    }
    fixture.store.close().await;
}

#[tokio::test]
async fn heads_of_many_sessions_cost_one_statement() {
    let fixture = Fixture::open().await;
    for number in 1..=3_u64 {
        let key = fixture.session(number.into()).await.key;
        run(&fixture.store, move |tx| {
            Box::pin(async move {
                let mut head = tx.lock_session_by_key(key).await?.head;
                head.head_seq = number * 10;
                Ok(tx.save_head(&head).await?)
            })
        })
        .await
        .unwrap();
    }
    let reader = fixture.store.reader();
    let before = fixture.store.read_statements();
    let asked = [3, 9, 1].map(session_id);
    let mut found = reader.head_seqs(&asked).await.unwrap();
    assert_eq!(fixture.store.read_statements() - before, 1);
    found.sort();
    assert_eq!(found, [(session_id(1), 10), (session_id(3), 30)]);
    assert!(reader.head_seqs(&[]).await.unwrap().is_empty());
    fixture.store.close().await;
}
