//! The log over all sessions, followed across a server that is killed: by hand, and by the command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{self, Claim, spoken, text, words};
use crate::http::{Frame, Request, events};
use crate::server::{Place, Process, Server};
use crate::wait::eventually;

on_both_stores! {
    the_log_over_all_sessions_outlives_its_server,
    the_command_archives_all_sessions_over_a_killed_server,
}

const LIMIT: Duration = Duration::from_secs(30);

async fn say(claims: &[Claim; 2], address: SocketAddr, id: &str) {
    for claim in claims {
        claim.upload(address, &[words(id, "more")]).await;
    }
}

/// The numbers of each session's events, as they came.
fn by_session<'a>(seen: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Vec<(u64, String)>> {
    let mut sessions = BTreeMap::<String, Vec<_>>::new();
    for event in seen {
        let own = sessions.entry(text(event, "session_id")).or_default();
        own.push((api::seq(event), text(event, "event_id")));
    }
    sessions
}

/// Every event of both sessions was seen, once, in each session's order.
async fn assert_whole<'a>(
    seen: impl Iterator<Item = &'a Value>,
    claims: &[Claim; 2],
    address: SocketAddr,
) {
    let mut logs = Vec::new();
    for claim in claims {
        logs.extend(api::log(address, &claim.session_id).await);
    }
    assert_eq!(by_session(seen), by_session(logs.iter()));
}

async fn the_log_over_all_sessions_outlives_its_server(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let address = server.address;
    let claims = [
        spoken(&server, "one", 10).await,
        spoken(&server, "two", 10).await,
    ];
    let mut seen: Vec<Frame> = Vec::new();
    let follow = |seen: &[Frame]| {
        let request = Request::get("/events");
        match seen.iter().rev().find_map(|frame| frame.cursor.clone()) {
            Some(last) => request.header("last-event-id", last),
            None => request,
        }
    };
    for round in 0..4 {
        let mut frames = follow(&seen).open(address).await;
        seen.extend(frames.until(|frame| frame.kind == "stream.live").await);
        let id = format!("r{round}");
        say(&claims, address, &id).await;
        // The last of the two may be seen or not before the kill.
        seen.extend(frames.until(|frame| frame.data["event_id"] == id).await);
        say(&claims, address, &format!("r{round}-unseen")).await;
        server.restart().await;
        seen.extend(frames.rest().await);
    }
    for claim in &claims {
        claim.complete(address).await;
    }
    let last = &claims[1].session_id;
    let mut frames = follow(&seen).open(address).await;
    let end = |frame: &Frame| frame.kind == "TurnEnd" && frame.data["session_id"] == *last;
    seen.extend(frames.until(end).await);
    let seen = events(&seen);
    assert_whole(seen.iter().map(|frame| &frame.data), &claims, address).await;
}

/// The whole lines that the command has printed.
fn lines(process: &Process) -> Vec<Value> {
    let log = process.log();
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let lines = whole.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn the_command_archives_all_sessions_over_a_killed_server(place: Arc<Place>) {
    let mut server = Server::start(&place).await;
    let (address, url) = (server.address, server.url());
    let claims = [
        spoken(&server, "one", 3).await,
        spoken(&server, "two", 3).await,
    ];
    let command = ["events", "--follow", "--json", "--server", &url];
    let mut archive = place.start("archive", place.command(&command));
    for round in 0..2 {
        let id = format!("r{round}");
        say(&claims, address, &id).await;
        let has_come = async || {
            let seen = lines(&archive);
            let found = seen.iter().filter(|line| line["event"]["event_id"] == id);
            (found.count() == 2).then_some(())
        };
        eventually("the archive has the events", LIMIT, has_come).await;
        server.restart().await;
    }
    for claim in &claims {
        claim.complete(address).await;
    }
    let all = async || {
        let seen = lines(&archive);
        let ends = seen
            .iter()
            .filter(|line| line["event"]["type"] == "TurnEnd");
        (ends.count() == 2).then_some(seen)
    };
    let archived = eventually("the archive has both ends", LIMIT, all).await;
    assert_whole(archived.iter().map(|line| &line["event"]), &claims, address).await;
    archive.terminate(LIMIT).await;

    // Any line is a place to go on from, also for a command that doesn't wait.
    let middle = archived.len() / 2;
    let cursor = text(&archived[middle], "cursor");
    let rest = ["events", "--json", "--server", &url, "--after", &cursor];
    let rest = place.run(&rest).await.exits(0).json_lines();
    assert_eq!(rest, archived[middle + 1..]);
    let ends = ["events", "--json", "--server", &url, "--kind", "TurnEnd"];
    let ends = place.run(&ends).await.exits(0).json_lines();
    assert_eq!(ends.len(), 2);
    let bad = ["events", "--server", &url, "--after", "nonsense"];
    place.run(&bad).await.exits(2);
}
