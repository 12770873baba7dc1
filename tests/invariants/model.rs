//! Random commands of every kind, one after the other, against the store and against a small model
//! of what the design says (stores §9, faults 7): the same is accepted and refused for the same
//! reason, the same can be seen afterwards, every check of the whole database passes, and nothing
//! is stuck for ever.
//!
//! A failure says its seed and how to have it again; `TAPEDECK_TEST_CASES` makes more walks.

mod drive;
mod expected;
mod steps;
mod tape;
mod uploads;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tapedeck_domain::admit::OnActive;
use tapedeck_domain::session::ApprovalPolicy;
use tapedeck_domain::settle::Ending;
use tokio::time::timeout;

use crate::control::TestControl;
use crate::seed::Seed;
use crate::stores::Kind;
use drive::Drive;

on_every_store![a_random_walk_goes_as_the_model_says];

/// Walks of a test: fewer where each step takes longer.
const fn cases(kind: Kind) -> u32 {
    match kind {
        Kind::Sqlite => 12,
        Kind::Postgres => 6,
        Kind::PostgresWithoutHints => 3,
    }
}

/// Steps of a walk, at most.
const STEPS: usize = 160;
/// Walks that are tried to make a failing one shorter.
const SHRINKS: u32 = 120;
const LIMIT: Duration = Duration::from_mins(2);

/// One command, or time. Numbers choose among what is there when its turn comes, so that a walk
/// stays one when parts of it are left out.
#[derive(Debug, Clone)]
enum Step {
    Create {
        policy: ApprovalPolicy,
        max_attempts: u32,
    },
    Title {
        session: u8,
        title: u8,
    },
    Policy {
        session: u8,
        policy: ApprovalPolicy,
    },
    Close {
        session: u8,
    },
    Delete {
        session: u8,
        force: bool,
    },
    Prompt {
        session: u8,
        on_active: OnActive,
    },
    Resume {
        session: u8,
    },
    Continue {
        session: u8,
    },
    ClaimAny {
        executor: u8,
    },
    ClaimOf {
        executor: u8,
        session: u8,
    },
    Replay {
        claim: u8,
        executor: Option<u8>,
    },
    Beat {
        claim: u8,
    },
    Append {
        claim: u8,
        uploads: Vec<(u8, u8, u8)>,
    },
    OwnTape {
        claim: u8,
        entry: u8,
        content: u8,
    },
    Snapshot {
        claim: u8,
    },
    Ask {
        claim: u8,
        request: u8,
        tool: u8,
        short: bool,
    },
    Answer {
        question: u8,
        approved: bool,
        for_session: bool,
    },
    CancelSession {
        session: u8,
    },
    CancelRun {
        run: u8,
    },
    Complete {
        claim: u8,
        ending: Ending,
        miscount: bool,
    },
    Release {
        claim: u8,
    },
    Capture {
        session: u8,
    },
    DeleteCheckpoint {
        session: u8,
        checkpoint: u8,
    },
    Restore {
        session: u8,
        checkpoint: u8,
    },
    Fork {
        session: u8,
        checkpoint: Option<u8>,
    },
    Acquire {
        session: u8,
    },
    Renew {
        session: u8,
    },
    LetGo {
        session: u8,
    },
    Repair {
        session: u8,
    },
    Sweep,
    Pass {
        ms: i64,
    },
    Outage {
        ms: i64,
    },
    Restart,
}

fn sessions_and_admission() -> impl Strategy<Value = Step> {
    let on_active = || prop::sample::select(OnActive::ALL.to_vec());
    let policy = || prop::sample::select(ApprovalPolicy::ALL.to_vec());
    prop_oneof![
        3 => (policy(), 1..3_u32)
            .prop_map(|(policy, max_attempts)| Step::Create { policy, max_attempts }),
        1 => (any::<u8>(), 0..2_u8).prop_map(|(session, title)| Step::Title { session, title }),
        1 => (any::<u8>(), policy()).prop_map(|(session, policy)| Step::Policy { session, policy }),
        1 => any::<u8>().prop_map(|session| Step::Close { session }),
        1 => (any::<u8>(), any::<bool>())
            .prop_map(|(session, force)| Step::Delete { session, force }),
        16 => (any::<u8>(), on_active())
            .prop_map(|(session, on_active)| Step::Prompt { session, on_active }),
        6 => any::<u8>().prop_map(|session| Step::Resume { session }),
        3 => any::<u8>().prop_map(|session| Step::Continue { session }),
        3 => any::<u8>().prop_map(|session| Step::CancelSession { session }),
        3 => any::<u8>().prop_map(|run| Step::CancelRun { run }),
    ]
}

