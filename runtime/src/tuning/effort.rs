//! How often candidates are launched, so that the GPU's time stays about within a budget.

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

    /// Goes through the rounds, of which each is told its number and the launches of a sample, and gives the seconds that it took. Once
    /// `spent` seconds and those are the budget, as one rank or another says, there are no more rounds than a median needs, and
    /// samples are of one launch. `any` tells whether that is so on any rank: all do the same.
    pub fn rounds<E>(
        self,
        budget: f64,
        mut spent: f64,
        any: impl Fn(bool) -> Result<bool, E>,
        mut round: impl FnMut(u32, u32) -> Result<f64, E>,
    ) -> Result<(), E> {
        for number in 0..self.samples {
            let launches = match any(spent >= budget)? {
                true if number >= LEAST_SAMPLES => break,
                true => 1,
                false => self.launches,
            };
            spent += round(number, launches)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Launches of each round's samples, on a clock by which a round takes so long for each launch.
    fn rounds_of(each: f64, others: impl Fn(bool) -> bool) -> Vec<u32> {
        let effort = Effort {
            candidates: 2,
            samples: 7,
            launches: 50,
        };
        let mut made = Vec::new();
        let any = |own| Ok::<_, Infallible>(others(own));
        let Ok(()) = effort.rounds(0.15, each, any, |number, launches| {
            assert_eq!(number, made.len() as u32);
            made.push(launches);
            Ok(each * f64::from(launches))
        });
        made
    }

    #[test]
    fn a_winner_has_the_least_samples_however_long_launches_take() {
        assert_eq!(rounds_of(1e-4, |own| own), [50; 7]);
        // 50 ms a round: the budget is spent after three.
        assert_eq!(rounds_of(1e-3, |own| own), [50; 3]);
        // A round takes more than all of it, and so do the first launches.
        assert_eq!(rounds_of(4e-3, |own| own), [50, 1, 1]);
        assert_eq!(rounds_of(1.0, |own| own), [1; 3]);
    }

    #[test]
    fn ranks_whose_clocks_differ_make_the_same_rounds() {
        // Another rank's is spent.
        assert_eq!(rounds_of(1e-4, |_| true), rounds_of(1.0, |own| own));
    }

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
