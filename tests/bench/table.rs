//! Rows of measured values beside their targets.

use std::fmt;
use std::time::Duration;

/// The rows.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<[String; 4]>);

impl Table {
    /// A value that has no target.
    pub(crate) fn value(&mut self, what: &str, value: impl fmt::Display) {
        self.0.push([
            what.to_owned(),
            value.to_string(),
            String::new(),
            String::new(),
        ]);
    }

    /// A value that should be at most the target.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, target: f64, unit: &str) {
        let verdict = if value <= target { "ok" } else { "MISSED" };
        self.0.push([
            what.to_owned(),
            format!("{value:.2} {unit}"),
            format!("≤ {target} {unit}"),
            verdict.to_owned(),
        ]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["what", "measured", "target", ""].map(str::to_owned);
        let rows = || std::iter::once(&head).chain(&self.0);
        let width = |column: usize| {
            rows()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths = [width(0), width(1), width(2)];
        for row in rows() {
            let line = format!(
                "{:3$}  {:>4$}  {:>5$}",
                row[0], row[1], row[2], widths[0], widths[1], widths[2]
            );
            writeln!(f, "{}", format!("{line}  {}", row[3]).trim_end())?;
        }
        Ok(())
    }
}

/// The durations of one thing done many times.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The duration that this share of all stayed within, in milliseconds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = (sorted.len() * percent)
            .div_ceil(100)
            .clamp(1, sorted.len());
        sorted[at - 1].as_secs_f64() * 1_000.0
    }
}
