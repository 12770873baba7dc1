//! End to end: the real binary over HTTP, from outside, with kill -9. What a client may rely on is
//! checked here on processes, sockets and files; the rules themselves are checked in `invariants`.

#[path = "../support/http.rs"]
mod http;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/wait.rs"]
mod wait;

mod api;
mod approvals;
mod busy;
mod cli;
mod crash;
mod database;
mod outage;
mod requests;
mod security;
mod shutdown;
mod sqlite;
mod streams;
