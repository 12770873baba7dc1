//! The log over all sessions: one order that no later commit can slip into, every event once from
//! any place on (rules R22).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tapedeck_control_plane::follow_all::{FeedCursor, FeedPage, FeedStart, FollowedAll};
use tapedeck_control_plane::{CursorError, Error, Outcome};
use tapedeck_domain::event::EventRecord;
use tapedeck_domain::session::SessionSettings;
use tapedeck_domain::{LogId, SessionId};

use crate::control::{NAMESPACE, TestControl};
use crate::restore::turn;
use crate::stores::Kind;
use crate::wait::{eventually, within};

on_every_store! {
    the_feed_holds_every_event_of_every_session_in_its_order,
    from_every_place_the_rest_comes_exactly_once,
    namespaces_never_mix,
    kinds_leave_out_what_was_not_asked_for,
    a_deleted_session_does_no_harm,
    a_cursor_of_another_log_or_of_the_future_is_refused,
    a_follower_of_all_sees_what_many_write_once_and_in_order,
    a_feed_follower_ends_when_the_process_drains,
}

// SQLite has one writer, so no transaction can be older than one that has committed.
on_postgres! {
    an_open_older_transaction_holds_later_events_back_and_none_is_skipped,
    writers_on_several_instances_are_seen_once_by_a_follower_of_either,
}

const LIMIT: Duration = Duration::from_secs(20);
const NO_KINDS: Vec<String> = Vec::new();

async fn page(t: &TestControl, start: FeedStart, limit: u32) -> Outcome<FeedPage> {
    t.control.feed_page(NAMESPACE, start, NO_KINDS, limit).await
}

type Placed = (FeedCursor, EventRecord);

/// Waits until everything that is written can be read. On PostgreSQL a transaction of any database
/// on the same server holds later ones back, and other tests have theirs.
async fn readable(t: &TestControl) {
    if t.store.kind == Kind::Sqlite {
        return;
    }
    let held = "SELECT count(*) FROM events WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())";
    let look = async || (t.store.values::<i64>(held).await == [0]).then_some(());
    eventually("every event can be read", LIMIT, look).await;
}

/// Everything after a place, in pages of this size.
async fn rest(t: &TestControl, namespace: &str, start: FeedStart, limit: u32) -> Vec<Placed> {
    readable(t).await;
    rest_now(t, namespace, start, limit).await
}

/// The same, as far as it can be read now.
async fn rest_now(t: &TestControl, namespace: &str, start: FeedStart, limit: u32) -> Vec<Placed> {
    let (mut start, mut seen) = (start, Vec::new());
    loop {
        let page = t
            .control
            .feed_page(namespace, start, NO_KINDS, limit)
            .await
            .unwrap();
        seen.extend(page.events);
        if !page.more {
            return seen;
        }
        start = FeedStart::After(page.next);
    }
}

async fn all(t: &TestControl) -> Vec<Placed> {
    rest(t, NAMESPACE, FeedStart::Beginning, 500).await
}

fn numbers(events: &[EventRecord]) -> BTreeMap<SessionId, Vec<u64>> {
    let mut numbers: BTreeMap<SessionId, Vec<u64>> = BTreeMap::new();
    for event in events {
        numbers
            .entry(event.session_id)
            .or_default()
            .push(event.session_seq);
    }
    numbers
}

fn records(placed: &[Placed]) -> Vec<EventRecord> {
    placed.iter().map(|(_, event)| event.clone()).collect()
}

/// Sessions whose events lie between each other's.
async fn interleaved(t: &TestControl) -> Vec<SessionId> {
    let mut working = Vec::new();
    for name in ["e1", "e2", "e3"] {
        working.push(t.running(name).await);
    }
    for round in 0..5 {
        for (_, claim) in &working {
            t.say(claim, &format!("{round}"), "x").await.unwrap();
        }
    }
    for (_, claim) in &working {
        t.complete(claim).await;
    }
    working.into_iter().map(|(session, _)| session).collect()
}

