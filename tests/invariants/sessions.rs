//! Sessions: creation that leaves nothing when it fails, lists, deletion (I19, I22, I23; fault 22).

use serde_json::json;
use tapedeck_control_plane::Error;
use tapedeck_control_plane::commands::configure_session::SettingsPatch;
use tapedeck_domain::Rejection;
use tapedeck_domain::session::{ApprovalPolicy, SessionSettings};
use tapedeck_store::{PageRequest, RunFilter, Target};

use crate::control::{NAMESPACE, TestControl};
use crate::restore::TABLES;
use crate::write_paths::assert_unchanged;

on_every_store! {
    rollback_of_failed_create_leaves_nothing,
    listing_cost_is_flat,
    deletion_is_explicit_only,
    a_forced_delete_takes_the_active_run_along,
    settings_change_only_where_no_run_depends_on_them,
    another_namespace_sees_nothing,
}

async fn rollback_of_failed_create_leaves_nothing(t: TestControl) {
    // Each write of a create fails once, also the last: no session, no lease, no idempotency key is
    // left behind.
    let key = crate::control::key("create", "k", "b");
    let create = || {
        let key = Some(key.clone());
        t.control
            .create_session(NAMESPACE, SessionSettings::default(), key)
    };
    let before = t.store.dump().await;
    let mut failed = Vec::new();
    for table in TABLES {
        t.store.refuse_inserts_into(table).await;
        let outcome = create().await;
        t.store.allow_writes().await;
        match outcome {
            Err(error) => {
                assert!(matches!(error, Error::Store(_)), "{error:?}");
                failed.push(table);
                assert_unchanged(&before, &t.store.dump().await, table);
            }
            // It wrote nothing there.
            Ok(created) => {
                let id = created.session.session_id;
                t.control
                    .delete_session(NAMESPACE, id, false)
                    .await
                    .unwrap();
                t.store.run("DELETE FROM idempotency_keys").await;
            }
        }
    }
    assert_eq!(failed, ["idempotency_keys", "session_heads", "sessions"]);
    create().await.unwrap();
}

async fn listing_cost_is_flat(t: TestControl) {
    // The number of statements of a page does not depend on how much there is; that each is an
    // indexed one is the store's own test. The benchmark measures the time.
    let page = PageRequest {
        before: None,
        limit: 50,
    };
    for _ in 0..60 {
        t.session().await;
    }
    let (few, statements) = t
        .store
        .count_reads(t.control.sessions(NAMESPACE, page))
        .await;
    assert_eq!(few.unwrap().items.len(), 50);
    for _ in 0..400 {
        t.session().await;
    }
    let (_, claim) = t.running("e1").await;
    for n in 0..50 {
        t.say(&claim, &format!("{n}"), "x").await.unwrap();
    }
    let (many, now) = t
        .store
        .count_reads(t.control.sessions(NAMESPACE, page))
        .await;
    assert_eq!(many.unwrap().items.len(), 50);
    assert_eq!((statements, now), (1, 1));
    // Every session comes exactly once, newest first.
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = t
            .control
            .sessions(NAMESPACE, PageRequest { before, limit: 50 })
            .await
            .unwrap();
        seen.extend(page.items.into_iter().map(|view| view.session.session_id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 461);
    assert!(seen.windows(2).all(|pair| pair[0] > pair[1]));
}

async fn deletion_is_explicit_only(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    assert_rejected!(
        t.control.delete_session(NAMESPACE, session, false).await,
        Rejection::SessionBusy { .. }
    );
    t.complete(&claim).await;
    t.outage(10 * 365 * 24 * 3_600_000);
    for _ in 0..3 {
        t.sweep().await;
    }
    assert!(!t.log(session).await.is_empty());
    t.control
        .delete_session(NAMESPACE, session, false)
        .await
        .unwrap();
    let gone = t.control.session(NAMESPACE, session).await;
    assert!(
        matches!(gone, Err(Error::NotFound(Target::Session))),
        "{gone:?}"
    );
    let gone = t.control.run(NAMESPACE, claim.run_id()).await;
    assert!(
        matches!(gone, Err(Error::NotFound(Target::Run))),
        "{gone:?}"
    );
}

/// Rows that belong to no session.
const OF_THE_FLEET: [&str; 2] = ["executors", "queue_turns"];

async fn a_forced_delete_takes_the_active_run_along(t: TestControl) {
    let empty = t.store.row_counts().await;
    let (session, claim) = t.running("e1").await;
    t.say(&claim, "a", "x").await.unwrap();
    t.ask(&claim, "q").await.unwrap();
    t.enqueue(session).await;
    t.control
        .delete_session(NAMESPACE, session, true)
        .await
        .unwrap();
    let beat = t.beat(&claim).await;
    assert!(
        matches!(beat, Err(Error::NotFound(Target::Run))),
        "{beat:?}"
    );
    let mut left = t.store.row_counts().await;
    left.retain(|(table, _)| !OF_THE_FLEET.contains(&table.as_str()));
    let mut empty = empty;
    empty.retain(|(table, _)| !OF_THE_FLEET.contains(&table.as_str()));
    assert_eq!(left, empty);
}

async fn settings_change_only_where_no_run_depends_on_them(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let title = SettingsPatch {
        title: Some(Some("new".to_owned())),
        ..SettingsPatch::default()
    };
    let view = t
        .control
        .configure_session(NAMESPACE, session, title.clone())
        .await
        .unwrap();
    assert_eq!(view.session.settings.title.as_deref(), Some("new"));
    let policy = SettingsPatch {
        approval_policy: Some(ApprovalPolicy::Yolo),
        ..SettingsPatch::default()
    };
    assert_rejected!(
        t.control
            .configure_session(NAMESPACE, session, policy.clone())
            .await
            .map(|_| ()),
        Rejection::SessionBusy { .. }
    );
    t.complete(&claim).await;
    let view = t
        .control
        .configure_session(NAMESPACE, session, policy)
        .await
        .unwrap();
    assert_eq!(view.session.settings.approval_policy, ApprovalPolicy::Yolo);
    // The event names what changed, never the values; a patch without effect writes nothing.
    let log = t.log(session).await;
    assert_eq!(
        log.last().unwrap().payload.value(),
        json!({"changed": ["approval_policy"]})
    );
    t.control
        .configure_session(NAMESPACE, session, title)
        .await
        .unwrap();
    assert_eq!(t.log(session).await, log);
}

async fn another_namespace_sees_nothing(t: TestControl) {
    let (session, claim) = t.running("e1").await;
    let asked = t.ask(&claim, "q").await.unwrap();
    let elsewhere = "elsewhere";
    assert!(matches!(
        t.control.session(elsewhere, session).await,
        Err(Error::NotFound(Target::Session))
    ));
    assert!(matches!(
        t.control.run(elsewhere, claim.run_id()).await,
        Err(Error::NotFound(Target::Run))
    ));
    assert!(matches!(
        t.control.interaction(elsewhere, asked.interaction_id).await,
        Err(Error::NotFound(Target::Interaction))
    ));
    assert!(matches!(
        t.control.cancel_session(elsewhere, session, "client").await,
        Err(Error::NotFound(Target::Session))
    ));
    let page = PageRequest {
        before: None,
        limit: 10,
    };
    assert!(
        t.control
            .sessions(elsewhere, page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(
        t.control
            .runs(elsewhere, RunFilter::default(), page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
}
