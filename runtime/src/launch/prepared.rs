//! The part of a launch that its plan and the places of its tensors decide: made once, and used again.

use super::tensors::Placement;
use super::which::{Known, Which};
use crate::cuda::Arguments;
use crate::driver::Address;
use crate::error::Error;
use crate::group::Entry;
use counterflow_emulator::open;
use std::sync::Arc;

/// Most launches that are kept. A model launches one kernel for each of its layers, with other weights each time, and
/// a serving engine does so for each of its batch sizes. Each takes about a kilobyte.
const KEPT: usize = 1024;

/// Parameters of a launch.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// As the kernel takes them. None of them on an emulated GPU.
    pub arguments: Arguments,
    /// The launch as an emulated GPU takes it.
    pub emulated: Option<Arc<open::Launch>>,
    /// The twin of an exchange there.
    pub twin: Option<open::TwinLaunch>,
    /// CTAs of an exchange.
    pub ctas: Option<u32>,
}

/// The parameters of a launch that may run here, and what the ledger says of it.
#[derive(Debug)]
pub(super) struct Prepared {
    plan: Known,
    arrivals: Address,
    places: Vec<Option<Placement>>,
    /// The launch that used it last.
    used: u64,
    pub parameters: Parameters,
    /// None if no peer waits for the launch.
    pub entry: Option<Entry>,
}

/// Prepared launches, the latest ones.
#[derive(Debug, Default)]
pub(super) struct AllPrepared {
    all: Vec<Prepared>,
    /// The one that was used last.
    latest: usize,
    launches: u64,
}

