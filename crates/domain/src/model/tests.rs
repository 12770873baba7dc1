use proptest::prelude::*;

use super::*;
use crate::fixture::cases;

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let any_ending = || prop::sample::select(Ending::ALL.to_vec());
    let command = prop_oneof![
        4 => prop::sample::select(OnActive::ALL.to_vec()).prop_map(Command::Prompt),
        2 => Just(Command::Resume),
        6 => Just(Command::Claim),
        2 => Just(Command::Replay),
        5 => prop::bool::weighted(0.2).prop_map(|stale| Command::Heartbeat { stale }),
        2 => Just(Command::Output),
        1 => Just(Command::Release),
        2 => Just(Command::Cancel),
        1 => Just(Command::CancelQueued),
        2 => (any_ending(), prop::bool::weighted(0.3))
            .prop_map(|(ending, stale)| Command::Complete { ending, stale }),
        1 => Just(Command::Continue),
        1 => Just(Command::Takeover),
        4 => prop::sample::select(vec![1, 900, 14_000, 16_000, 31_000, 61_000])
            .prop_map(Command::Pass),
        4 => any::<bool>().prop_map(|claimants_seen| Command::Sweep { claimants_seen }),
    ];
    prop::collection::vec(command, 0..60)
}

fn reached(max_attempts: u32, commands: Vec<Command>) -> Model {
    let mut model = Model::new(max_attempts);
    for command in commands {
        model.apply(command);
        model.check();
    }
    model
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_cancel_and_time_end_every_live_run_whatever_came_before(
        max_attempts in 1..4_u32,
        commands in commands(),
    ) {
        let mut model = reached(max_attempts, commands);
        let runs = model.live.keys().copied().collect::<Vec<_>>();
        let queued = model.queue().into_iter().cloned().collect::<Vec<_>>();
        for run in queued {
            model.cancel(&run);
        }
        if let Some(run) = model.active().cloned() {
            let asked_at = model.clock_ms;
            model.cancel(&run);
            model.pass_and_sweep();
            prop_assert!(model.clock_ms - asked_at <= TIMING.cancel_deadline_ms);
        }
        for run in runs {
            prop_assert!(model.settled.contains_key(&run));
        }
        model.prompt(OnActive::Reject);
        model.check();
        prop_assert!(model.active().is_some(), "the session takes a prompt again");
    }

    #[test]
    fn without_its_executor_a_held_run_is_settled_or_claimable_within_its_lease(
        max_attempts in 1..4_u32,
        commands in commands(),
    ) {
        let mut model = reached(max_attempts, commands);
        let Some(run) = model.active().cloned() else { return Ok(()) };
        let lost_at = model.clock_ms;
        model.pass_and_sweep();
        prop_assert!(model.clock_ms - lost_at <= 60_000);
        if let Some(run) = model.live.get(&run.run_id).cloned() {
            let RunState::Requested { ready_at } = run.state else {
                panic!("stuck: {run:?}");
            };
            model.clock_ms += ready_at.since(model.now().lease).max(0);
            model.claim();
            prop_assert_eq!(model.live[&run.run_id].status(), RunStatus::Claimed);
        }
    }

    #[test]
    fn an_executor_that_works_completes_every_run_of_the_queue(
        max_attempts in 1..4_u32,
        commands in commands(),
    ) {
        let mut model = reached(max_attempts, commands);
        let runs = model.live.keys().copied().collect::<Vec<_>>();
        // Each round settles a run, or frees one from a lost claim.
        for _ in 0..=2 * runs.len() {
            if model.active().is_none() {
                model.promote();
            }
            model.pass_and_sweep();
            model.claim();
            model.heartbeat(false);
            model.complete(Ending::Completed, false);
            model.check();
        }
        for run in runs {
            prop_assert!(model.settled.contains_key(&run));
        }
    }
}
