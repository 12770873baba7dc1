//! What a person does with curl: prompt, cut, follow again; a claim by hand; and each kind of
//! conflict.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, Claim, prompt, session_in, session_of, text, words};
use crate::http::{Answer, Connection, End, Frame, Request, events};
use crate::server::{Place, Server};
use crate::wait::{eventually, within};

on_both_stores! {
    a_stream_that_was_cut_goes_on_with_exactly_the_rest,
    a_run_is_executed_by_hand,
    older_names_and_the_versioned_mount_are_the_same_api,
    each_refusal_is_a_problem_document,
    a_bad_cursor_is_refused_before_the_first_frame,
    a_lost_claim_is_told_of_its_loss_on_every_call,
    one_key_is_one_run_however_often_the_connection_breaks,
    a_key_whose_session_was_deleted_finds_nothing_and_makes_nothing,
    a_run_handed_to_a_poll_that_left_is_claimable_again,
    an_end_reported_at_the_last_moment_stays_or_is_refused,
    an_event_that_cannot_be_stored_is_refused_and_its_run_goes_on,
}

const UNKNOWN: &str = "018f0000-0000-7000-8000-000000000001";
const BODY_BYTES: usize = 1024 * 1024;
const LIMIT: Duration = Duration::from_secs(20);

fn numbers(frames: &[Frame]) -> Vec<u64> {
    frames.iter().filter_map(|frame| frame.id).collect()
}

async fn a_stream_that_was_cut_goes_on_with_exactly_the_rest(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let session = session_in(address, "cut").await;
    let ask = Request::post(
        format!("/sessions/{session}/prompt"),
        &json!({"prompt": "go"}),
    );
    let mut stream = ask.open(address).await;
    let goes_on = stream.header("content-location").unwrap().to_owned();
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert_eq!(
        stream.header("cache-control"),
        Some("no-store, no-transform")
    );
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));
    let claim = Claim::take(address, "cut").await;
    claim
        .upload(address, &[words("e1", "one "), words("e2", "two ")])
        .await;
    let mut seen = stream.until(|frame| frame.data["event_id"] == "e1").await;
    assert_eq!(
        (seen[0].retry, seen[1].kind.as_str()),
        (Some(1_000), "stream.open")
    );
    drop(stream);
    claim.upload(address, &[words("e3", "three")]).await;
    claim.complete(address).await;

    let last = seen
        .iter()
        .filter_map(|frame| frame.id)
        .next_back()
        .unwrap();
    let follow = Request::get(&goes_on).header("last-event-id", last.to_string());
    let mut stream = follow.open(address).await;
    let rest = stream.rest().await;
    assert_eq!(stream.end, Some(End::Closed));
    let end = rest.last().unwrap();
    assert_eq!(
        (end.kind.as_str(), &end.data["reason"]),
        ("stream.end", &json!("settled"))
    );
    seen.extend(rest);

    let page = Request::get(&goes_on).send(address).await.ok();
    let page = page["events"].as_array().unwrap();
    assert_eq!(
        numbers(&seen),
        page.iter().map(api::seq).collect::<Vec<_>>()
    );
    for (frame, record) in events(&seen).iter().zip(page) {
        let of = |field: &str| (&frame.data[field], &record[field]);
        for field in ["event_id", "session_id", "run_id", "session_seq"] {
            let (shown, stored) = of(field);
            assert_eq!(shown, stored);
        }
        assert_eq!(frame.data["type"], record["kind"]);
        assert_eq!(frame.data["timestamp"], record["recorded_at"]);
        assert_eq!(frame.kind, record["kind"].as_str().unwrap());
        for (field, value) in record["payload"].as_object().unwrap() {
            assert_eq!(&frame.data[field], value);
        }
    }
    assert_eq!(page.last().unwrap()["kind"], "TurnEnd");
    assert_eq!(api::said(page, &claim.run_id), "one two three");
}

