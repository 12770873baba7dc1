//! On what the numbers were measured.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Instant;

use crate::table::Samples;

const SYNCS: usize = 200;

fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or("?", |rest| rest.trim_start_matches([':', ' ', '\t']))
        .to_owned()
}

/// Processor, memory, kernel, and what a commit to this disk costs at least.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let syncs = syncs();
    format!(
        "{}, {cores} cores, {} of memory, Linux {}; fdatasync p50 {:.2} ms, p99 {:.2} ms; SQLite with synchronous=FULL",
        field("/proc/cpuinfo", "model name"),
        field("/proc/meminfo", "MemTotal"),
        kernel.trim(),
        syncs.percentile(50),
        syncs.percentile(99),
    )
}

fn syncs() -> Samples {
    let mut file: File = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut samples = Samples::default();
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        samples.push(begun.elapsed());
    }
    samples
}
