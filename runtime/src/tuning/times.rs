//! Measured times, and the winner.

use crate::error::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Times of one candidate's launches, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
}

impl Times {
    /// None of no samples.
    pub fn of(mut samples: Vec<f64>) -> Option<Times> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let at = |part: f64| samples[(part * last as f64).round() as usize];
        Some(Times {
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
        })
    }
}

/// The slowest rank's times of each candidate, by the times of each rank.
pub(crate) fn slowest(ranks: &[Vec<Times>]) -> Vec<Times> {
    let candidates = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let slowest = (0..candidates).filter_map(|candidate| {
        let each = ranks.iter().map(|rank| rank[candidate]);
        each.max_by(|a, b| a.median.total_cmp(&b.median))
    });
    slowest.collect()
}

/// Message of a rank to the others.
pub(crate) fn text(of: &impl Serialize) -> String {
    serde_json::to_string(of).unwrap_or_default()
}

/// Message of a rank, read.
///
/// # Errors
/// [`Error::Mismatch`]: it runs another version.
pub(crate) fn read<T: DeserializeOwned>(said: &str, rank: u32) -> Result<T, Error> {
    serde_json::from_str(said).map_err(|_| Error::Mismatch {
        what: format!("rank {rank} says of candidates what this version does not understand"),
        help: "run one version of counterflow in all processes".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(median: f64) -> Times {
        Times {
            p10: median - 1.0,
            median,
            p90: median + 1.0,
        }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let ranks = [[100.0, 80.0, 99.5], [90.0, 120.0, 99.5]];
        let ranks = ranks.map(|rank| rank.map(times).to_vec());
        let slowest = slowest(&ranks);
        assert_eq!(slowest, [100.0, 120.0, 99.5].map(times));
    }

    #[test]
    fn times_are_the_middle_and_the_tenths() {
        let samples = (0..=10).rev().map(f64::from).collect();
        let wanted = Times {
            p10: 1.0,
            median: 5.0,
            p90: 9.0,
        };
        assert_eq!(Times::of(samples), Some(wanted));
        assert_eq!(Times::of(Vec::new()), None);
    }
}
