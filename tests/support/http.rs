//! HTTP/1.1 and server-sent events over a plain socket, so that tests see the very bytes, and can
//! leave after any of them. It knows no endpoint and retries nothing.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// For one request and its answer; no request here may be held longer.
const LIMIT: Duration = Duration::from_secs(90);

/// A request being put together.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    accept: &'static str,
    host: Option<String>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            accept: "application/json",
            host: None,
            body: None,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    pub(crate) fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::new("POST", path).body(body.to_string())
    }

    /// Asks for a stream of events.
    pub(crate) fn streaming(mut self) -> Self {
        self.accept = "text/event-stream";
        self
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The `Host` to name instead of the address.
    pub(crate) fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    /// A body that claims to be JSON.
    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// The bytes of the request.
    pub(crate) fn bytes(&self, address: SocketAddr) -> Vec<u8> {
        let host = self.host.clone().unwrap_or_else(|| address.to_string());
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {host}\r\naccept: {}\r\n",
            self.method, self.path, self.accept
        );
        for (name, value) in &self.headers {
            head.extend([name.as_str(), ": ", value.as_str(), "\r\n"]);
        }
        if let Some(body) = &self.body {
            head.push_str("content-type: application/json\r\n");
            head.extend(["content-length: ", &body.len().to_string(), "\r\n"]);
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend(self.body.iter().flatten());
        bytes
    }

    /// Sends it over a connection of its own and reads the whole answer.
    pub(crate) async fn try_send(&self, address: SocketAddr) -> io::Result<Answer> {
        Connection::open(address).await?.send(self).await
    }

    /// The same; the server must answer.
    pub(crate) async fn send(&self, address: SocketAddr) -> Answer {
        match self.try_send(address).await {
            Ok(answer) => answer,
            Err(error) => panic!("{} {}: {error}", self.method, self.path),
        }
    }

    /// Sends it and goes away without reading the answer, once `arrived` bytes of it were there.
    pub(crate) async fn send_and_leave(
        &self,
        address: SocketAddr,
        arrived: usize,
    ) -> io::Result<()> {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(&self.bytes(address)).await?;
        let mut seen = vec![0; arrived];
        if arrived > 0 {
            socket.read_exact(&mut seen).await?;
        }
        // A reset instead of a goodbye, as a broken network gives it.
        socket.set_zero_linger()?;
        Ok(())
    }

    /// Opens a stream; the server must grant it.
    pub(crate) async fn open(&self, address: SocketAddr) -> Frames {
        match self.try_open(address).await {
            Ok(frames) => frames,
            Err(error) => panic!("{} {}: {error}", self.method, self.path),
        }
    }

    /// Opens a stream. A refusal is an error of kind `Other`, with the answer's body as its text.
    pub(crate) async fn try_open(&self, address: SocketAddr) -> io::Result<Frames> {
        let socket = TcpStream::connect(address).await?;
        self.open_on(socket, address).await
    }

    /// Opens a stream with a small receive buffer, so that a reader who stops is felt soon.
    pub(crate) async fn open_narrow(&self, address: SocketAddr) -> io::Result<Frames> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4_096)?;
        let socket = socket.connect(address).await?;
        self.open_on(socket, address).await
    }

    async fn open_on(&self, socket: TcpStream, address: SocketAddr) -> io::Result<Frames> {
        let request = self.clone().streaming();
        let opening = async {
            let mut wire = Wire::new(socket);
            wire.socket.write_all(&request.bytes(address)).await?;
            let head = wire.head().await?;
            if head.status == 200 {
                return Ok(Frames::of(head, wire));
            }
            let answer = wire.answer(head).await?;
            Err(io::Error::other(answer.text()))
        };
        bounded(opening).await
    }
}

async fn bounded<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(LIMIT, work)
        .await
        .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}

/// A connection that is kept from one request to the next.
#[derive(Debug)]
pub(crate) struct Connection {
    wire: Wire,
    address: SocketAddr,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self {
            wire: Wire::new(socket),
            address,
        })
    }

    pub(crate) async fn send(&mut self, request: &Request) -> io::Result<Answer> {
        let bytes = request.bytes(self.address);
        let exchange = async {
            // A server that refuses early may close before it has read everything.
            let written = self.wire.socket.write_all(&bytes).await;
            match self.wire.head().await {
                Ok(head) => self.wire.answer(head).await,
                Err(error) => written.and(Err(error)),
            }
        };
        bounded(exchange).await
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null if there is none.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{} is no JSON: {error}: {}", self.status, self.text()))
    }

    /// The body of an answer that must be a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!(
            (200..300).contains(&self.status),
            "{}: {}",
            self.status,
            self.text()
        );
        self.json()
    }

    /// Status and code of a problem document, which this must be.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{}: {}",
            self.status,
            self.text()
        );
        let body = self.json();
        assert_eq!(body["status"], self.status);
        for field in ["type", "title", "detail"] {
            assert!(
                body[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field}: {body}"
            );
        }
        (
            self.status,
            body["code"].as_str().unwrap_or_default().to_owned(),
        )
    }
}

/// The first lines of an answer.
#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }
}

