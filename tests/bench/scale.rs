//! What a long history costs: the same work over a small and over a large one, in turn, so that
//! whatever else the machine does meets both. Medians over the large history may be half as long
//! again as over the small one, on either store.

use std::time::{Duration, Instant};

use tapedeck_control_plane::{
    EventFilter, FollowRequest, Followed, PageRequest, RunFilter, Start, sweep,
};
use tapedeck_domain::SessionId;
use tapedeck_domain::settle::Ending;
use tapedeck_store::read::FeedFilter;

use crate::history::{Histories, SESSIONS, TIMES, before_copy};
use crate::side::{NAMESPACE, Side};
use crate::table::Comparison;

/// Rounds that nothing is taken of: caches fill, statements are planned.
const WARM_UP: usize = 12;
const READS: usize = 300;
const CLAIMS: usize = 150;
const RESUMES: usize = 80;
const RESTORES: usize = 60;
const APPENDS: usize = 100;
const SWEEPS: usize = 100;
/// Events of an upload.
const BATCH: usize = 50;
/// Rows of a page.
const PAGE: u32 = 50;

/// The small and the large history, open.
pub(crate) struct Pair([Side; 2]);

/// Takes the times of one round on one side.
struct Laps<'a> {
    comparison: &'a mut Comparison,
    which: usize,
    counts: bool,
}

impl Laps<'_> {
    async fn time<T>(&mut self, what: &str, doing: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = doing.await;
        if self.counts {
            self.comparison.push(what, self.which, begun.elapsed());
        }
        done
    }
}

impl Pair {
    pub(crate) async fn open(histories: &Histories) -> Self {
        let deep = histories.deep;
        let small = Side::open(histories.small.open().await, deep).await;
        let large = Side::open(histories.large.open().await, deep).await;
        let mut pair = Self([small, large]);
        for (which, side) in pair.0.iter_mut().enumerate() {
            side.others = others(side, which == 1).await;
        }
        let [small, large] = &pair.0;
        let heads = (small.head(deep).await, large.head(deep).await);
        println!(
            "sessions {} and {}, events of the longest {} and {}",
            SESSIONS + 1,
            SESSIONS * TIMES + 1,
            heads.0,
            heads.1
        );
        assert!(heads.0 <= 1_100 && heads.1 >= 1_000_000, "{heads:?}");
        pair
    }

    pub(crate) async fn close(self) {
        for side in self.0 {
            side.close().await;
        }
    }

    /// Everything, in an order in which the small history stays small for what comes first.
    pub(crate) async fn compare(&self) -> Comparison {
        let mut comparison = Comparison::default();
        let table = &mut comparison;
        self.rounds(table, READS, read).await;
        self.rounds(table, READS, follow).await;
        self.rounds(table, SWEEPS, sweep).await;
        self.rounds(table, CLAIMS, claim).await;
        self.rounds(table, RESUMES, resume).await;
        self.rounds(table, RESTORES, restore).await;
        self.rounds(table, APPENDS, append).await;
        comparison
    }

