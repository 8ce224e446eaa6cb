//! Statistics of samples.

/// The median of some samples, and their 10th and 90th percentiles.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// The spread of any number of samples. All zero for none.
    pub(super) fn of(samples: &[f64]) -> Spread {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |tenths: usize| {
            let index = sorted.len() * tenths / 10;
            sorted.get(index).or(sorted.last()).copied().unwrap_or(0.0)
        };
        Spread {
            median: at(5),
            low: at(1),
            high: at(9),
        }
    }
}

/// The speed of some samples over others: the median of the ratios, round by round. A clock that changes between rounds
/// changes both sides of a ratio; separate medians would differ by its change.
pub(super) fn round_by_round(others: &[f64], samples: &[f64]) -> f64 {
    let rounds = others.iter().zip(samples);
    let ratios: Vec<f64> = rounds.map(|(other, own)| other / own).collect();
    Spread::of(&ratios).median
}

/// The slowest rank's time in each sample, which the caller of a collective kernel waits for.
pub(super) fn slowest(ranks: &[&[f64]]) -> Vec<f64> {
    let most = ranks.iter().map(|rank| rank.len()).min().unwrap_or(0);
    (0..most)
        .map(|sample| ranks.iter().map(|rank| rank[sample]).fold(0.0, f64::max))
        .collect()
}

/// Seconds per launch in each whole second of the second half, from groups of `launches` and the times they ended.
pub(super) fn windows(ends: &[f64], launches: u32) -> Vec<f64> {
    const WINDOW: f64 = 1.0;
    let half = ends.last().copied().unwrap_or(0.0) / 2.0;
    let mut found = Vec::new();
    let mut from = ends.partition_point(|end| *end < half);
    while let Some(begin) = ends.get(from) {
        let to = ends.partition_point(|end| end - begin < WINDOW);
        let Some(end) = ends.get(to) else { break };
        found.push((end - begin) / ((to - from) as f64 * f64::from(launches)));
        from = to;
    }
    found
}

/// The geometric mean. None for no values.
pub(super) fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

/// The fewest samples under a budget.
const FEWEST: usize = 10;

/// The seconds of warm-up, at most `warm`, out of those left of a product's budget.
pub(super) fn settling(left: f64, warm: f64) -> f64 {
    (left / 3.0).clamp(0.0, warm)
}

/// The number of samples that fit in the seconds left if a round takes `round`: at most `most`, and enough to have a
/// spread.
pub(super) fn affordable(left: f64, round: f64, most: usize) -> usize {
    let fit = (left / round.max(1e-9)).max(0.0) as usize;
    fit.clamp(FEWEST.min(most), most)
}

/// Launches in a sample, so that it is long compared with an event.
pub(super) fn launches(seconds: f64, least: u32) -> u32 {
    const SAMPLE: f64 = 1e-3;
    const MOST: f64 = 64.0;
    (SAMPLE / seconds.max(1e-9))
        .ceil()
        .clamp(1.0, MOST)
        .max(f64::from(least)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_the_tenths() {
        let samples: Vec<f64> = (0..30).rev().map(f64::from).collect();
        let spread = Spread::of(&samples);
        assert_eq!((spread.median, spread.low, spread.high), (15.0, 3.0, 27.0));
        assert_eq!(Spread::of(&[7.0]).high, 7.0);
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn a_clock_that_moves_between_rounds_moves_no_ratio() {
        // In the fourth round the clock changes between the two: their medians differ by a factor of 2.2.
        let (others, own) = ([1.1, 2.2, 1.1, 2.2, 2.2], [1.0, 2.0, 1.0, 1.0, 2.0]);
        let ratio = round_by_round(&others, &own);
        assert!((ratio - 1.1).abs() < 1e-12, "{ratio}");
        assert_eq!(Spread::of(&others).median / Spread::of(&own).median, 2.2);
    }

    #[test]
    fn the_slowest_rank_of_each_sample_counts() {
        assert_eq!(slowest(&[&[1.0, 5.0, 2.0], &[3.0, 4.0]]), [3.0, 5.0]);
        assert!(slowest(&[]).is_empty());
    }

    #[test]
    fn windows_are_whole_seconds_of_the_later_half() {
        // Groups of four: a quarter of a second each, a half each from the sixth second on.
        let ends = (1..=24).map(|end| f64::from(end) * 0.25);
        let ends: Vec<f64> = ends
            .chain((1..=8).map(|end| 6.0 + f64::from(end) * 0.5))
            .collect();
        let windows = windows(&ends, 4);
        assert_eq!(
            windows.len(),
            5,
            "of ten seconds the last five: {windows:?}"
        );
        assert!((windows[0] - 0.0625).abs() < 1e-12, "{windows:?}");
        assert!((windows[4] - 0.125).abs() < 1e-12, "{windows:?}");
        assert!(
            super::windows(&ends[..4], 4).is_empty(),
            "a second has no half with one"
        );
        assert!(super::windows(&[], 4).is_empty());
    }

    #[test]
    fn geometric_means_weigh_ratios() {
        let mean = geometric_mean(&[2.0, 0.5, 1.0]).expect("a mean");
        assert!((mean - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn a_budget_buys_settling_then_samples() {
        assert_eq!(settling(6.0, 1.0), 1.0);
        assert!((settling(0.9, 1.0) - 0.3).abs() < 1e-12);
        assert_eq!(settling(-2.0, 1.0), 0.0, "already overdrawn");
        assert_eq!(affordable(1.0, 0.01, 30), 30);
        assert_eq!(affordable(0.15, 0.01, 30), 15);
        assert_eq!(affordable(-1.0, 0.01, 30), 10, "a spread needs some");
        assert_eq!(affordable(0.0, 0.0, 5), 5);
    }

    #[test]
    fn samples_last_a_millisecond() {
        assert_eq!(launches(84e-6, 1), 12);
        assert_eq!(launches(5e-3, 1), 1);
        assert_eq!(launches(5e-3, 5), 5);
        assert_eq!(launches(1e-6, 1), 64);
    }
}
