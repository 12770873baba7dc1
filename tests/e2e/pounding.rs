//! PostgreSQL is restarted and its connections are cut, servers and executors are killed, all the
//! time and under load. Once that is over everything that anybody was ever told is so (I1; faults 3, 5,
//! 9, 16).

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

use crate::api;
use crate::chaos::{Beside, Crowd, moment, trouble};
use crate::load::{Hand, POOL, World, prompting};
use crate::postgres::{Cluster, ClusterOptions};
use crate::seed::Seed;
use crate::server::{ExecutorOptions, Place, Process, Server, ServerOptions, executor};
use crate::wait::eventually;

/// How long there is trouble.
const TROUBLE: Duration = Duration::from_secs(45);
/// Leases of 10 s last 3 s, the sweep comes every 1.5 s.
const SCALE: f64 = 0.3;
/// Clients that play executors, each with sessions of their own.
const HANDS: u64 = 5;
/// Clients of the real executors.
const CLIENTS: u64 = 4;
const EXECUTORS: usize = 4;
/// Who follows each session.
const FOLLOWERS: usize = 2;
const HEALING: Duration = Duration::from_mins(1);

/// The processes that get into trouble.
struct Machines {
    place: Arc<Place>,
    cluster: Cluster,
    servers: [Server; 2],
    executors: Vec<Process>,
}

impl Machines {
    async fn start() -> Self {
        let options = ClusterOptions {
            fsync: true,
            ..ClusterOptions::default()
        };
        let cluster = Cluster::own(options).await;
        let place = Arc::new(Place::on_cluster(&cluster).await);
        let server = async |name| {
            let options = ServerOptions {
                name: Some(name),
                scale: Some(SCALE),
                ..ServerOptions::default()
            };
            Server::start_with(&place, options).await
        };
        let servers = [server("a").await, server("b").await];
        let executors = Vec::new();
        let mut machines = Self {
            place,
            cluster,
            servers,
            executors,
        };
        for number in 0..EXECUTORS {
            let started = machines.executor(number);
            machines.executors.push(started);
        }
        machines
    }

    fn executor(&self, number: usize) -> Process {
        let options = ExecutorOptions {
            pool: POOL.to_owned(),
            ..ExecutorOptions::named(&format!("x{number}"))
        };
        executor(&self.place, &self.servers[number % 2].url(), &options)
    }

    async fn beside(&self) -> Beside {
        Beside::database(self.place.database().url()).await
    }

    /// One blow.
    async fn hit(&mut self, rng: &mut rand::rngs::StdRng) -> &'static str {
        match rng.random_range(0..10) {
            0..=1 => {
                self.cluster.restart().await;
                "restart"
            }
            2 => {
                self.cluster.stop_at_once().await;
                moment(rng, 0..1_500).await;
                self.cluster.start().await;
                "immediate stop"
            }
            3 => {
                self.cluster.kill().await;
                self.cluster.start().await;
                "killed database"
            }
            4..=6 => {
                let mut beside = self.beside().await;
                for _ in 0..5 {
                    beside.terminate_some(0.5).await;
                    moment(rng, 1..100).await;
                }
                beside.close().await;
                "terminated backends"
            }
            7..=8 => {
                let server = &mut self.servers[rng.random_range(0..2)];
                server.process.kill().await;
                moment(rng, 0..500).await;
                server.restart().await;
                "killed server"
            }
            _ => {
                let number = rng.random_range(0..EXECUTORS);
                self.executors[number].kill().await;
                self.executors[number] = self.executor(number);
                "killed executor"
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_whatever_happens_to_postgres_and_its_servers() {
    let seed = Seed::of_this_run();
    let mut rng = seed.of(0);
    let mut machines = Machines::start().await;
    let mut crowd = Crowd::default();
    let addresses = machines.servers.each_ref().map(|server| server.address);
    let world = World::of(&addresses, FOLLOWERS, &crowd.stop);
    for number in 0..HANDS {
        crowd.add(Hand::new(world.clone(), number, seed.of(number + 1)).work());
    }
    for number in 0..CLIENTS {
        crowd.add(prompting(world.clone(), seed.of(number + 1_001)));
    }
    let begun = Instant::now();
    let mut blows = Vec::new();
    while begun.elapsed() < trouble(TROUBLE) {
        moment(&mut rng, 500..3_000).await;
        let hit = Instant::now();
        let what = machines.hit(&mut rng).await;
        blows.push(format!("{what} {:?}", hit.elapsed()));
        crowd.look();
    }
    crowd.end().await;
    for server in &machines.servers {
        let ready = async || (server.get("/readyz").await.status == 200).then_some(());
        eventually("the servers are well again", HEALING, ready).await;
    }
    // Prompts with an end that nobody was told of would show here, too.
    world.check_all().await;
    let settled = async || {
        let path = "/runs?include_superseded=true";
        let runs = api::list(world.somewhere(), path, "runs").await;
        let mut open = runs.iter().filter(|run| !api::is_terminal(run));
        open.all(|run| run["status"] == "requested").then_some(())
    };
    eventually("every run is settled or claimable", HEALING, settled).await;
    let complete = world.check_words().await;
    for executor in &mut machines.executors {
        executor.kill().await;
    }
    world.check_recovery().await;
    machines.place.is_healthy(SCALE).await;
    let mut beside = machines.beside().await;
    let none = async || {
        let stuck = beside.activity("state LIKE 'idle in transaction%'").await;
        stuck.is_empty().then_some(())
    };
    eventually("no transaction is left open", HEALING, none).await;
    eprintln!(
        "{} blows; {}; {complete} runs of real executors; {:?}\n{blows:?}",
        blows.len(),
        world.note(|ledger| ledger.size()),
        begun.elapsed()
    );
    assert!(complete > 0, "the real executors completed nothing");
}
