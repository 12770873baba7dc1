//! What was measured, as tables: values beside their targets, and small beside large histories.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// Rows of measured values beside their targets.
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
        lines(f, &head, &self.0)
    }
}

/// Writes rows below their head, the first and the last column to the left, the rest to the right.
fn lines<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    head: &[String; N],
    rows: &[[String; N]],
) -> fmt::Result {
    let rows = || std::iter::once(head).chain(rows);
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = rows().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    });
    for row in rows() {
        let mut line = format!("{:1$}", row[0], widths[0]);
        for column in 1..N - 1 {
            write!(line, "  {:>1$}", row[column], widths[column])?;
        }
        writeln!(f, "{}", format!("{line}  {}", row[N - 1]).trim_end())?;
    }
    Ok(())
}

/// The same things done over a small and over a large history, side by side.
#[derive(Debug, Default)]
pub(crate) struct Comparison(Vec<(String, [Samples; 2])>);

impl Comparison {
    /// How much longer the median may be over the large history.
    pub(crate) const BOUND: f64 = 1.5;

    /// Takes how long something took over the small (0) or the large (1) history.
    pub(crate) fn push(&mut self, what: &str, which: usize, sample: Duration) {
        let at = self.0.iter().position(|(name, _)| name == what);
        let at = at.unwrap_or_else(|| {
            self.0.push((what.to_owned(), Default::default()));
            self.0.len() - 1
        });
        self.0[at].1[which].push(sample);
    }

    /// What takes too long over the large history.
    pub(crate) fn misses(&self) -> Vec<&str> {
        let misses = self.0.iter().filter(|(_, pair)| ratio(pair) > Self::BOUND);
        misses.map(|(what, _)| what.as_str()).collect()
    }
}

fn ratio([small, large]: &[Samples; 2]) -> f64 {
    large.percentile(50) / small.percentile(50)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "what",
            "small p50",
            "p99",
            "large p50",
            "p99",
            "ratio",
            "target",
            "",
        ];
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|(what, pair)| {
                let [small, large] = pair;
                let ms =
                    |samples: &Samples, percent| format!("{:.2} ms", samples.percentile(percent));
                let is_kept = ratio(pair) <= Self::BOUND;
                [
                    what.clone(),
                    ms(small, 50),
                    ms(small, 99),
                    ms(large, 50),
                    ms(large, 99),
                    format!("{:.2} x", ratio(pair)),
                    format!("≤ {} x", Self::BOUND),
                    if is_kept { "ok" } else { "MISSED" }.to_owned(),
                ]
            })
            .collect();
        lines(f, &head.map(str::to_owned), &rows)
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

    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
