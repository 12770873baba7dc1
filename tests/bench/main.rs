//! What Tapedeck costs, measured on the release build from outside and printed as a table:
//! `cargo bench-table`. Nothing here fails because a machine is slow; a number that misses its target
//! says so.

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
mod machine;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod table;

#[cfg(test)]
mod tests {
    use crate::table::Table;
    use crate::{machine, measure, sessions};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_table() {
        let mut table = Table::default();
        measure::start(&mut table).await;
        measure::idle_memory(&mut table).await;
        measure::claims(&mut table).await;
        measure::first_event(&mut table).await;
        measure::appends(&mut table).await;
        sessions::listing(&mut table).await;
        println!("\n{}\n{table}", machine::describe());
    }
}
