//! How often candidates are launched, so that the GPU's time stays within a budget.

/// Number of times that each candidate is timed, at most. Rounds go through all candidates, so that a change of clocks meets all
/// of them.
const MOST_SAMPLES: u32 = 7;
/// The least of them that give a median.
const LEAST_SAMPLES: u32 = 3;
/// Most launches of a sample.
const MOST_LAUNCHES: f64 = 50.0;

/// Launches of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Effort {
    /// Number of candidates that are measured: the first ones.
    pub candidates: usize,
    /// Rounds through all candidates.
    pub samples: u32,
    /// Launches of a candidate in a round that are timed together. One more comes before them.
    pub launches: u32,
}

impl Effort {
    /// The launches of candidates with these times that take `budget` seconds together, by those times: all candidates, and as
    /// many samples and launches as there is time for. Long launches are noisy in a smaller share of their time, so samples
    /// are given up before candidates are. None if there is no time for two.
    pub fn within(budget: f64, seconds: &[f64]) -> Option<Effort> {
        let mut candidates = (2..=seconds.len()).rev();
        candidates.find_map(|candidates| {
            let round: f64 = seconds[..candidates].iter().sum();
            let mut samples = (LEAST_SAMPLES..=MOST_SAMPLES).rev();
            samples.find_map(|samples| {
                // Each is launched once before all rounds.
                let launches = (budget / round - 1.0) / f64::from(samples) - 1.0;
                (launches >= 1.0).then(|| Effort {
                    candidates,
                    samples,
                    launches: launches.min(MOST_LAUNCHES) as u32,
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that it takes.
    fn takes(effort: Effort, seconds: &[f64]) -> f64 {
        let round: f64 = seconds[..effort.candidates].iter().sum();
        round * f64::from(1 + effort.samples * (1 + effort.launches))
    }

    #[test]
    fn no_launches_exceed_the_budget() {
        for budget in [0.15, 2.0] {
            for each in [1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2] {
                for candidates in 2..=32 {
                    let seconds = vec![each; candidates];
                    if let Some(effort) = Effort::within(budget, &seconds) {
                        assert!(takes(effort, &seconds) <= budget, "{effort:?} of {each}");
                        assert!(effort.candidates <= candidates);
                    }
                }
            }
        }
    }

    #[test]
    fn long_launches_have_fewer_samples_and_then_fewer_candidates() {
        let of = |each: f64| Effort::within(0.15, &[each; 8]).expect("time for two");
        let effort = |candidates, samples, launches| Effort {
            candidates,
            samples,
            launches,
        };
        assert_eq!(of(10e-6), effort(8, 7, 50));
        assert_eq!(of(100e-6), effort(8, 7, 25));
        assert_eq!(of(1.25e-3), effort(8, 7, 1));
        assert_eq!(of(2e-3), effort(8, 4, 1));
        // 6 ms: a product of 8192 x 28672 x 8192.
        assert_eq!(of(6e-3), effort(3, 3, 1));
        assert_eq!(of(10e-3), effort(2, 3, 1));
    }

    #[test]
    fn there_is_no_measurement_of_less_than_two() {
        assert_eq!(Effort::within(0.15, &[11e-3; 8]), None);
        assert_eq!(Effort::within(0.15, &[1e-5]), None);
        assert_eq!(Effort::within(0.0, &[1e-5; 8]), None);
        assert_eq!(Effort::within(0.15, &[f64::NAN; 8]), None);
    }
}