async fn the_feed_holds_every_event_of_every_session_in_its_order(t: TestControl) {
    let sessions = interleaved(&t).await;
    let feed = all(&t).await;
    let by_session = numbers(&records(&feed));
    assert_eq!(by_session.len(), sessions.len());
    for session in sessions {
        let log = t.log(session).await;
        let expected: Vec<_> = (1..=log.len() as u64).collect();
        assert_eq!(by_session[&session], expected);
        let of_session = records(&feed)
            .into_iter()
            .filter(|it| it.session_id == session);
        assert_eq!(of_session.collect::<Vec<_>>(), log);
    }
    // What was committed later comes later: the sessions took turns.
    let deltas = feed.iter().filter(|(_, event)| event.kind == "StreamDelta");
    let rounds: Vec<_> = deltas.map(|(_, event)| event.event_id.clone()).collect();
    let expected: Vec<_> = (0..5)
        .flat_map(|round| vec![format!("{round}"); 3])
        .collect();
    assert_eq!(rounds, expected);
    // The order is the same each time, and each place has a text of its own.
    assert_eq!(all(&t).await, feed);
    let mut texts: Vec<_> = feed.iter().map(|(cursor, _)| cursor.to_string()).collect();
    for (text, (cursor, _)) in texts.iter().zip(&feed) {
        assert_eq!(text.parse::<FeedCursor>().unwrap(), *cursor);
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), feed.len());
}

async fn from_every_place_the_rest_comes_exactly_once(t: TestControl) {
    interleaved(&t).await;
    let feed = all(&t).await;
    for (index, (cursor, _)) in feed.iter().enumerate() {
        let limit = [1, 3, 500][index % 3];
        let later = rest(&t, NAMESPACE, FeedStart::After(*cursor), limit).await;
        assert_eq!(
            later,
            feed[index + 1..],
            "after {cursor} in pages of {limit}"
        );
    }
    assert_eq!(rest(&t, NAMESPACE, FeedStart::Beginning, 2).await, feed);
    assert_eq!(rest(&t, NAMESPACE, FeedStart::Head, 2).await, []);
    // A place stays good over a restart.
    let middle = feed[feed.len() / 2].0;
    let t = t.restarted().await;
    let later = rest(&t, NAMESPACE, FeedStart::After(middle), 4).await;
    assert_eq!(later, feed[feed.len() / 2 + 1..]);
}

async fn elsewhere(t: &TestControl) -> SessionId {
    let settings = SessionSettings::default();
    let created = t.control.create_session("elsewhere", settings, None).await;
    let session_id = created.unwrap().session.session_id;
    let patch = tapedeck_control_plane::commands::configure_session::SettingsPatch {
        title: Some(Some("theirs".to_owned())),
        ..Default::default()
    };
    t.control
        .configure_session("elsewhere", session_id, patch)
        .await
        .unwrap();
    session_id
}

async fn namespaces_never_mix(t: TestControl) {
    let theirs = elsewhere(&t).await;
    let ours = interleaved(&t).await;
    let also_theirs = elsewhere(&t).await;
    let feed = all(&t).await;
    assert!(
        feed.iter()
            .all(|(_, event)| ours.contains(&event.session_id))
    );
    let other = rest(&t, "elsewhere", FeedStart::Beginning, 1).await;
    let seen: Vec<_> = other.iter().map(|(_, event)| event.session_id).collect();
    assert_eq!(seen, [theirs, also_theirs]);
    // A place in the one feed may be used in the other, and shows nothing that isn't there.
    let after = rest(&t, "elsewhere", FeedStart::After(feed[0].0), 3).await;
    assert_eq!(after, other[1..]);
    assert_eq!(rest(&t, "nobody's", FeedStart::Beginning, 3).await, []);
}

async fn kinds_leave_out_what_was_not_asked_for(t: TestControl) {
    interleaved(&t).await;
    let feed = all(&t).await;
    let kinds = vec!["TurnEnd".to_owned(), "RunStarted".to_owned()];
    let expected: Vec<_> = feed
        .iter()
        .filter(|(_, event)| kinds.contains(&event.kind))
        .cloned()
        .collect();
    assert_eq!(expected.len(), 6);
    // The limit is of rows that are looked at, so a page may be empty and not the last.
    let (mut seen, mut start) = (Vec::new(), FeedStart::Beginning);
    loop {
        let page = t
            .control
            .feed_page(NAMESPACE, start, kinds.clone(), 2)
            .await
            .unwrap();
        seen.extend(page.events);
        if !page.more {
            break;
        }
        start = FeedStart::After(page.next);
    }
    assert_eq!(seen, expected);
    let none = vec!["NoSuchKind".to_owned()];
    readable(&t).await;
    let page = t
        .control
        .feed_page(NAMESPACE, FeedStart::Beginning, none, 500)
        .await
        .unwrap();
    assert!(page.events.is_empty() && !page.more);
    // It has seen all of it nevertheless.
    assert_eq!(
        rest(&t, NAMESPACE, FeedStart::After(page.next), 5).await,
        []
    );
}

