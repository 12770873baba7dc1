//! End to end: the real binary over HTTP, from outside, with kill -9. What a client may rely on is
//! checked here on processes, sockets and files; the rules themselves are checked in `invariants`.

#[cfg(test)]
#[path = "../support/chaos.rs"]
mod chaos;
#[cfg(test)]
#[path = "../support/http.rs"]
mod http;
#[cfg(test)]
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "shared with other suites, which need more of it")]
mod postgres;
#[cfg(test)]
#[path = "../support/seed.rs"]
#[expect(dead_code, reason = "shared with other suites, which need more of it")]
mod seed;
#[cfg(test)]
#[path = "../support/server.rs"]
mod server;
#[cfg(test)]
#[path = "../support/terminal.rs"]
mod terminal;
#[cfg(test)]
#[path = "../support/wait.rs"]
mod wait;

/// Makes one test for each name and store, each in a place of its own.
#[cfg(test)]
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name(std::sync::Arc::new($crate::server::Place::new())).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let place = $crate::server::Place::on_postgres().await;
                    super::$name(std::sync::Arc::new(place)).await;
                }
            )*
        }
    };
}

#[cfg(test)]
mod abandoned;
#[cfg(test)]
mod acp;
#[cfg(test)]
mod agents;
#[cfg(test)]
mod api;
#[cfg(test)]
mod approvals;
#[cfg(test)]
mod busy;
#[cfg(test)]
mod checkpoints;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod database;
#[cfg(test)]
mod deaf;
#[cfg(test)]
mod durable;
#[cfg(test)]
mod feed;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod frozen;
#[cfg(test)]
mod instances;
#[cfg(test)]
mod leaving;
#[cfg(test)]
mod load;
#[cfg(test)]
mod odd_agents;
#[cfg(test)]
mod older;
#[cfg(test)]
mod operations;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod pounding;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod remotes;
#[cfg(test)]
mod repl;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod resent;
#[cfg(test)]
mod restarted;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod security;
#[cfg(test)]
mod shutdown;
#[cfg(test)]
mod sqlite;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod successors;
#[cfg(test)]
mod threads;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod warm;
#[cfg(test)]
mod workspaces;
