//! What the FP8 layers of a group share.

use super::amaxes::{Amaxes, OwnRow};
use crate::side::CodeKernels;
use counterflow::quantise::{self, Delayed, DeviceHistory, Histories, Quantiser};
use counterflow::{Communicator, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// More rows and columns than a matrix has: quantisers of these recipes need no memory that grows with them.
const MOST: [usize; 2] = [1 << 22; 2];

/// Amaxes of a tensor. Its row of [`Rows`] is nobody else's, ever: a graph may write there as long as it lives.
#[derive(Debug)]
pub(crate) struct History {
    pub state: Mutex<DeviceHistory>,
    _lives: Arc<()>,
}

/// Histories of one recipe that end their steps together.
#[derive(Debug)]
struct Rows {
    all: Histories,
    /// Memory of their amaxes.
    amaxes: OwnRow,
    /// As many more handles as there are tensors with a history here.
    lives: Arc<()>,
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
    histories: Mutex<Vec<Rows>>,
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

    /// A history by that recipe, whose steps end with those of all others.
    pub fn history(&self, recipe: Delayed) -> Result<History, Error> {
        let mut histories = locked(&self.histories);
        let is_alike = |rows: &&mut Rows| {
            let to = recipe.to;
            Delayed {
                to,
                ..rows.all.recipe()
            } == recipe
        };
        for rows in histories.iter_mut().filter(is_alike) {
            if let Some(state) = rows.all.add(recipe.to)? {
                return Ok(rows.history(state));
            }
        }
        let amaxes = OwnRow::new(&self.rank)?;
        let mut rows = Rows {
            all: Histories::with_amaxes(&self.rank, recipe, amaxes.own().clone())?,
            amaxes,
            lives: Arc::default(),
        };
        let state = rows.all.add(recipe.to)?.ok_or_else(|| Error::Usage {
            what: "histories without room for one".into(),
            legal: "report it".into(),
        })?;
        let history = rows.history(state);
        histories.push(rows);
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
        histories.retain(|rows| Arc::strong_count(&rows.lives) > 1);
        for rows in histories.iter_mut() {
            let Rows { all, amaxes, .. } = rows;
            self.amaxes.of_ranks(amaxes, |of_ranks| {
                all.next_step(&*self.rank, of_ranks).map(drop)
            })?;
        }
        Ok(())
    }
}

impl Rows {
    fn history(&self, state: DeviceHistory) -> History {
        History {
            state: Mutex::new(state),
            _lives: self.lives.clone(),
        }
    }
}
