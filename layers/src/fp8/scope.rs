//! What the FP8 layers of a group share.

use super::amaxes::Amaxes;
use crate::side::CodeKernels;
use counterflow::quantise::{self, Delayed, DeviceHistory, Quantiser};
use counterflow::{Communicator, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// More rows and columns than a matrix has: quantisers of these recipes need no memory that grows with them.
const MOST: [usize; 2] = [1 << 22; 2];

/// Amaxes of a tensor, with what ends their steps.
#[derive(Debug)]
pub(crate) struct History {
    pub state: Mutex<DeviceHistory>,
    quantiser: Arc<Quantiser<'static>>,
}

/// What the FP8 layers of a group share.
#[derive(Debug)]
pub(crate) struct Shared {
    rank: Arc<Communicator>,
    pub kernels: CodeKernels,
    pub amaxes: Amaxes,
    /// By recipe.
    quantisers: Mutex<Vec<Arc<Quantiser<'static>>>>,
    /// In the order in which layers were made, which is that of every rank.
    histories: Mutex<Vec<Weak<History>>>,
    /// Of a scope that is open: whether it is the first microbatch.
    open: Mutex<Option<Option<bool>>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Collective. What ranks exchange leaves so many SMs to others.
    pub fn new(rank: &Arc<Communicator>, margin: u32) -> Result<Shared, Error> {
        let kernels = CodeKernels::load(rank)?;
        Ok(Shared {
            amaxes: Amaxes::new(rank, &kernels, margin)?,
            rank: rank.clone(),
            kernels,
            quantisers: Mutex::default(),
            histories: Mutex::default(),
            open: Mutex::default(),
        })
    }

    pub fn quantiser(&self, recipe: quantise::Recipe) -> Result<Arc<Quantiser<'static>>, Error> {
        let mut all = locked(&self.quantisers);
        if let Some(found) = all.iter().find(|of| *of.recipe() == recipe) {
            return Ok(found.clone());
        }
        let built = Arc::new(Quantiser::shared(&self.rank, recipe, MOST)?);
        all.push(built.clone());
        Ok(built)
    }

    pub fn history(
        &self,
        recipe: quantise::Recipe,
        history: Delayed,
    ) -> Result<Arc<History>, Error> {
        let quantiser = self.quantiser(recipe)?;
        let history = Arc::new(History {
            state: Mutex::new(quantiser.history(history)?),
            quantiser,
        });
        locked(&self.histories).push(Arc::downgrade(&history));
        Ok(history)
    }

    /// True if the step that is open is the first microbatch, if that was said.
    ///
    /// # Errors
    /// [`Error::Usage`] if none is open.
    pub fn is_first_microbatch(&self) -> Result<Option<bool>, Error> {
        locked(&self.open).ok_or_else(|| Error::Usage {
            what: "a layer of FP8 outside of a step".into(),
            legal: "open one, `userbuffers.autocast(None)?`, and end it behind the backward pass"
                .into(),
        })
    }

    /// Opens a step.
    ///
    /// # Errors
    /// [`Error::Usage`] if one is open.
    pub fn open(&self, is_first_microbatch: Option<bool>) -> Result<(), Error> {
        let mut open = locked(&self.open);
        if open.is_some() {
            return Err(Error::Usage {
                what: "a step of FP8 within another".into(),
                legal: "end the one that is open first".into(),
            });
        }
        *open = Some(is_first_microbatch);
        Ok(())
    }

    /// Closes the step that is open. Scales stay as they are.
    pub fn close(&self) {
        *locked(&self.open) = None;
    }

    /// Takes the amaxes of a step over the ranks, and makes the next scales. Collective.
    pub fn next_step(&self) -> Result<(), Error> {
        let mut histories = locked(&self.histories);
        histories.retain(|history| history.strong_count() > 0);
        let histories: Vec<_> = histories.iter().filter_map(Weak::upgrade).collect();
        let amax = |history: &Arc<History>| locked(&history.state).amax();
        let amaxes: Vec<_> = histories.iter().map(amax).collect();
        self.amaxes.over_ranks(&amaxes)?;
        for history in &histories {
            let mut state = locked(&history.state);
            history.quantiser.next_step(&*self.rank, &mut state)?;
        }
        Ok(())
    }
}
