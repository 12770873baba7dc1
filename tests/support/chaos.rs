//! What chaos tests share: a bound on time that soaks raise, kills at random moments,
//! clients that leave, a wire that can be listened in on, and looks at PostgreSQL from beside. It
//! knows no endpoint, and ends no process that the test didn't start.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::http::Request;
use crate::seed::number;

/// How long each chaos test makes trouble, in seconds, where that is longer than by default.
const SECONDS: &str = "TAPEDECK_TEST_CHAOS_SECONDS";

/// How long a test makes trouble.
pub(crate) fn trouble(default: Duration) -> Duration {
    number(SECONDS).map_or(default, |seconds| default.max(Duration::from_secs(seconds)))
}

/// Lets a random time pass. It waits for nothing: the moment of what follows is what is random.
pub(crate) async fn moment(rng: &mut StdRng, range: std::ops::Range<u64>) {
    sleep(Duration::from_micros(
        rng.random_range(range.start * 1_000..range.end * 1_000),
    ))
    .await;
}

/// Sends a request and leaves at a random point: in the middle of the request, while it is worked on,
/// or in the middle of its answer. Gives whether the whole request was sent.
pub(crate) async fn leave_somewhere(
    request: &Request,
    address: SocketAddr,
    rng: &mut StdRng,
) -> io::Result<bool> {
    let bytes = request.bytes(address);
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let is_whole = rng.random_bool(0.85);
    let sent = if is_whole {
        bytes.len()
    } else {
        rng.random_range(0..bytes.len())
    };
    socket.write_all(&bytes[..sent]).await?;
    if is_whole && rng.random_bool(0.3) {
        // Some bytes of the answer, unless it is a held one.
        let mut some = vec![0; rng.random_range(1..200)];
        let read = socket.read(&mut some);
        let _late = tokio::time::timeout(Duration::from_millis(200), read).await;
    } else {
        moment(rng, 0..8).await;
    }
    // A reset instead of a goodbye, as a broken network gives it.
    socket.set_zero_linger()?;
    Ok(is_whole)
}

/// A wire to a server that hears what is said on it.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) address: SocketAddr,
    heard: Arc<Ears>,
    _wires: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Ears {
    /// What the server said, on all connections.
    answers: Mutex<Vec<u8>>,
    /// What was said to it, by connection.
    requests: Mutex<Vec<Vec<u8>>>,
}

impl Tap {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::<Ears>::default();
        let mut wires = JoinSet::new();
        let ears = Arc::clone(&heard);
        wires.spawn(async move {
            let mut wires = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                wires.spawn(carry(near, server, Arc::clone(&ears)));
            }
        });
        Self {
            address,
            heard,
            _wires: wires,
        }
    }

    /// The texts that JSON answers gave for this field, in order.
    pub(crate) fn texts(&self, field: &str) -> Vec<String> {
        let heard = String::from_utf8_lossy(&self.heard.answers.lock().unwrap()).into_owned();
        let begin = format!("\"{field}\":\"");
        let values = heard.split(&begin).skip(1);
        let value = |rest: &str| Some(rest.split_once('"')?.0.to_owned());
        values.filter_map(value).collect()
    }

    /// The bodies of the whole requests whose path ends so; in order on each connection.
    pub(crate) fn bodies(&self, path: &str) -> Vec<Vec<u8>> {
        let requests = self.heard.requests.lock().unwrap();
        let whole = requests.iter().flat_map(|said| whole_requests(said));
        whole
            .filter(|(target, _)| target.ends_with(path))
            .map(|(_, body)| body.to_vec())
            .collect()
    }
}

/// The target and the body of each request on one connection, which are all of known length.
fn whole_requests(mut said: &[u8]) -> Vec<(String, &[u8])> {
    let mut found = Vec::new();
    while let Some(end) = said.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&said[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |length| length.trim().parse().unwrap());
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let rest = &said[end + 4..];
        if rest.len() < length {
            break;
        }
        found.push((target, &rest[..length]));
        said = &rest[length..];
    }
    found
}

async fn carry(near: TcpStream, server: SocketAddr, heard: Arc<Ears>) {
    let Ok(far) = TcpStream::connect(server).await else {
        return;
    };
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let connection = {
        let mut requests = heard.requests.lock().unwrap();
        requests.push(Vec::new());
        requests.len() - 1
    };
    let there = async {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = near_read.read(&mut bytes).await {
            heard.requests.lock().unwrap()[connection].extend_from_slice(&bytes[..read]);
            if far_write.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
        let _gone = far_write.shutdown().await;
    };
    let back = async {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = far_read.read(&mut bytes).await {
            heard
                .answers
                .lock()
                .unwrap()
                .extend_from_slice(&bytes[..read]);
            if near_write.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
        let _gone = near_write.shutdown().await;
    };
    tokio::join!(there, back);
}

/// PostgreSQL seen from beside.
#[derive(Debug)]
pub(crate) struct Beside(PgConnection);

impl Beside {
    /// On the test's own database.
    pub(crate) async fn database(url: &str) -> Self {
        let connect: PgConnectOptions = url.parse().unwrap();
        let connect = connect
            .application_name("beside")
            .disable_statement_logging();
        Self(connect.connect().await.unwrap())
    }

    /// The rows of a statement that gives one text each.
    pub(crate) async fn texts(&mut self, statement: &str) -> Vec<String> {
        #[expect(clippy::disallowed_methods, reason = "a test's own statement")]
        let query = sqlx::query_scalar(AssertSqlSafe(statement.to_owned()));
        query.fetch_all(&mut self.0).await.unwrap()
    }

    pub(crate) async fn execute(&mut self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::Executor::execute(&mut self.0, statement)
            .await
            .unwrap();
    }

    /// What the servers' connections do that match this condition.
    pub(crate) async fn activity(&mut self, condition: &str) -> Vec<String> {
        self.texts(&format!(
            "SELECT concat_ws(' ', pid, state, wait_event, left(query, 80)) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'tapedeck' AND {condition}"
        ))
        .await
    }

    /// Cuts some of the servers' connections, each with this probability.
    pub(crate) async fn terminate_some(&mut self, probability: f64) -> usize {
        let statement = format!(
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'tapedeck' \
               AND random() < {probability}"
        );
        self.texts(&statement).await.len()
    }

    pub(crate) async fn close(self) {
        self.0.close().await.unwrap();
    }
}

/// Work in the background that the test ends in good order.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    clients: JoinSet<()>,
    pub(crate) stop: CancellationToken,
}

impl Crowd {
    pub(crate) fn add(&mut self, client: impl Future<Output = ()> + Send + 'static) {
        self.clients.spawn(client);
    }

    /// Fails if one of them has failed, or has ended before its time.
    pub(crate) fn look(&mut self) {
        if let Some(ended) = self.clients.try_join_next() {
            ended.unwrap();
            assert!(self.stop.is_cancelled(), "a client ended before its time");
        }
    }

    /// Tells them to stop and waits for what they have begun.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
    }
}