/// A socket with what has been read of it and not been used.
#[derive(Debug)]
struct Wire {
    socket: TcpStream,
    unread: Vec<u8>,
    /// How many more bytes may be read before the connection counts as cut.
    budget: Option<usize>,
}

impl Wire {
    const fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            unread: Vec::new(),
            budget: None,
        }
    }

    /// Reads something more.
    async fn more(&mut self) -> io::Result<()> {
        let most = self.budget.unwrap_or(usize::MAX).min(64 * 1024);
        if most == 0 {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut bytes = vec![0; most];
        let read = self.socket.read(&mut bytes).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(budget) = &mut self.budget {
            *budget -= read;
        }
        self.unread.extend_from_slice(&bytes[..read]);
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.more().await?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    async fn head(&mut self) -> io::Result<Head> {
        loop {
            let first = self.line().await?;
            let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
            let status =
                status.ok_or_else(|| io::Error::other(format!("no status in `{first}`")))?;
            let mut headers = Vec::new();
            loop {
                let line = self.line().await?;
                let Some((name, value)) = line.split_once(':') else {
                    break;
                };
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if status != 100 {
                return Ok(Head { status, headers });
            }
        }
    }

    async fn answer(&mut self, head: Head) -> io::Result<Answer> {
        let mut body = Vec::new();
        if head.is_chunked() {
            while let Some(chunk) = self.chunk().await? {
                body.extend(chunk);
            }
        } else if let Some(length) = head.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            body = self.exactly(length).await?;
        }
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
        })
    }

    /// The next chunk; `None` after the last one.
    async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = self.line().await?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        let chunk = self.exactly(size).await?;
        self.line().await?;
        Ok((size > 0).then_some(chunk))
    }
}

/// One frame of a stream. A comment has no kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Frame {
    /// The id as it is.
    pub(crate) cursor: Option<String>,
    /// The id of an event of one session: its number.
    pub(crate) id: Option<u64>,
    pub(crate) kind: String,
    pub(crate) data: Value,
    pub(crate) retry: Option<u64>,
}

impl Frame {
    fn parse(text: &str) -> Self {
        let mut frame = Self::default();
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("id", value)) => {
                    frame.cursor = Some(value.to_owned());
                    frame.id = value.parse().ok();
                }
                Some(("event", value)) => value.clone_into(&mut frame.kind),
                Some(("data", value)) => frame.data = serde_json::from_str(value).unwrap(),
                Some(("retry", value)) => frame.retry = Some(value.parse().unwrap()),
                Some(_) | None => {
                    assert!(
                        line.is_empty() || line.starts_with(':'),
                        "a strange line: {line}"
                    );
                }
            }
        }
        frame
    }
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server closed it in good order.
    Closed,
    /// The connection broke, on whichever side.
    Broken,
}

/// A stream being read. Half a frame at its end doesn't count, as in a browser.
#[derive(Debug)]
pub(crate) struct Frames {
    wire: Wire,
    headers: Vec<(String, String)>,
    text: Vec<u8>,
    pub(crate) end: Option<End>,
}

impl Frames {
    fn of(head: Head, wire: Wire) -> Self {
        assert!(head.is_chunked(), "{head:?}");
        Self {
            wire,
            headers: head.headers,
            text: Vec::new(),
            end: None,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Breaks the connection once this many more bytes of it were read.
    pub(crate) fn cut_after(&mut self, bytes: usize) {
        self.wire.budget = Some(bytes);
    }

    /// The next frame; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.text.drain(..end + 2).collect();
                return Some(Frame::parse(std::str::from_utf8(&frame).unwrap()));
            }
            match self.wire.chunk().await {
                Ok(Some(chunk)) => self.text.extend(chunk),
                Ok(None) => {
                    self.end = Some(End::Closed);
                    return None;
                }
                Err(_) => {
                    self.end = Some(End::Broken);
                    return None;
                }
            }
        }
    }

    /// Everything up to the first frame that is wanted, that one included.
    #[track_caller]
    pub(crate) fn until(
        &mut self,
        wanted: impl Fn(&Frame) -> bool,
    ) -> impl Future<Output = Vec<Frame>> {
        let caller = std::panic::Location::caller();
        async move {
            let mut seen = Vec::new();
            let reading = async {
                while let Some(frame) = self.next().await {
                    let is_last = wanted(&frame);
                    seen.push(frame);
                    if is_last {
                        return true;
                    }
                }
                false
            };
            let found = tokio::time::timeout(LIMIT, reading).await.unwrap_or(false);
            assert!(
                found,
                "{caller}: the stream ended before what was waited for: {seen:?}"
            );
            seen
        }
    }

    /// Everything to the end.
    pub(crate) async fn rest(&mut self) -> Vec<Frame> {
        let mut seen = Vec::new();
        while let Some(frame) = self.next().await {
            seen.push(frame);
        }
        seen
    }
}

/// The events among frames.
pub(crate) fn events(frames: &[Frame]) -> Vec<&Frame> {
    let events = frames.iter().filter(|frame| frame.cursor.is_some());
    events.collect()
}