impl AllPrepared {
    /// Prepares a launch with this plan, this table of arrivals, and tensors in these places.
    ///
    /// # Errors
    /// Those of `make`, which makes what is not known yet.
    pub fn of(
        &mut self,
        (plan, arrivals): (Which<'_>, Address),
        places: &[Option<Placement>],
        make: impl FnOnce() -> Result<(Parameters, Option<Entry>), Error>,
    ) -> Result<&Prepared, Error> {
        let same = |known: &Prepared| {
            known.arrivals == arrivals && known.plan.is(plan) && known.places == places
        };
        let (from, count) = (self.latest, self.all.len());
        // The same again, or the next of a row of layers that comes again: both are found at once.
        let mut likely = (from..count).chain(0..from);
        self.latest = match likely.find(|at| same(&self.all[*at])) {
            Some(at) => at,
            None => {
                let (parameters, entry) = make()?;
                self.keep(Prepared {
                    plan: plan.kept(),
                    arrivals,
                    places: places.to_vec(),
                    used: 0,
                    parameters,
                    entry,
                })
            }
        };
        self.launches += 1;
        let prepared = &mut self.all[self.latest];
        prepared.used = self.launches;
        Ok(prepared)
    }

    /// The one that was asked for last.
    ///
    /// # Panics
    /// If none was.
    pub fn latest(&self) -> &Prepared {
        &self.all[self.latest]
    }

    /// Puts one in the place of the one that was not used for the longest time, once there are many.
    fn keep(&mut self, made: Prepared) -> usize {
        if self.all.len() < KEPT {
            self.all.push(made);
            return self.all.len() - 1;
        }
        let mut all = (0..).zip(&mut self.all);
        let first = all.next();
        let oldest = all.fold(first, |oldest, next| match oldest {
            Some(oldest) if oldest.1.used < next.1.used => Some(oldest),
            _ => Some(next),
        });
        oldest.map_or(0, |(at, place)| {
            *place = made;
            at
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_codegen::shape::Shape;

    fn at(own: u64, shared: Option<u64>, bytes: u64) -> [Option<Placement>; 2] {
        let place = Placement {
            own: Address::of(own),
            shared: shared.map(Address::of),
            bytes,
        };
        [None, Some(place)]
    }

    /// Tests that a launch was prepared anew. Its one parameter distinguishes it from others.
    fn anew(
        all: &mut AllPrepared,
        plan: u64,
        arrivals: u64,
        places: [Option<Placement>; 2],
    ) -> bool {
        let mut anew = false;
        let told = [plan, arrivals, places[1].map_or(0, |place| place.bytes)];
        let bytes: Vec<u8> = told.iter().flat_map(|word| word.to_le_bytes()).collect();
        let which = Which {
            hash: plan,
            shape: &Shape::new(1, 1, 1),
            ctas: [1, 0],
        };
        let made = all.of((which, Address::of(arrivals)), &places, || {
            anew = true;
            let mut parameters = Parameters::default();
            parameters.arguments.bytes(&bytes);
            Ok((parameters, Some(Entry::new("k", 0, plan, 1))))
        });
        let made = made.expect("made");
        assert_eq!(made.entry, Some(Entry::new("k", 0, plan, 1)));
        let mut wanted = Arguments::new();
        wanted.bytes(&bytes);
        let arguments = &made.parameters.arguments;
        assert_eq!(format!("{arguments:?}"), format!("{wanted:?}"));
        anew
    }

    #[test]
    fn a_launch_is_prepared_again_if_anything_of_it_differs() {
        let mut all = AllPrepared::default();
        let launches = [
            (1, 64, at(4096, Some(0), 16)),
            (2, 64, at(4096, Some(0), 16)),
            (1, 128, at(4096, Some(0), 16)),
            (1, 64, at(4112, Some(0), 16)),
            (1, 64, at(4096, None, 16)),
            (1, 64, at(4096, Some(0), 32)),
        ];
        for known in [false, true, true] {
            for (plan, arrivals, places) in launches {
                assert_eq!(anew(&mut all, plan, arrivals, places), !known);
            }
        }
    }

    #[test]
    fn the_one_that_was_not_used_for_the_longest_time_makes_room() {
        let mut all = AllPrepared::default();
        for plan in 0..KEPT as u64 {
            assert!(anew(&mut all, plan, 0, [None; 2]));
        }
        assert!(!anew(&mut all, 0, 0, [None; 2]), "the first is used again");
        assert!(anew(&mut all, KEPT as u64, 0, [None; 2]));
        assert!(!anew(&mut all, 0, 0, [None; 2]), "the first is still there");
        assert!(anew(&mut all, 1, 0, [None; 2]), "the second made room");
        assert!(
            !anew(&mut all, 3, 0, [None; 2]),
            "the fourth is still there"
        );
        assert_eq!(all.all.len(), KEPT);
    }

    /// The hash has 64 bits, and nothing keeps two plans from having the same.
    #[test]
    fn plans_of_one_hash_are_told_apart() {
        let mut all = AllPrepared::default();
        let shapes = [Shape::new(1, 8, 8), Shape::new(2, 8, 8)];
        let launches = [
            (&shapes[0], [4, 0]),
            (&shapes[1], [4, 0]),
            (&shapes[0], [5, 0]),
        ];
        for round in 0..2 {
            for (number, (shape, ctas)) in (0u64..).zip(launches) {
                let which = Which {
                    hash: 7,
                    shape,
                    ctas,
                };
                let mut anew = false;
                let made = all.of((which, Address::of(0)), &[None; 2], || {
                    anew = true;
                    Ok((Parameters::default(), Some(Entry::new("k", 0, number, 1))))
                });
                let entry = made.expect("made").entry;
                assert_eq!(entry, Some(Entry::new("k", 0, number, 1)));
                assert_eq!(anew, round == 0);
            }
        }
    }

    #[test]
    fn what_could_not_be_made_is_not_kept() {
        let mut all = AllPrepared::default();
        let which = Which {
            hash: 1,
            shape: &Shape::new(1, 1, 1),
            ctas: [1, 0],
        };
        let failed = all.of((which, Address::of(0)), &[None; 2], || {
            Err(Error::Usage {
                what: "a tensor that is too small".into(),
                legal: "a larger one".into(),
            })
        });
        assert!(failed.is_err());
        assert!(anew(&mut all, 1, 0, [None; 2]));
    }
}
