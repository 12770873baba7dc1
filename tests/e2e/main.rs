//! End to end: the real binary over HTTP, from outside, with kill -9. What a client may rely on is
//! checked here on processes, sockets and files; the rules themselves are checked in `invariants`.

#[cfg(test)]
#[path = "../support/http.rs"]
mod http;
#[cfg(test)]
#[path = "../support/server.rs"]
mod server;
#[cfg(test)]
#[path = "../support/wait.rs"]
mod wait;

#[cfg(test)]
mod api;
#[cfg(test)]
mod approvals;
#[cfg(test)]
mod busy;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod database;
#[cfg(test)]
mod load;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod security;
#[cfg(test)]
mod shutdown;
#[cfg(test)]
mod sqlite;
#[cfg(test)]
mod streams;