async fn a_run_is_executed_by_hand(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let session = session_of(address, &json!({"title": "by hand"})).await;
    let (run, at) = prompt(address, &session, "do it").await;
    let claim = Claim::take(address, "default").await;
    assert_eq!((&claim.run_id, &claim.session_id), (&run, &session));
    assert_eq!(
        (&claim.answer["attempt"], &claim.answer["prompt"]),
        (&json!(1), &json!("do it"))
    );
    let beat = claim.heartbeat(address).await;
    assert_eq!(
        (&beat["status"], &beat["cancel_requested"]),
        (&json!("running"), &json!(false))
    );

    let records = claim.upload(address, &[words("e1", "hello")]).await;
    let again = claim
        .upload(address, &[words("e1", "hello"), words("e2", "more")])
        .await;
    assert_eq!(records[0], again[0]);
    assert!(api::seq(&again[1]) > api::seq(&again[0]) && api::seq(&again[0]) > at);

    let question = json!({"request_id": "q1", "tool_name": "edit", "arguments": {"path": "x"}, "wait_seconds": 0});
    let asked = claim
        .request("approval", question.clone())
        .send(address)
        .await;
    assert_eq!(
        (asked.status, &asked.json()["status"]),
        (202, &json!("pending"))
    );
    let held = claim.request(
        "approval",
        json!({"request_id": "q1", "tool_name": "edit", "arguments": {"path": "x"}}),
    );
    let approve = json!({"request_id": "q1", "approved": true, "feedback": "fine"});
    let path = format!("/sessions/{session}/approve");
    let (heard, answer) = tokio::join!(held.send(address), server.post(&path, &approve));
    let (heard, answer) = (heard.ok(), answer.ok());
    assert_eq!(
        (&answer["status"], &answer["request_id"]),
        (&json!("ok"), &json!("q1"))
    );
    assert_eq!(
        (&heard["approved"], &heard["feedback"]),
        (&json!(true), &json!("fine"))
    );

    let settled = claim.complete(address).await;
    assert_eq!(
        (&settled["status"], &settled["result"]),
        (&json!("completed"), &json!({"ok": true}))
    );
    assert_eq!(claim.complete(address).await, settled);
    let log = api::log(address, &session).await;
    api::assert_dense(&log);
    let kinds: Vec<_> = log.iter().map(|event| text(event, "kind")).collect();
    assert_eq!(
        kinds,
        [
            "RunRequested",
            "RunClaimed",
            "RunStarted",
            "StreamDelta",
            "StreamDelta",
            "ApprovalRequest",
            "ApprovalResponse",
            "TurnEnd"
        ]
    );
}

async fn older_names_and_the_versioned_mount_are_the_same_api(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let created = server.post("/v1/sessions", &json!({})).await;
    assert_eq!(created.status, 201);
    let session = text(&created.json(), "session_id");
    assert_eq!(
        created.header("location"),
        Some(format!("/v1/sessions/{session}").as_str())
    );
    prompt(address, &session, "old").await;
    let claim = server
        .post("/v1/worker/runs/claim", &json!({"worker_id": "w1"}))
        .await
        .ok();
    assert_eq!(
        (&claim["worker_id"], &claim["executor_id"]),
        (&json!("w1"), &json!("w1"))
    );
    let run = text(&claim, "run_id");
    let body = json!({"worker_id": "w1", "claim_token": claim["claim_token"]});
    let beat = server
        .post(&format!("/worker/runs/{run}/heartbeat"), &body)
        .await
        .ok();
    assert_eq!(
        (&beat["worker_id"], &beat["status"]),
        (&json!("w1"), &json!("running"))
    );
    let workers = server.get("/workers").await.ok();
    assert_eq!(workers["executors"][0]["worker_id"], "w1", "{workers}");
    assert_eq!(
        server.get("/v1/executors/w1").await.ok()["current_run_id"],
        json!(run)
    );
    let both = json!({"worker_id": "w1", "executor_id": "w2"});
    assert_eq!(
        server.post("/executor/runs/claim", &both).await.problem().0,
        422
    );
}

