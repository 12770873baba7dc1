//! The listener on a real socket: what clients do to connections, and how it all ends.

use std::time::Duration;

use crate::support::Live;
use http::Method;
use serde_json::json;
use tapedeck_domain::Timing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// A server on a port of its own.
struct Served {
    live: Live,
    address: std::net::SocketAddr,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start(timing: Timing) -> Self {
        let live = Live::timed(timing, |_| {}).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lifecycle = live.api.control.lifecycle().clone();
        let serve = tapedeck_server::serve(listener, live.api.state.clone(), lifecycle.clone());
        let serving = lifecycle.spawn(serve);
        Self {
            live,
            address,
            serving,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request and leaves its answer to be read.
    async fn request(&self, method: Method, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect().await;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    }
}

/// Reads until the text has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed before `{text}`");
        let searched = seen.len().saturating_sub(text.len());
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        if seen[searched..].contains(text) {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_in_bound_whatever_clients_hold_open() {
    let timing = Timing {
        scale: 0.1,
        ..Timing::STANDARD
    };
    let served = Served::start(timing).await;
    let session = served.live.session().await;
    let path = format!("/sessions/{session}/events");
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = served.request(Method::GET, &path, "").await;
        read_until(&mut stream, "stream.live").await;
        streams.push(stream);
    }
    let mut polls = Vec::new();
    for poll in 0..50 {
        let body = json!({"executor_id": format!("x{poll}"), "wait_seconds": 60}).to_string();
        polls.push(
            served
                .request(Method::POST, "/executor/runs/claim", &body)
                .await,
        );
    }
    // All polls are known, so all are held.
    while served.live.get("/executors?limit=200").await.ok()["executors"]
        .as_array()
        .unwrap()
        .len()
        < 50
    {
        tokio::task::yield_now().await;
    }
    let idle = served.connect().await;
    let mut kept = served.request(Method::GET, "/healthz", "").await;
    read_until(&mut kept, "\"ok\"").await;
    // A head that never ends, and bodies that never come.
    let mut half = served.connect().await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: local")
        .await
        .unwrap();
    let mut uploads = Vec::new();
    for _ in 0..64 {
        let mut upload = served.connect().await;
        let head = format!(
            "POST /sessions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: 9000\r\n\r\n{{",
            served.address
        );
        upload.write_all(head.as_bytes()).await.unwrap();
        uploads.push(upload);
    }

    let began = Instant::now();
    served.live.api.control.lifecycle().drain();
    for stream in &mut streams {
        let rest = read_until(stream, "stream.end").await;
        assert!(rest.contains(r#"{"reason":"shutdown"}"#), "{rest}");
    }
    for poll in &mut polls {
        read_until(poll, "no_run_available").await;
    }
    let served_to_the_end = timeout(Duration::from_secs(5), served.serving).await;
    served_to_the_end.unwrap().unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    assert!(TcpStream::connect(served.address).await.is_err());
    drop((idle, kept, half, uploads));
}

#[tokio::test]
async fn a_request_that_was_accepted_before_the_drain_is_answered() {
    let served = Served::start(Timing::STANDARD).await;
    let body = json!({"title": "kept"}).to_string();
    let mut stream = served.connect().await;
    let head = format!(
        "POST /sessions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        served.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut other = served.request(Method::GET, "/healthz", "").await;
    read_until(&mut other, "\"ok\"").await;
    served.live.api.control.lifecycle().drain();
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    served.serving.await.unwrap().unwrap();
    let sessions = served.live.get("/sessions").await.ok();
    assert_eq!(sessions["sessions"][0]["title"], "kept");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_while_it_is_still_sent() {
    let served = Served::start(Timing::STANDARD).await;
    let body = format!(r#"{{"title": "{}"}}"#, "x".repeat(4 * 1024 * 1024));
    let mut stream = served.request(Method::POST, "/sessions", &body).await;
    let answer = read_until(&mut stream, "body_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_stops_reading_is_closed_and_others_are_not() {
    let timing = Timing {
        stalled_follower_ms: 300,
        ..Timing::STANDARD
    };
    let served = Served::start(timing).await;
    let (session, claim) = served.live.claimed().await;
    let path = format!("/sessions/{session}/events");
    let mut stalled = served.request(Method::GET, &path, "").await;
    read_until(&mut stalled, "stream.live").await;
    let mut reading = served.request(Method::GET, &path, "").await;
    read_until(&mut reading, "stream.live").await;
    let reader = async {
        read_until(&mut reading, "event: TurnEnd").await;
    };
    let writer = async {
        let text = "x".repeat(200 * 1024);
        for batch in 0..20 {
            let event = |n: u32| {
                let data = json!({"content": text, "role": "assistant"});
                json!({"event_id": format!("{batch}-{n}"), "event": "StreamDelta", "data": data})
            };
            let events: Vec<_> = (0..5).map(event).collect();
            served.live.upload(&claim, json!(events)).await.ok();
        }
        served.live.complete(&claim).await;
    };
    tokio::join!(reader, writer);
    // A write fails once the server has let go; what the sockets still hold may then be read.
    let let_go = timeout(Duration::from_secs(20), async {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        while stalled.write_all(b" ").await.is_ok() {
            tick.tick().await;
        }
    });
    let_go.await.unwrap();
    let mut rest = Vec::new();
    let _reset = stalled.read_to_end(&mut rest).await;
    let text = String::from_utf8_lossy(&rest);
    assert!(!text.contains("event: TurnEnd"));
    assert!(!text.contains("stream.end"));
}