async fn a_deleted_session_does_no_harm(t: TestControl) {
    let sessions = interleaved(&t).await;
    let feed = all(&t).await;
    for gone in [sessions[2], sessions[0]] {
        t.control
            .delete_session(NAMESPACE, gone, false)
            .await
            .unwrap();
        let left = all(&t).await;
        assert!(left.iter().all(|(_, event)| event.session_id != gone));
        // Also from places that were the deleted session's, its last one among them.
        for (index, (cursor, _)) in feed.iter().enumerate() {
            let later = rest(&t, NAMESPACE, FeedStart::After(*cursor), 3).await;
            let expected: Vec<_> = feed[index + 1..]
                .iter()
                .filter(|placed| left.contains(placed))
                .cloned()
                .collect();
            assert_eq!(later, expected, "after {cursor}");
        }
    }
    // With nothing left at all the newest place is still good, and what comes then comes after it.
    t.control
        .delete_session(NAMESPACE, sessions[1], false)
        .await
        .unwrap();
    let newest = feed.last().unwrap().0;
    assert_eq!(rest(&t, NAMESPACE, FeedStart::After(newest), 3).await, []);
    let session = t.session().await;
    turn(&t, session, "anew").await;
    let later = rest(&t, NAMESPACE, FeedStart::After(newest), 3).await;
    assert_eq!(records(&later), t.log(session).await);
}