async fn each_refusal_is_a_problem_document(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let session = session_in(address, "p").await;
    prompt(address, &session, "first").await;
    let path = |rest: &str| format!("/sessions/{session}/{rest}");
    let refused = async |request: Request| request.send(address).await.problem();

    let busy = server
        .post(&path("prompt"), &json!({"prompt": "second"}))
        .await;
    assert_eq!(busy.problem(), (409, "session_busy".to_owned()));
    let busy = busy.json();
    assert_eq!(
        busy["active_run_id"],
        api::list(address, &path("runs"), "runs").await[0]["run_id"]
    );
    assert_eq!(busy["on_active_allowed"], json!(["enqueue", "interrupt"]));

    let unknown = server.post("/sessions", &json!({"titel": "x"})).await;
    assert_eq!(unknown.problem(), (422, "invalid_request".to_owned()));
    assert!(unknown.text().contains("titel"), "{}", unknown.text());

    let large = Request::new("POST", "/sessions").body(vec![b' '; BODY_BYTES + 1]);
    assert_eq!(refused(large).await, (413, "body_too_large".to_owned()));
    let mut fits = json!({"title": "fits"}).to_string().into_bytes();
    fits.resize(BODY_BYTES, b' ');
    assert_eq!(
        Request::new("POST", "/sessions")
            .body(fits)
            .send(address)
            .await
            .status,
        201
    );

    for bad in [
        "/sessions/not-a-uuid",
        "/runs/1",
        "/sessions?limit=0",
        "/sessions?limit=x",
    ] {
        assert_eq!(refused(Request::get(bad)).await.0, 400, "{bad}");
    }
    let nul = server
        .post(&path("prompt"), &json!({"prompt": "a\u{0}b"}))
        .await;
    assert_eq!(nul.problem(), (422, "invalid_request".to_owned()));
    for body in [
        "{\"title\": \"\\ud800\"}",
        "{",
        "[]",
        "\"text\"",
        "{\"title\": 1}",
    ] {
        let (status, _) = refused(Request::new("POST", "/sessions").body(body)).await;
        assert!([400, 422].contains(&status), "{body}: {status}");
    }
    let deep = format!(
        "{{\"metadata\": {}1{}}}",
        "{\"a\":".repeat(200),
        "}".repeat(200)
    );
    let (status, _) = refused(Request::new("POST", "/sessions").body(deep)).await;
    assert!([400, 422].contains(&status), "{status}");

    assert_eq!(
        refused(Request::get(format!("/sessions/{UNKNOWN}"))).await,
        (404, "session_not_found".to_owned())
    );
    assert_eq!(
        refused(Request::get(format!("/runs/{UNKNOWN}"))).await,
        (404, "run_not_found".to_owned())
    );
    assert_eq!(
        refused(Request::get("/nothing")).await,
        (404, "route_not_found".to_owned())
    );
    assert_eq!(refused(Request::new("PUT", "/sessions")).await.0, 405);
    let form = Request::post("/sessions", &json!({})).header("content-type", "text/plain");
    let (status, _) = refused(form).await;
    assert!([400, 415].contains(&status), "{status}");
}

/// Malformed, negative, of the future: a typed error instead of a stream (fault 4).
async fn a_bad_cursor_is_refused_before_the_first_frame(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let session = session_in(address, "c").await;
    prompt(address, &session, "go").await;
    for (cursor, expected) in [
        ("999", (409, "cursor_future")),
        ("-1", (400, "cursor_malformed")),
        ("1.5", (400, "cursor_malformed")),
        ("abc", (400, "cursor_malformed")),
        ("99999999999999999999999", (400, "cursor_malformed")),
    ] {
        let events = format!("/sessions/{session}/events");
        let by_header = Request::get(&events).header("last-event-id", cursor);
        for request in [by_header, Request::get(format!("{events}?after={cursor}"))] {
            for request in [request.clone(), request.streaming()] {
                let (status, code) = request.send(address).await.problem();
                assert_eq!((status, code.as_str()), expected, "{cursor}");
            }
        }
    }
    let unknown = Request::get(format!("/sessions/{UNKNOWN}/events")).streaming();
    assert_eq!(unknown.send(address).await.problem().1, "session_not_found");
}

/// Whatever an executor sends for a claim that was reaped is refused and changes nothing (fault 6).
async fn a_lost_claim_is_told_of_its_loss_on_every_call(place: Arc<Place>) {
    let server = Server::scaled(&place, 0.02).await;
    let address = server.address;
    let session = session_in(address, "lost").await;
    prompt(address, &session, "go").await;
    let claim = Claim::take(address, "lost").await;
    claim.upload(address, &[words("e1", "said")]).await;
    let recovered = async || {
        let run = api::run(address, &claim.run_id).await;
        api::is_terminal(&run).then_some(run)
    };
    let run = eventually("the sweep ends the run", Duration::from_secs(20), recovered).await;
    assert_eq!(run["status"], "interrupted");
    let before = api::log(address, &session).await;
    let question = json!({"request_id": "q", "tool_name": "edit", "wait_seconds": 0});
    for (action, body) in [
        ("heartbeat", json!({})),
        ("events", json!({"events": [words("e2", "late")]})),
        ("approval", question),
        ("complete", json!({"status": "completed"})),
        ("release", json!({})),
    ] {
        let (status, code) = claim.request(action, body).send(address).await.problem();
        assert_eq!(status, 409, "{action}");
        assert!(
            ["claim_lost", "run_settled"].contains(&code.as_str()),
            "{action}: {code}"
        );
    }
    let stranger = Claim {
        token: "1.none".to_owned(),
        ..claim.clone()
    };
    let (status, code) = stranger
        .request("heartbeat", json!({}))
        .send(address)
        .await
        .problem();
    assert_eq!((status, code.as_str()), (403, "claim_token_invalid"));
    assert_eq!(api::log(address, &session).await, before);
}

