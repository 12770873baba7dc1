//! The log over all sessions while transactions overlap (rules R22): nothing slips in behind a
//! reader, and no session's events change their order.

use std::time::Duration;

use tapedeck_domain::event::NewEvent;
use tapedeck_domain::session::Session;
use tapedeck_store::{Failure, FeedFilter, FeedPosition, Store, Tx};
use tapedeck_store_postgres::PostgresStore;

use crate::support::{Fixture, Pause, connect, event, run};
use crate::wait::{eventually, within};

const LIMIT: Duration = Duration::from_secs(30);

/// Everything there is to read, one row at a time: session and number.
async fn feed(store: &PostgresStore, mut after: FeedPosition) -> (Vec<(u128, u64)>, FeedPosition) {
    let mut seen = Vec::new();
    loop {
        let filter = FeedFilter {
            namespace: "default".to_owned(),
            after,
            limit: 1,
            max_bytes: usize::MAX,
            kinds: Vec::new(),
        };
        let slice = store.reader().feed(&filter).await.unwrap();
        let events = slice.events.iter();
        seen.extend(events.map(|(_, record)| {
            let session = record.session_id.uuid().as_u128();
            (session, record.session_seq)
        }));
        after = slice.through;
        if !slice.bounded {
            return (seen, after);
        }
    }
}

/// The same, once so many events are there: an open transaction of any database of the server holds
/// back what comes after it, and other tests run beside this one.
async fn feed_of(
    store: &PostgresStore,
    after: FeedPosition,
    count: usize,
) -> (Vec<(u128, u64)>, FeedPosition) {
    eventually("the feed has caught up", LIMIT, async || {
        let found = feed(store, after).await;
        (found.0.len() >= count).then_some(found)
    })
    .await
}

/// Locks a session's head and writes its next event, as commands do.
async fn append(tx: &mut dyn Tx, session: &Session) -> Result<(), Failure> {
    let mut head = tx.lock_session_by_key(session.key).await?.head;
    head.head_seq += 1;
    let new: NewEvent = event(session, None, head.head_seq);
    tx.insert_events(head.session_key, &[new]).await?;
    Ok(tx.save_head(&head).await?)
}

async fn append_one(store: &PostgresStore, session: &Session) {
    let session = session.clone();
    run(store, move |tx| {
        let session = session.clone();
        Box::pin(async move { append(tx, &session).await })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_open_transaction_holds_back_whatever_it_could_slip_in_behind() {
    let fixture = Fixture::open().await;
    let (one, two) = (fixture.session(1).await, fixture.session(2).await);
    append_one(&fixture.store, &one).await;
    let (seen, before) = feed_of(&fixture.store, FeedPosition::default(), 1).await;
    assert_eq!(seen, [(1, 1)]);
    let pause = Pause::new();
    let open = {
        let (pause, one) = (pause.clone(), one.clone());
        run(&fixture.store, move |tx| {
            let (pause, one) = (pause.clone(), one.clone());
            Box::pin(async move {
                append(tx, &one).await?;
                pause.here().await;
                Ok(())
            })
        })
    };
    let others = async {
        pause.reached().await;
        append_one(&fixture.store, &two).await;
        // Committed, and yet not to be read: a cursor behind it would miss what is still open.
        let held_back = feed(&fixture.store, before).await;
        assert_eq!(held_back, (Vec::new(), before));
        let end = fixture.store.reader().feed_end().await.unwrap();
        pause.release();
        end
    };
    let both = async { tokio::join!(open, others) };
    let (done, end) = within("both transactions end", LIMIT, both).await;
    done.unwrap();
    let (seen, _) = feed_of(&fixture.store, before, 2).await;
    assert_eq!(seen, [(1, 2), (2, 1)]);
    assert_eq!(
        feed_of(&fixture.store, end, 2).await.0,
        seen,
        "the end was before both"
    );
}

#[tokio::test]
async fn a_session_keeps_its_order_where_the_older_transaction_writes_later() {
    let fixture = Fixture::open().await;
    let (one, two) = (fixture.session(1).await, fixture.session(2).await);
    let pause = Pause::new();
    let older = {
        let (pause, one, two) = (pause.clone(), one.clone(), two.clone());
        run(&fixture.store, move |tx| {
            let (pause, one, two) = (pause.clone(), one.clone(), two.clone());
            Box::pin(async move {
                // What a claim does that finds its first candidate taken: it holds that head.
                tx.lock_session_by_key(one.key).await?;
                pause.here().await;
                append(tx, &two).await?;
                append(tx, &two).await
            })
        })
    };
    let younger = async {
        pause.reached().await;
        append_one(&fixture.store, &two).await;
        pause.release();
    };
    let both = async { tokio::join!(older, younger) };
    let (done, ()) = within("both transactions end", LIMIT, both).await;
    done.unwrap();
    append_one(&fixture.store, &two).await;
    let (seen, _) = feed_of(&fixture.store, FeedPosition::default(), 4).await;
    assert_eq!(seen, [(2, 1), (2, 2), (2, 3), (2, 4)]);
}

#[tokio::test]
async fn events_of_another_server_s_transactions_are_shown_as_a_new_log() {
    let fixture = Fixture::open().await;
    let (one, two) = (fixture.session(1).await, fixture.session(2).await);
    for session in [&one, &two, &one] {
        append_one(&fixture.store, session).await;
    }
    let log = fixture.store.reader().identity();
    // As a dump of a server that had come further restores it.
    let mut conn = connect(&fixture.database).await;
    let later = "UPDATE events SET xid = (xid::text::bigint + 1000000000)::text::xid8";
    sqlx::raw_sql(later).execute(&mut conn).await.unwrap();
    let (again, once_more) = tokio::join!(fixture.instance(), fixture.instance());
    let identity = again.reader().identity();
    assert_eq!(identity.deployment_id, log.deployment_id);
    assert_ne!(identity.log_id, log.log_id);
    assert_eq!(
        once_more.reader().identity(),
        identity,
        "one of them did it"
    );
    append_one(&again, &one).await;
    let (seen, _) = feed_of(&again, FeedPosition::default(), 4).await;
    assert_eq!(seen, [(1, 1), (2, 1), (1, 2), (1, 3)]);
    let third = fixture.instance().await;
    assert_eq!(third.reader().identity(), identity, "once is enough");
}