    async fn rounds(
        &self,
        comparison: &mut Comparison,
        count: usize,
        scenario: impl AsyncFn(&Side, &mut Laps<'_>, usize),
    ) {
        for round in 0..WARM_UP + count {
            // Each is the first one in every other round.
            let first = round % 2;
            for which in [first, 1 - first] {
                let mut laps = Laps {
                    comparison: &mut *comparison,
                    which,
                    counts: round >= WARM_UP,
                };
                scenario(&self.0[which], &mut laps, round).await;
            }
        }
    }
}

/// Sessions from everywhere in the list, as many as one measurement needs at most.
async fn others(side: &Side, is_large: bool) -> Vec<SessionId> {
    let mut found = Vec::new();
    let copies = if is_large { CLAIMS + WARM_UP } else { 1 };
    for number in 0..copies {
        let before = is_large.then(|| before_copy((number + 1) * TIMES / copies));
        let limit = u32::try_from(SESSIONS / copies.min(SESSIONS)).unwrap();
        let page = PageRequest { before, limit };
        let page = side.control.sessions(NAMESPACE, page).await.unwrap();
        let ids = page.items.iter().map(|view| view.session.session_id);
        found.extend(ids.filter(|id| *id != side.deep));
    }
    assert!(found.len() >= SESSIONS, "{}", found.len());
    found
}

async fn read(side: &Side, laps: &mut Laps<'_>, round: usize) {
    let control = &side.control;
    let other = side.others[round % side.others.len()];
    let head = side.head(side.deep).await;
    let session = laps.time("session", control.session(NAMESPACE, side.deep));
    session.await.unwrap();
    let session = laps.time(
        "one of the other sessions",
        control.session(NAMESPACE, other),
    );
    session.await.unwrap();
    let first = PageRequest {
        before: None,
        limit: PAGE,
    };
    let list = laps.time(
        "list of sessions, first page",
        control.sessions(NAMESPACE, first),
    );
    assert_eq!(list.await.unwrap().items.len(), PAGE as usize);
    let middle = PageRequest {
        before: Some(side.others[side.others.len() / 3].uuid()),
        limit: PAGE,
    };
    let list = laps.time(
        "list of sessions, page in the middle",
        control.sessions(NAMESPACE, middle),
    );
    assert_eq!(list.await.unwrap().items.len(), PAGE as usize);
    let filter = RunFilter {
        session_id: Some(side.deep),
        include_superseded: false,
        unservable: false,
    };
    let few = PageRequest {
        before: None,
        limit: 5,
    };
    let runs = laps.time(
        "list of the session's runs",
        control.runs(NAMESPACE, filter, few),
    );
    assert_eq!(runs.await.unwrap().items.len(), 5);
    let page = EventFilter {
        session_id: side.deep,
        after: head - u64::from(PAGE),
        limit: PAGE,
        max_bytes: 1 << 20,
        run_id: None,
        kinds: Vec::new(),
    };
    let events = laps.time(
        "page of the newest 50 events",
        control.events(NAMESPACE, page),
    );
    assert_eq!(events.await.unwrap().events.len(), PAGE as usize);
}

async fn follow(side: &Side, laps: &mut Laps<'_>, round: usize) {
    // One run speaks in all rounds; who follows comes new each time.
    let mut work = if round == 0 {
        side.working(side.deep).await
    } else {
        side.kept()
    };
    let request = FollowRequest {
        namespace: NAMESPACE.to_owned(),
        session_id: side.deep,
        start: Start::Head,
        run_id: None,
        kinds: Vec::new(),
    };
    let opened = async {
        let mut follower = side.control.follow(request).await.unwrap();
        while !matches!(follower.next().await.unwrap(), Some(Followed::Live { .. })) {}
        follower
    };
    let mut follower = laps.time("follow from the end, until live", opened).await;
    let batch = Side::batch(&mut work, 1);
    let arrives = async {
        side.upload(batch).await;
        let next = follower.next().await.unwrap();
        assert!(matches!(next, Some(Followed::Events(events)) if events.len() == 1));
    };
    laps.time("an event, until its follower has it", arrives)
        .await;
    if round + 1 == WARM_UP + READS {
        side.settle(work, Ending::Completed).await;
    } else {
        side.keep(work);
    }
}

async fn sweep(side: &Side, laps: &mut Laps<'_>, _round: usize) {
    let swept = laps.time("sweep", sweep::step(&side.control));
    assert_eq!(swept.await.unwrap().failed, 0);
}

async fn claim(side: &Side, laps: &mut Laps<'_>, round: usize) {
    let session = side.others[round % side.others.len()];
    laps.time("prompt", side.prompt(session)).await;
    let mut work = laps.time("claim", side.claim()).await;
    assert_eq!(work.claimed.session.session_id, session);
    laps.time("first heartbeat", side.beat(&work)).await;
    side.speak(&mut work, 3).await;
    laps.time("complete", side.settle(work, Ending::Completed))
        .await;
}

async fn resume(side: &Side, laps: &mut Laps<'_>, _round: usize) {
    let mut work = side.working(side.deep).await;
    side.speak(&mut work, 20).await;
    let settled = side.settle(work, Ending::Interrupted);
    laps.time("settle as interrupted", settled).await;
    laps.time("resume", side.resume(side.deep)).await;
    let mut work = laps
        .time("claim of a resumed run with its context", side.claim())
        .await;
    let context = work.claimed.resume_context.take().unwrap();
    assert!(
        context["tape_tail"]
            .as_array()
            .is_none_or(|tail| !tail.is_empty()),
        "{context}"
    );
    side.beat(&work).await;
    laps.time("heartbeat", side.beat(&work)).await;
    side.settle(work, Ending::Completed).await;
}

async fn restore(side: &Side, laps: &mut Laps<'_>, _round: usize) {
    let (control, deep) = (&side.control, side.deep);
    let captured = control.capture_checkpoint(NAMESPACE, deep, None, None);
    let checkpoint = laps
        .time("capture of a checkpoint", captured)
        .await
        .unwrap();
    let mut work = side.working(deep).await;
    side.speak(&mut work, 5).await;
    side.settle(work, Ending::Completed).await;
    let restored = control.restore_session(NAMESPACE, deep, checkpoint.checkpoint_id, None);
    laps.time("restore of the newest checkpoint", restored)
        .await
        .unwrap();
}

async fn append(side: &Side, laps: &mut Laps<'_>, round: usize) {
    let mut work = if round == 0 {
        side.working(side.deep).await
    } else {
        side.kept()
    };
    let reader = side.control.store().reader();
    let end = reader.feed_end().await.unwrap();
    let batch = Side::batch(&mut work, BATCH);
    laps.time("append of 50 events", side.upload(batch)).await;
    let filter = FeedFilter {
        namespace: NAMESPACE.to_owned(),
        after: end,
        limit: PAGE,
        max_bytes: 1 << 20,
        kinds: Vec::new(),
    };
    // What other transactions wait for is not in the feed yet.
    let page = laps.time(
        "feed over all sessions, page at the end",
        reader.feed(&filter),
    );
    let page = page.await.unwrap();
    assert!(page.events.len() <= BATCH);
    if round + 1 == WARM_UP + APPENDS {
        side.settle(work, Ending::Completed).await;
    } else {
        side.keep(work);
    }
}

/// How long a whole part took, for the progress that is printed.
pub(crate) async fn told<T>(what: &str, doing: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = doing.await;
    let took: Duration = begun.elapsed();
    println!("{what}: {:.1} s", took.as_secs_f64());
    done
}