fn work() -> impl Strategy<Value = Step> {
    let ending = || prop::sample::select(Ending::ALL.to_vec());
    let uploads = || vec((0..6_u8, 0..8_u8, 0..6_u8), 1..4);
    prop_oneof![
        5 => any::<u8>().prop_map(|executor| Step::ClaimAny { executor }),
        10 => any::<(u8, u8)>()
            .prop_map(|(executor, session)| Step::ClaimOf { executor, session }),
        3 => (any::<u8>(), prop::option::weighted(0.2, any::<u8>()))
            .prop_map(|(claim, executor)| Step::Replay { claim, executor }),
        6 => any::<u8>().prop_map(|claim| Step::Beat { claim }),
        12 => (any::<u8>(), uploads()).prop_map(|(claim, uploads)| Step::Append { claim, uploads }),
        3 => (any::<u8>(), 0..3_u8, 0..8_u8)
            .prop_map(|(claim, entry, content)| Step::OwnTape { claim, entry, content }),
        1 => any::<u8>().prop_map(|claim| Step::Snapshot { claim }),
        6 => (any::<u8>(), 0..3_u8, 0..8_u8, any::<bool>())
            .prop_map(|(claim, request, tool, short)| Step::Ask { claim, request, tool, short }),
        6 => (any::<u8>(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(question, approved, for_session)| Step::Answer { question, approved, for_session }
        ),
        8 => (any::<u8>(), ending(), prop::bool::weighted(0.1))
            .prop_map(|(claim, ending, miscount)| Step::Complete { claim, ending, miscount }),
        2 => any::<u8>().prop_map(|claim| Step::Release { claim }),
    ]
}

fn pasts() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(|session| Step::Capture { session }),
        1 => any::<(u8, u8)>()
            .prop_map(|(session, checkpoint)| Step::DeleteCheckpoint { session, checkpoint }),
        4 => any::<(u8, u8)>()
            .prop_map(|(session, checkpoint)| Step::Restore { session, checkpoint }),
        2 => (any::<u8>(), any::<Option<u8>>())
            .prop_map(|(session, checkpoint)| Step::Fork { session, checkpoint }),
    ]
}

fn time_and_owners() -> impl Strategy<Value = Step> {
    let pass = prop::sample::select(vec![1, 900, 4_000, 14_000, 16_000, 31_000, 61_000, 650_000]);
    prop_oneof![
        1 => any::<u8>().prop_map(|session| Step::Acquire { session }),
        1 => any::<u8>().prop_map(|session| Step::Renew { session }),
        1 => any::<u8>().prop_map(|session| Step::LetGo { session }),
        1 => any::<u8>().prop_map(|session| Step::Repair { session }),
        8 => Just(Step::Sweep),
        6 => pass.prop_map(|ms| Step::Pass { ms }),
        2 => prop::sample::select(vec![9_000, 11_000, 70_000, 3_600_000])
            .prop_map(|ms| Step::Outage { ms }),
        1 => Just(Step::Restart),
    ]
}

/// A step, and the process that it goes through.
fn walk() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let step = prop_oneof![
        4 => sessions_and_admission(),
        7 => work(),
        1 => pasts(),
        2 => time_and_owners(),
    ];
    vec((any::<u8>(), step), STEPS / 2..=STEPS)
}

/// A walk that went wrong, and at which of its steps it did.
#[derive(Debug)]
struct Wrong {
    step: usize,
    why: String,
}

async fn went(kind: Kind, steps: &[(u8, Step)]) -> Result<(), Wrong> {
    let mut step = 0;
    let walk = timeout(LIMIT, Drive::walk(kind, steps, &mut step)).await;
    let why = match walk {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_elapsed) => "it hangs".to_owned(),
    };
    Err(Wrong { step, why })
}

/// Leaves out of a walk what it goes wrong without, ever smaller parts of it.
async fn shorten(
    kind: Kind,
    mut steps: Vec<(u8, Step)>,
    mut wrong: Wrong,
) -> (Vec<(u8, Step)>, Wrong) {
    let mut tries = 0;
    let mut part = steps.len();
    while part > 0 && tries < SHRINKS {
        steps.truncate(wrong.step + 1);
        let mut from = 0;
        while from < steps.len() && tries < SHRINKS {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + part).min(steps.len()));
            tries += 1;
            match went(kind, &fewer).await {
                Ok(()) => from += part,
                Err(still) => (steps, wrong) = (fewer, still),
            }
        }
        part /= 2;
    }
    (steps, wrong)
}

async fn a_random_walk_goes_as_the_model_says(t: TestControl) {
    let kind = t.store.kind;
    let seed = Seed::of_this_run();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed.bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    for _ in 0..Seed::cases(cases(kind)) {
        let steps = walk().new_tree(&mut runner).unwrap().current();
        let Err(wrong) = went(kind, &steps).await else {
            continue;
        };
        let (steps, wrong) = shorten(kind, steps, wrong).await;
        let steps: Vec<_> = steps.iter().map(|step| format!("    {step:?}")).collect();
        panic!("{}\n{}\n{seed}", wrong.why, steps.join("\n"));
    }
}
