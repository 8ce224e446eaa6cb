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

/// What came of a rank's trial: the places of the candidates with their times, or the kind and the text of its error.
pub(crate) type Tried = Result<Vec<(usize, Times)>, (String, String)>;

/// A trial without times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GaveUp {
    pub why: String,
    /// True if something did not end.
    pub stalled: bool,
}

/// The slowest rank's times of each candidate, by what came of each rank's trial. None if a rank has none: then the first cause.
pub(crate) fn agreed(ranks: Vec<Tried>) -> Result<Vec<(usize, Times)>, GaveUp> {
    let failed = |one: &Tried| one.as_ref().err().cloned();
    let all: Vec<(String, String)> = ranks.iter().filter_map(failed).collect();
    // Who was only told of another's failure knows less of the cause.
    let cause = all.iter().find(|(kind, _)| kind != "aborted");
    if let Some((kind, why)) = cause.or(all.first()) {
        return Err(GaveUp {
            why: format!("the trial of candidates gave up: {why}"),
            stalled: kind == "stalled",
        });
    }
    let ranks: Vec<Vec<(usize, Times)>> = ranks.into_iter().flatten().collect();
    let candidates = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let slowest = (0..candidates).filter_map(|candidate| {
        let each = ranks.iter().map(|rank| rank[candidate]);
        each.max_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))
    });
    Ok(slowest.collect())
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
        let placed = |each: [f64; 3]| [0, 2, 5].into_iter().zip(each.map(times)).collect();
        let ranks = [[100.0, 80.0, 99.5], [90.0, 120.0, 99.5]];
        let slowest = agreed(ranks.map(|rank| Ok(placed(rank))).to_vec());
        assert_eq!(slowest, Ok(placed([100.0, 120.0, 99.5])));
    }

    #[test]
    fn a_rank_without_times_is_the_outcome_of_all_and_the_cause_is_told() {
        let failed = |kind: &str, why: &str| Err((kind.into(), why.into()));
        let told = |kind, why: &str| {
            agreed(vec![
                failed("aborted", "rank 2 ended early"),
                Ok(vec![(0, times(5.0))]),
                failed(kind, why),
            ])
        };
        let gave_up = |why: &str, stalled| {
            let why = format!("the trial of candidates gave up: {why}");
            Err(GaveUp { why, stalled })
        };
        assert_eq!(told("stalled", "it waits"), gave_up("it waits", true));
        assert_eq!(told("too_large", "no room"), gave_up("no room", false));
        assert_eq!(told("aborted", "so"), gave_up("rank 2 ended early", false));
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
