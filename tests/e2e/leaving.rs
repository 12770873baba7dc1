//! Runs without a server that whoever follows them leaves: what becomes of them, and what is said.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::server::{Output, Place};
use crate::wait::within;

#[tokio::test]
async fn a_reader_that_goes_away_leaves_the_run_and_is_told_how_to_go_on() {
    let place = Place::new();
    let data = place.data();
    let data = data.to_str().unwrap();
    let goal = [
        "run",
        "--agent",
        "demo",
        "--goal",
        "say begin; stream 600 100",
    ];
    let mut command = place.command(&[&goal[..], &["--data-dir", data]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    within("a line", Duration::from_mins(1), lines.next_line())
        .await
        .unwrap();
    drop(lines);
    let output = within("the end", Duration::from_mins(1), child.wait_with_output()).await;
    let told = Output::of("tapedeck run", &output.unwrap()).exits(7);
    let (_, command) = told.err.split_once("go on with it: `tapedeck ").unwrap();
    assert!(command.contains("resume --session "), "{}", told.err);
    // It goes where the run went.
    assert!(
        command.contains(&format!("--data-dir {data}")),
        "{}",
        told.err
    );
    let list = ["sessions", "list", "--json", "--data-dir", data];
    let listed = place.run(&list).await.exits(0).json_lines();
    assert_eq!(listed[0]["sessions"][0]["status"], "interrupted");
}
