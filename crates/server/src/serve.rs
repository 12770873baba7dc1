//! The listener: accepts connections up to a bound, serves the router on each, and ends them all
//! within a bound when the process drains, whatever clients do (faults 21).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tapedeck_control_plane::Lifecycle;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::router::router;
use crate::stall::StallGuard;
use crate::state::ServerState;

/// How long a request's head may take, and a kept connection may stay idle.
const HEAD_TIME: Duration = Duration::from_mins(1);
/// How long connections get to finish once the process drains; the rest of the 25 s belongs to the
/// store.
const DRAIN_TIME: Duration = Duration::from_secs(20);
/// Bytes of a connection's buffer: a stalled follower costs no more.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves until the process drains and every connection has ended.
pub async fn serve(
    listener: TcpListener,
    state: ServerState,
    lifecycle: Lifecycle,
) -> io::Result<()> {
    let timing = *state.control.timing();
    let stalled =
        Duration::from_millis(u64::try_from(timing.stalled_follower_ms).unwrap_or(60_000));
    let drain_time = DRAIN_TIME.mul_f64(timing.scale.clamp(0.05, 1.0));
    let places = Arc::new(Semaphore::new(state.limits.connections));
    let router = router(state);
    let mut connections = JoinSet::new();
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted?,
            Some(_ended) = connections.join_next() => continue,
            () = lifecycle.soft().cancelled() => break,
        };
        let connection = connection(stream, router.clone(), stalled, lifecycle.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => {}
        () = tokio::time::sleep(drain_time) => {}
        () = lifecycle.hard().cancelled() => {}
    }
    let left = connections.len();
    if left > 0 {
        tracing::warn!(connections = left, "serve.connections_cut");
        connections.shutdown().await;
    }
    Ok(())
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return Ok((stream, place)),
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                // Out of file descriptors, mostly: others will be given back.
                tracing::warn!(%error, "serve.accept_failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

async fn connection(stream: TcpStream, router: Router, stalled: Duration, lifecycle: Lifecycle) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "serve.nodelay_failed");
    }
    let service = router.map_request(|request: http::Request<hyper::body::Incoming>| -> Request {
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(
            TokioIo::new(StallGuard::new(stream, stalled)),
            TowerToHyperService::new(service),
        );
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = lifecycle.soft().cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "serve.connection_failed");
    }
}