/// Sent again after each broken connection, it is the same run (faults 9, 16).
async fn one_key_is_one_run_however_often_the_connection_breaks(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let session = session_in(address, "k").await;
    let path = format!("/sessions/{session}/prompt");
    let keyed =
        |path: &str, body: &Value| Request::post(path, body).header("idempotency-key", "key-1");
    let once = keyed(&path, &json!({"prompt": "once"}));
    // Away before the answer, in its middle, and at its very beginning.
    for arrived in [0, 30, 1] {
        once.send_and_leave(address, arrived).await.unwrap();
    }
    let first = once.send(address).await.ok();
    for round in 0..6 {
        if round % 2 == 0 {
            server.restart().await;
        }
        assert_eq!(once.send(address).await.ok(), first);
        once.send_and_leave(address, round).await.unwrap();
    }
    // The same over one connection, and as a stream of the same run.
    let mut connection = Connection::open(address).await.unwrap();
    assert_eq!(connection.send(&once).await.unwrap().ok(), first);
    let mut stream = once.open(address).await;
    let seen = stream.until(|frame| frame.kind == "RunRequested").await;
    assert_eq!(seen.last().unwrap().data["run_id"], first["run_id"]);
    assert_eq!(
        api::list(address, &format!("/sessions/{session}/runs"), "runs")
            .await
            .len(),
        1
    );

    let other = keyed(&path, &json!({"prompt": "twice"}))
        .send(address)
        .await;
    assert_eq!(other.problem(), (409, "idempotency_conflict".to_owned()));
    let create = keyed("/sessions", &json!({"title": "once"}));
    create.send_and_leave(address, 0).await.unwrap();
    let created = create.send(address).await.ok();
    assert_eq!(
        create.send(address).await.ok()["session_id"],
        created["session_id"]
    );
    assert_eq!(api::list(address, "/sessions", "sessions").await.len(), 2);
}

/// A poll whose answer nobody takes hands its run on (fault 15).
async fn a_key_whose_session_was_deleted_finds_nothing_and_makes_nothing(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let create = Request::post("/sessions", &json!({"title": "once"}));
    let create = create.header("idempotency-key", "key-1");
    let session = text(&create.send(server.address).await.ok(), "session_id");
    Request::new("DELETE", format!("/sessions/{session}"))
        .send(server.address)
        .await
        .ok();
    let (status, code) = create.send(server.address).await.problem();
    assert_eq!((status, code.as_str()), (404, "session_not_found"));
    let document = server.get("/openapi.json").await.ok();
    let told = &document["paths"]["/sessions"]["post"]["responses"]["404"];
    assert!(told.is_object(), "{told}");
    let list = server.get("/sessions").await.ok();
    assert_eq!(list["sessions"], json!([]));
}

async fn a_run_handed_to_a_poll_that_left_is_claimable_again(place: Arc<Place>) {
    let server = Server::scaled(&place, 0.1).await;
    let address = server.address;
    for arrived in [0, 1, 20] {
        let session = session_in(address, "left").await;
        prompt(address, &session, "go").await;
        let poll = json!({"executor_id": "gone", "pool": "left", "wait_seconds": 0});
        let poll = Request::post("/executor/runs/claim", &poll);
        poll.send_and_leave(address, arrived).await.unwrap();
        let again = async || {
            let body = json!({"executor_id": "next", "pool": "left"});
            let answer = Request::post("/executor/runs/claim", &body)
                .send(address)
                .await;
            (answer.status == 200).then(|| Claim::of(answer.json()))
        };
        let claim = eventually("the run is claimable again", Duration::from_secs(20), again).await;
        claim.complete(address).await;
    }
}

/// A poll passes by what is locked in this moment, by the sweep for one, and asks again.
async fn claim_at_last(address: SocketAddr, body: &Value) -> Answer {
    loop {
        let poll = Request::post("/executor/runs/claim", body);
        let answer = poll.send(address).await;
        if answer.status != 404 {
            return answer;
        }
    }
}