async fn a_cursor_of_another_log_or_of_the_future_is_refused(t: TestControl) {
    interleaved(&t).await;
    let newest = all(&t).await.last().unwrap().0.to_string();
    let mut parts: Vec<_> = newest.split('.').map(str::to_owned).collect();
    let log_id = t.control.log_id();
    let other = LogId::new(t.control.new_id());
    let foreign = newest.replace(&log_id.to_string(), &other.to_string());
    parts[1] = (parts[1].parse::<u64>().unwrap() + 1_000_000).to_string();
    let future = parts.join(".");
    for (text, is_foreign) in [(foreign, true), (future, false)] {
        let start = FeedStart::After(text.parse().unwrap());
        let followed = t
            .control
            .follow_all(NAMESPACE, start, NO_KINDS)
            .await
            .map(|_| ());
        let paged = page(&t, start, 5).await.map(|_| ());
        for refused in [paged, followed] {
            match refused {
                Err(Error::Cursor(CursorError::LogChanged {
                    cursor_log_id,
                    log_id: now,
                })) if is_foreign => assert_eq!((cursor_log_id, now), (other, log_id)),
                Err(Error::Cursor(CursorError::FeedFuture)) if !is_foreign => {}
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}

/// Reads until so many events were seen, and reconnects after every `cut`-th item.
async fn follow(t: &TestControl, count: usize, cut: usize) -> Vec<Placed> {
    let (mut seen, mut start) = (Vec::new(), FeedStart::Beginning);
    while seen.len() < count {
        let mut follower = t
            .control
            .follow_all(NAMESPACE, start, NO_KINDS)
            .await
            .unwrap();
        for _ in 0..cut {
            let item = within("the next of the feed", LIMIT, follower.next()).await;
            match item.unwrap().unwrap() {
                FollowedAll::Events(events) => {
                    seen.extend(events);
                    start = FeedStart::After(seen.last().unwrap().0);
                }
                FollowedAll::Live { cursor } | FollowedAll::Open { cursor, .. } => {
                    start = FeedStart::After(cursor);
                }
                FollowedAll::Shutdown => panic!("the stream ended"),
            }
            if seen.len() >= count {
                break;
            }
        }
    }
    seen
}

async fn a_follower_of_all_sees_what_many_write_once_and_in_order(t: TestControl) {
    let t = Arc::new(t);
    let mut working = Vec::new();
    for name in ["e1", "e2", "e3", "e4"] {
        working.push(t.running(name).await);
    }
    let count = 4 * (3 + 60);
    let mut followers = tokio::task::JoinSet::new();
    for cut in [1, 2, 3, 7, 1_000] {
        let t = Arc::clone(&t);
        followers.spawn(async move { follow(&t, count, cut.max(2)).await });
    }
    let mut writers = tokio::task::JoinSet::new();
    for (_, claim) in working {
        let t = Arc::clone(&t);
        writers.spawn(async move {
            for n in 0..60 {
                t.say(&claim, &format!("{n}"), "x").await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let feed = all(&t).await;
    assert_eq!(feed.len(), count);
    for seen in followers.join_all().await {
        assert_eq!(seen, feed);
    }
}

async fn a_feed_follower_ends_when_the_process_drains(t: TestControl) {
    t.session().await;
    let start = FeedStart::Head;
    let mut follower = t
        .control
        .follow_all(NAMESPACE, start, NO_KINDS)
        .await
        .unwrap();
    let mut next = async || {
        let item = within("the next of the feed", LIMIT, follower.next()).await;
        item.unwrap()
    };
    assert!(matches!(next().await, Some(FollowedAll::Open { .. })));
    assert!(matches!(next().await, Some(FollowedAll::Live { .. })));
    t.control.lifecycle().drain();
    assert!(matches!(next().await, Some(FollowedAll::Shutdown)));
    assert!(next().await.is_none());
}

/// Writes the next event of a session, as a server does that has not committed yet.
const OLDER: &str = "INSERT INTO events \
    (session_key, session_seq, event_id, kind, payload, created_at, recorded_at) \
    SELECT session_key, head_seq + 1, 'older', 'Older', '{}', 0, 0 FROM session_heads \
    WHERE session_key = (SELECT min(session_key) FROM session_heads); \
    UPDATE session_heads SET head_seq = head_seq + 1 \
    WHERE session_key = (SELECT min(session_key) FROM session_heads)";

async fn an_open_older_transaction_holds_later_events_back_and_none_is_skipped(t: TestControl) {
    let (slow, _claim) = t.running("e1").await;
    let before = all(&t).await;
    let last = FeedStart::After(before.last().unwrap().0);
    let older = t.store.begin(OLDER).await;
    // Later transactions commit meanwhile, in other sessions.
    let session = t.session().await;
    let later = turn(&t, session, "later").await;
    let head = t
        .control
        .follow_all(NAMESPACE, FeedStart::Head, NO_KINDS)
        .await;
    let mut from_head = head.unwrap();
    let mut from_last = t
        .control
        .follow_all(NAMESPACE, last, NO_KINDS)
        .await
        .unwrap();
    assert_eq!(
        t.run(later.run_id()).await.settled_at,
        Some(t.control.now().await.unwrap().wall)
    );
    assert_eq!(
        rest_now(&t, NAMESPACE, last, 1).await,
        [],
        "they are held back"
    );
    for follower in [&mut from_head, &mut from_last] {
        for _ in 0..2 {
            let item = within("the next of the feed", LIMIT, follower.next()).await;
            assert!(
                matches!(
                    item.unwrap(),
                    Some(FollowedAll::Open { .. } | FollowedAll::Live { .. })
                ),
                "nothing can be read yet"
            );
        }
    }
    older.commit().await;
    let came = rest(&t, NAMESPACE, last, 1).await;
    let kinds: Vec<_> = came.iter().map(|(_, event)| event.kind.as_str()).collect();
    assert_eq!(kinds[0], "Older", "the older one comes first");
    assert_eq!(came[0].1.session_id, slow);
    assert_eq!(records(&came[1..]), t.log(session).await);
    for follower in [&mut from_head, &mut from_last] {
        let mut seen = Vec::new();
        while seen.len() < came.len() {
            let item = within("the next of the feed", LIMIT, follower.next()).await;
            if let Some(FollowedAll::Events(events)) = item.unwrap() {
                seen.extend(events);
            }
        }
        assert_eq!(seen, came);
    }
}

async fn writers_on_several_instances_are_seen_once_by_a_follower_of_either(a: TestControl) {
    let b = Arc::new(TestControl::over(a.store.another_instance().await).await);
    let instances = [Arc::new(a), b];
    let mut working = Vec::new();
    for (n, name) in ["e1", "e2", "e3", "e4"].into_iter().enumerate() {
        working.push(instances[n % 2].running(name).await);
    }
    let count = 4 * (3 + 40);
    let mut followers = tokio::task::JoinSet::new();
    for (n, cut) in [2, 3, 1_000, 1_000].into_iter().enumerate() {
        let t = Arc::clone(&instances[n % 2]);
        followers.spawn(async move { follow(&t, count, cut).await });
    }
    let mut writers = tokio::task::JoinSet::new();
    for (n, (_, claim)) in working.into_iter().enumerate() {
        let t = Arc::clone(&instances[(n / 2) % 2]);
        writers.spawn(async move {
            for n in 0..40 {
                t.say(&claim, &format!("{n}"), "x").await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let seen = followers.join_all().await;
    let feed = all(&instances[0]).await;
    assert_eq!(feed.len(), count);
    for seen in seen {
        assert_eq!(seen, feed);
    }
}
