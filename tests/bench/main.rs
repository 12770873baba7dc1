//! What Tapedeck costs, measured on the release build from outside and printed as a table:
//! `cargo bench-table`, or `cargo bench-table scale` for what a long history costs. Nothing here
//! fails because a machine is slow: a number that misses its target says so. Only a long history that
//! costs too much fails.

#[cfg(test)]
#[path = "../e2e/api.rs"]
#[expect(dead_code, reason = "shared with the tests, which need more of it")]
mod api;
#[cfg(test)]
#[path = "../support/http.rs"]
#[expect(dead_code, reason = "shared with the tests, which need more of it")]
mod http;
#[cfg(test)]
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "shared with the tests, which need more of it")]
mod postgres;
#[cfg(test)]
#[path = "../support/server.rs"]
#[expect(dead_code, reason = "shared with the tests, which need more of it")]
mod server;
#[cfg(test)]
#[path = "../support/wait.rs"]
mod wait;

#[cfg(test)]
mod fleet;
#[cfg(test)]
mod history;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod scale;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod side;
#[cfg(test)]
mod table;
#[cfg(test)]
mod throughput;

#[cfg(test)]
mod tests {
    use crate::history::Histories;
    use crate::postgres::{Cluster, ClusterOptions};
    use crate::scale::{Pair, told};
    use crate::table::{Comparison, Table};
    use crate::{fleet, machine, measure, sessions, throughput};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_table() {
        let mut table = Table::default();
        measure::start(&mut table).await;
        measure::cold_run(&mut table).await;
        measure::idle_memory(&mut table).await;
        measure::claims(&mut table).await;
        measure::first_event(&mut table).await;
        measure::appends(&mut table).await;
        fleet::on_sqlite(&mut table).await;
        fleet::on_postgres(&mut table, &Cluster::own(durable()).await).await;
        sessions::listing(&mut table).await;
        println!("\n{}\n{table}", machine::describe());
    }

    /// The same work over a small and a large history costs the same, on either store.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_table_of_scale() {
        let sqlite = Box::pin(told("SQLite, filling", Histories::on_sqlite())).await;
        let sqlite = Box::pin(compare("SQLite", sqlite)).await;
        let cluster = Cluster::own(durable()).await;
        let postgres = Box::pin(told(
            "PostgreSQL with fsync, filling",
            Histories::on_postgres(&cluster),
        ))
        .await;
        let postgres = Box::pin(compare("PostgreSQL", postgres)).await;
        let mut together = Table::default();
        let measured = throughput::on_postgres(&mut together, &cluster);
        told("PostgreSQL, several at once", measured).await;
        println!("\n{}", machine::describe());
        println!("\nSQLite\n{sqlite}\nPostgreSQL, fsync on\n{postgres}\n{together}");
        let misses = [sqlite.misses(), postgres.misses()].concat();
        assert!(misses.is_empty(), "history costs too much: {misses:?}");
    }

    fn durable() -> ClusterOptions {
        ClusterOptions {
            fsync: true,
            ..ClusterOptions::default()
        }
    }

    async fn compare(store: &str, histories: Histories) -> Comparison {
        let pair = Pair::open(&histories).await;
        let comparison = Box::pin(told(&format!("{store}, comparing"), pair.compare())).await;
        pair.close().await;
        comparison
    }
}