/// The same until a heartbeat is in time: on a slow machine the short lease may end before it.
async fn held_at_last(address: SocketAddr, body: &Value) -> Claim {
    loop {
        let claim = Claim::of(claim_at_last(address, body).await.ok());
        let beat = claim.request("heartbeat", json!({})).send(address).await;
        if beat.status == 200 {
            return claim;
        }
    }
}

/// A run that ends in the very moment in which the sweep takes it away: one of both wins (faults 13).
async fn an_end_reported_at_the_last_moment_stays_or_is_refused(place: Arc<Place>) {
    // A lease of 5 s is one and a half, and so is the sweep's period. Less of it, and a slow machine
    // loses claims before they are acknowledged.
    let server = Server::scaled(&place, 0.3).await;
    let address = server.address;
    let mut ends = tokio::task::JoinSet::new();
    for number in 0..60_u64 {
        ends.spawn(async move {
            let pool = format!("race-{number}");
            let session = session_in(address, &pool).await;
            prompt(address, &session, "go").await;
            let body = json!({"executor_id": "x", "pool": pool, "lease_seconds": 5});
            let claim = within("the run is claimed", LIMIT, held_at_last(address, &body)).await;
            // What is raced for is the end of the lease; each tries at another moment around it.
            tokio::time::sleep(Duration::from_millis(1_200 + 15 * number)).await;
            let end = claim
                .request("complete", json!({"status": "completed"}))
                .send(address)
                .await;
            (claim, end)
        });
    }
    let mut won = 0;
    while let Some(end) = ends.join_next().await {
        let (claim, end) = end.unwrap();
        let settled = async || {
            let run = api::run(address, &claim.run_id).await;
            api::is_terminal(&run).then_some(run)
        };
        let run = eventually("the claim is over", LIMIT, settled).await;
        if end.status == 200 {
            won += 1;
            assert_eq!(run["status"], "completed");
        } else {
            let (status, code) = end.problem();
            assert_eq!(status, 409);
            assert!(
                ["claim_lost", "run_settled"].contains(&code.as_str()),
                "{code}"
            );
            assert_eq!(run["status"], "interrupted");
        }
        let log = api::log(address, &claim.session_id).await;
        api::assert_dense(&log);
        let ends = log
            .iter()
            .filter(|event| event["kind"] == "TurnEnd")
            .count();
        assert_eq!(ends, 1);
    }
    eprintln!("{won} of 60 ended in time");
}

/// What can't be stored is refused at the edge, and the run goes on (faults 17).
async fn an_event_that_cannot_be_stored_is_refused_and_its_run_goes_on(place: Arc<Place>) {
    let server = Server::start(&place).await;
    let address = server.address;
    let claim = api::spoken(&server, "edge", 1).await;
    let before = api::log(address, &claim.session_id).await;
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let good = words("good", "in the same batch");
    for bad in [
        words("nul", "a\u{0}b"),
        words("i\u{0}d", "text"),
        json!({"event_id": "kind", "event": "a\u{0}", "data": {}}),
        json!({"event_id": "deep", "event": "Note", "data": {"deep": deep}}),
        words("large", &"x".repeat(300 * 1024)),
        json!({"event_id": "", "event": "Note", "data": {}}),
        json!({"event_id": "server", "event": "RunRequested", "data": {}}),
        json!({"event_id": "srv:mine", "event": "Note", "data": {}}),
    ] {
        let id = bad["event_id"].clone();
        let answer = claim
            .request("events", json!({"events": [good, bad]}))
            .send(address)
            .await;
        let (status, _) = answer.problem();
        assert!([400, 422].contains(&status), "{id}: {}", answer.text());
    }
    // A lone surrogate is no text, so it never becomes JSON here.
    let mut raw = claim
        .request("events", json!({"events": [words("lone", "SURROGATE")]}))
        .bytes(address);
    let text = String::from_utf8(raw.clone())
        .unwrap()
        .replace("SURROGATE", "\\udc00xxx");
    raw = text.into_bytes();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, &raw)
        .await
        .unwrap();
    let mut head = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut socket, &mut head)
        .await
        .unwrap();
    assert!(
        [b"HTTP/1.1 400", b"HTTP/1.1 422"].contains(&&head),
        "{}",
        String::from_utf8_lossy(&head)
    );
    assert_eq!(
        api::log(address, &claim.session_id).await,
        before,
        "nothing of those batches is there"
    );
    claim.upload(address, &[good]).await;
    assert_eq!(claim.complete(address).await["status"], "completed");
}
