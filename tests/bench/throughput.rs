//! How much several instances on PostgreSQL do at once, from outside. There is no target: a figure
//! is worth what the machine is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tokio::task::JoinSet;

use crate::api::{prompt, session_in};
use crate::http::{Connection, Request};
use crate::measure;
use crate::postgres::Cluster;
use crate::server::{Place, Server, ServerOptions};
use crate::table::Table;

const POLLERS: usize = 16;
/// Waiting runs for each poller.
const WAITING: usize = 100;

/// Uploads on one instance, claims on two.
pub(crate) async fn on_postgres(table: &mut Table, cluster: &Cluster) {
    let place = Arc::new(Place::on_cluster(cluster).await);
    measure::appends_at(table, &place, "PostgreSQL").await;
    claims(table, cluster).await;
}

/// Many waiting runs, and executors at two instances who take them as fast as they can.
async fn claims(table: &mut Table, cluster: &Cluster) {
    let place = Arc::new(Place::on_cluster(cluster).await);
    let first = Server::start(&place).await;
    let second = ServerOptions {
        name: Some("second"),
        ..ServerOptions::default()
    };
    let second = Server::start_with(&place, second).await;
    let addresses = [first.address, second.address];
    let mut clients = JoinSet::new();
    for number in 0..POLLERS {
        let address = addresses[number % 2];
        clients.spawn(async move {
            for _ in 0..WAITING {
                let session = session_in(address, "bench").await;
                prompt(address, &session, "go").await;
            }
        });
    }
    clients.join_all().await;
    let mut pollers = JoinSet::new();
    let begun = Instant::now();
    for number in 0..POLLERS {
        pollers.spawn(poll(addresses[number % 2], number));
    }
    let claimed: usize = pollers.join_all().await.into_iter().sum();
    let took = begun.elapsed();
    assert_eq!(claimed, POLLERS * WAITING);
    let claimed = u32::try_from(claimed).unwrap();
    table.value(
        &format!("PostgreSQL, two instances: claims per second, {POLLERS} pollers"),
        format!("{:.0}", f64::from(claimed) / took.as_secs_f64()),
    );
}

/// Claims until nothing is left; gives how often.
async fn poll(address: SocketAddr, number: usize) -> usize {
    let mut connection = Connection::open(address).await.unwrap();
    let mut claimed = 0;
    loop {
        let claim = json!({
            "executor_id": format!("bench-{number}"),
            "worker_instance_id": format!("bench-{number}"),
            "pool": "bench",
            "wait_seconds": 0,
        });
        let claim = Request::post("/executor/runs/claim", &claim);
        match connection.send(&claim).await.unwrap().status {
            200 => claimed += 1,
            404 => return claimed,
            status => panic!("a claim was answered {status}"),
        }
    }
}
