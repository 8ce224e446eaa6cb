//! Memory that calls borrow and give back, so that a step after the first allocates nothing.

use counterflow::op::Element;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Communicator, Error, Tensor};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tensors that nobody has now.
///
/// Who borrows one uses it in the order of the rank's own stream, and so does the next one: nobody waits. A tensor is lent for its whole
/// size alone, so that a step which borrows as the last one did finds what it needs.
pub(crate) struct Pool<T>(Mutex<Vec<Tensor<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool(Mutex::default())
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool of {}", self.free().len())
    }
}

impl<T> Pool<T> {
    fn free(&self) -> MutexGuard<'_, Vec<Tensor<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Element> Pool<T> {
    /// A tensor of that shape, in memory for `most` elements. It has anything in it; of a debug build, NaN.
    pub fn lend(
        self: &Arc<Self>,
        rank: &Communicator,
        shape: [usize; 2],
        most: usize,
    ) -> Result<Lent<T>, Error> {
        let mut free = self.free();
        let found = free.iter().position(|tensor| tensor.len() == most);
        let whole = found.map(|at| free.swap_remove(at));
        drop(free);
        let whole = match whole {
            Some(whole) => whole,
            None => rank.zeros([1, most])?,
        };
        if cfg!(debug_assertions) {
            // NaN of every type: who takes what is there for zeros, or for what was there before, has NaN as a result.
            whole.fill(0xff)?;
        }
        Ok(Lent {
            tensor: whole.shaped(shape)?,
            back: Some((whole, self.clone())),
        })
    }

    /// Lends memory that only grows, of which there is one piece: for what is borrowed once at a time.
    pub fn lend_growing(
        self: &Arc<Self>,
        rank: &Communicator,
        shape: [usize; 2],
    ) -> Result<Lent<T>, Error> {
        let least = shape[0] * shape[1];
        let mut free = self.free();
        let held = free.iter().map(Tensor::len).max().unwrap_or(0);
        free.retain(|tensor| tensor.len() >= least);
        drop(free);
        self.lend(rank, shape, held.max(least.next_power_of_two()))
    }
}

/// By type of elements.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scratch {
    /// Codes of either type of FP8.
    pub codes: Arc<Pool<e4m3>>,
    pub bf16s: Arc<Pool<bf16>>,
    pub f32s: Arc<Pool<f32>>,
}

/// A tensor that is given back when this is dropped, if it was lent.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    tensor: Tensor<T>,
    back: Option<(Tensor<T>, Arc<Pool<T>>)>,
}

impl<T> From<Tensor<T>> for Lent<T> {
    fn from(tensor: Tensor<T>) -> Self {
        Lent { tensor, back: None }
    }
}

impl<T> Deref for Lent<T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut Tensor<T> {
        &mut self.tensor
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some((whole, pool)) = self.back.take() {
            pool.free().push(whole);
        }
    }
}
