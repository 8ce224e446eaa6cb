//! What a plan and the places of its tensors decide of a launch: made once, and used again.

use super::tensors::Placement;
use crate::cuda::Arguments;
use crate::driver::Address;
use crate::error::Error;
use crate::group::Entry;

/// How many are kept. A model launches one kernel for each of its layers, with other weights each time.
const KEPT: usize = 128;

/// A launch's parameters, and what the ledger says of it.
#[derive(Debug)]
pub(super) struct Prepared {
    plan: u64,
    arrivals: Address,
    places: Vec<Option<Placement>>,
    /// As the kernel takes them. None of them on an emulated GPU.
    pub arguments: Arguments,
    /// None if no peer waits for the launch.
    pub entry: Option<Entry>,
}

/// Those of the latest launches.
#[derive(Debug, Default)]
pub(super) struct AllPrepared {
    all: Vec<Prepared>,
    /// The one that was used last.
    latest: usize,
    /// The one that is replaced next, once there are as many as are kept.
    oldest: usize,
}

impl AllPrepared {
    /// That of a launch with this plan, this table of arrivals, and tensors in these places.
    ///
    /// # Errors
    /// Those of `make`, which makes what is not known yet.
    pub fn of(
        &mut self,
        (plan, arrivals): (u64, Address),
        places: &[Option<Placement>],
        make: impl FnOnce() -> Result<(Arguments, Option<Entry>), Error>,
    ) -> Result<&Prepared, Error> {
        let same = |known: &Prepared| {
            known.plan == plan && known.arrivals == arrivals && known.places == places
        };
        let (from, count) = (self.latest, self.all.len());
        // The same again, or the next of a row of layers that comes again: both are found at once.
        let mut likely = (from..count).chain(0..from);
        let at = match likely.find(|at| same(&self.all[*at])) {
            Some(at) => at,
            None => {
                let (arguments, entry) = make()?;
                let made = Prepared {
                    plan,
                    arrivals,
                    places: places.to_vec(),
                    arguments,
                    entry,
                };
                let at = self.oldest;
                self.oldest = (at + 1) % KEPT;
                match self.all.get_mut(at) {
                    Some(old) => *old = made,
                    None => self.all.push(made),
                }
                at
            }
        };
        self.latest = at;
        Ok(&self.all[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(own: u64, shared: Option<u64>, bytes: u64) -> [Option<Placement>; 2] {
        let place = Placement {
            own: Address::of(own),
            shared: shared.map(Address::of),
            bytes,
        };
        [None, Some(place)]
    }

    /// Whether a launch was prepared anew. Its one parameter tells it from others.
    fn anew(
        all: &mut AllPrepared,
        plan: u64,
        arrivals: u64,
        places: [Option<Placement>; 2],
    ) -> bool {
        let mut anew = false;
        let told = [plan, arrivals, places[1].map_or(0, |place| place.bytes)];
        let bytes: Vec<u8> = told.iter().flat_map(|word| word.to_le_bytes()).collect();
        let made = all.of((plan, Address::of(arrivals)), &places, || {
            anew = true;
            let mut arguments = Arguments::new();
            arguments.bytes(&bytes);
            Ok((arguments, Some(Entry::new("k", 0, plan, 1))))
        });
        let made = made.expect("made");
        assert_eq!(made.entry, Some(Entry::new("k", 0, plan, 1)));
        let mut wanted = Arguments::new();
        wanted.bytes(&bytes);
        assert_eq!(format!("{:?}", made.arguments), format!("{wanted:?}"));
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
    fn the_oldest_is_replaced_once_there_are_many() {
        let mut all = AllPrepared::default();
        for plan in 0..=KEPT as u64 {
            assert!(anew(&mut all, plan, 0, [None; 2]));
        }
        assert!(
            !anew(&mut all, 1, 0, [None; 2]),
            "the second is still there"
        );
        assert!(anew(&mut all, 0, 0, [None; 2]), "the first made room");
        assert!(anew(&mut all, 1, 0, [None; 2]), "and then the second did");
        assert_eq!(all.all.len(), KEPT);
    }

    #[test]
    fn what_could_not_be_made_is_not_kept() {
        let mut all = AllPrepared::default();
        let failed = all.of((1, Address::of(0)), &[None; 2], || {
            Err(Error::Usage {
                what: "a tensor that is too small".into(),
                legal: "a larger one".into(),
            })
        });
        assert!(failed.is_err());
        assert!(anew(&mut all, 1, 0, [None; 2]));
    }
}
