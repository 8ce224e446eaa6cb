//! States of random numbers, by name.

use crate::side::twin::Mask;
use counterflow::Error;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of a generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RngState {
    /// The key of its numbers.
    pub seed: u64,
    /// Number of masks that it has drawn.
    pub offset: u64,
}

/// States of random numbers by name, as Megatron's tracker has them. Numbers are Philox's, and each is a function of seed, offset and
/// element: so a mask needs no memory, and elements that are whole on each rank have the same one whatever the number of ranks.
///
/// ```
/// use counterflow_layers::RngTracker;
///
/// let tracker = RngTracker::new(1234, 0); // this rank of the tensor-parallel group
/// tracker.add("data", 7)?;
/// let held = tracker.states();
/// let mask = tracker.draw(RngTracker::DEFAULT, 0.1)?; // the same on every rank
/// tracker.restore(held); // before a forward pass is made again
/// assert_eq!(tracker.draw(RngTracker::DEFAULT, 0.1)?, mask);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct RngTracker(Mutex<BTreeMap<String, RngState>>);

impl RngTracker {
    /// The state for what is whole on each rank: the same everywhere.
    pub const DEFAULT: &'static str = "default";
    /// The state for what ranks divide: each rank has its own.
    pub const MODEL_PARALLEL: &'static str = "model-parallel-rng";

    /// With the two states of a rank of the tensor-parallel group: that of [`RngTracker::MODEL_PARALLEL`] starts from the seed plus 2718
    /// plus the rank, as Megatron's does.
    pub fn new(seed: u64, tp_rank: u32) -> RngTracker {
        let own = seed.wrapping_add(2718).wrapping_add(tp_rank.into());
        let states = [(Self::DEFAULT, seed), (Self::MODEL_PARALLEL, own)];
        let states = states.map(|(name, seed)| (name.to_owned(), RngState { seed, offset: 0 }));
        RngTracker(Mutex::new(states.into()))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, RngState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a state.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that there is.
    pub fn add(&self, name: &str, seed: u64) -> Result<(), Error> {
        let state = RngState { seed, offset: 0 };
        let mut held = self.held();
        if held.contains_key(name) {
            return Err(Error::Usage {
                what: format!("another random state `{name}`"),
                legal: "give a new name".into(),
            });
        }
        held.insert(name.into(), state);
        Ok(())
    }

    /// The next mask of a state, with the part of elements that is dropped.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that there is not, and for a part that is not from 0 to below 1.
    pub fn draw(&self, name: &str, dropped: f32) -> Result<Mask, Error> {
        is_part(dropped)?;
        let mut held = self.held();
        let Some(state) = held.get_mut(name) else {
            return Err(Error::Usage {
                what: format!("no random state `{name}`"),
                legal: "add it first".into(),
            });
        };
        let mask = Mask::new(state.seed, state.offset, dropped);
        state.offset += 1;
        Ok(mask)
    }

    /// All states: for a checkpoint, or for a forward pass that is made again.
    pub fn states(&self) -> BTreeMap<String, RngState> {
        self.held().clone()
    }

    /// Goes on from states that were held.
    pub fn restore(&self, states: BTreeMap<String, RngState>) {
        *self.held() = states;
    }
}

/// Refuses a part of elements that cannot be dropped.
pub(crate) fn is_part(dropped: f32) -> Result<(), Error> {
    match (0.0..1.0).contains(&dropped) {
        true => Ok(()),
        false => Err(Error::Usage {
            what: format!("dropout of {dropped}"),
            legal: "give a part from 0 to below 1".into(),
        }),
    }
}
