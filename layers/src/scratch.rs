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
///
/// A graph has its addresses for good: a replay writes there whenever it comes, so also between a forward pass and its backward pass. So
/// each recording of the rank's own order has tensors of its own, which no other call ever gets.
pub(crate) struct Pool<T>(Mutex<Free<T>>);

struct Free<T> {
    /// For calls that run.
    shared: Vec<Tensor<T>>,
    /// For that recording alone. Once it has ended, its graph keeps what it uses of them.
    recorded: (Option<u64>, Vec<Tensor<T>>),
}

impl<T> Free<T> {
    /// Those for a recording, or for calls that run.
    fn of(&mut self, recording: Option<u64>) -> &mut Vec<Tensor<T>> {
        if self.recorded.0 != recording {
            self.recorded = (recording, Vec::new());
        }
        match recording {
            None => &mut self.shared,
            Some(_) => &mut self.recorded.1,
        }
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool(Mutex::new(Free {
            shared: Vec::new(),
            recorded: (None, Vec::new()),
        }))
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool of {}", self.free().shared.len())
    }
}

impl<T> Pool<T> {
    fn free(&self) -> MutexGuard<'_, Free<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Element> Pool<T> {
    /// A tensor of that shape, in memory for `most` elements. It has anything in it; of a debug build, NaN.
    pub fn lend(
        self: &Arc<Self>,
        rank: &Arc<Communicator>,
        shape: [usize; 2],
        most: usize,
    ) -> Result<Lent<T>, Error> {
        let recording = rank.capture_id();
        let mut free = self.free();
        let free_now = free.of(recording);
        let found = free_now.iter().position(|tensor| tensor.len() == most);
        let whole = found.map(|at| free_now.swap_remove(at));
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
            loan: Some(Loan {
                whole,
                of: self.clone(),
                rank: rank.clone(),
                recording,
            }),
        })
    }

    /// Lends memory that only grows, of which there is one piece: for what is borrowed once at a time.
    pub fn lend_growing(
        self: &Arc<Self>,
        rank: &Arc<Communicator>,
        shape: [usize; 2],
    ) -> Result<Lent<T>, Error> {
        let least = shape[0] * shape[1];
        let mut free = self.free();
        let free_now = free.of(rank.capture_id());
        let held = free_now.iter().map(Tensor::len).max().unwrap_or(0);
        free_now.retain(|tensor| tensor.len() >= least);
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
    loan: Option<Loan<T>>,
}

/// What is given back, to whom.
#[derive(Debug)]
struct Loan<T> {
    whole: Tensor<T>,
    of: Arc<Pool<T>>,
    rank: Arc<Communicator>,
    /// The recording that borrowed it.
    recording: Option<u64>,
}

impl<T> From<Tensor<T>> for Lent<T> {
    fn from(tensor: Tensor<T>) -> Self {
        Lent { tensor, loan: None }
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
        let Some(loan) = self.loan.take() else {
            return;
        };
        // What outlives its recording, or comes from a call that ran before, is a graph's by now: nobody gets it again.
        if loan.recording == loan.rank.capture_id() {
            loan.of.free().of(loan.recording).push(loan.whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENTS: usize = 8;

    fn rank() -> Arc<Communicator> {
        Arc::new(Communicator::emulated(1).expect("a rank").remove(0))
    }

    type Floats = Arc<Pool<f32>>;

    fn lend(pool: &Floats, rank: &Arc<Communicator>) -> Result<Lent<f32>, Error> {
        pool.lend(rank, [1, ELEMENTS], ELEMENTS)
    }

    /// A graph that writes such bytes into memory that it borrows and gives back.
    fn writes(
        pool: &Floats,
        rank: &Arc<Communicator>,
        byte: u8,
    ) -> Result<counterflow::Graph, Error> {
        rank.capture_own(|| lend(pool, rank)?.fill(byte))
    }

    #[test]
    fn a_replay_leaves_what_calls_hold_as_it_is() -> Result<(), Error> {
        let (rank, pool) = (rank(), Floats::default());
        // Calls before gave something back, which a recording must not take either.
        drop(lend(&pool, &rank)?);
        let graphs = [writes(&pool, &rank, 1)?, writes(&pool, &rank, 2)?];
        let saved = lend(&pool, &rank)?;
        saved.write(&[7.0; ELEMENTS])?;
        for graph in &graphs {
            graph.launch(&*rank)?.wait()?;
        }
        assert_eq!(saved.read()?, [7.0; ELEMENTS]);
        Ok(())
    }

    #[test]
    fn what_a_recording_saved_is_its_graphs_alone() -> Result<(), Error> {
        let (rank, pool) = (rank(), Floats::default());
        let value = f32::from_ne_bytes([3; 4]);
        let mut saved = None;
        let forward = rank.capture_own(|| {
            let lent = lend(&pool, &rank)?;
            lent.fill(3)?;
            saved = Some(lent);
            Ok(())
        })?;
        let saved = saved.expect("it ran");
        let others = writes(&pool, &rank, 4)?;
        forward.launch(&*rank)?;
        others.launch(&*rank)?;
        assert_eq!(saved.read()?, [value; ELEMENTS]);
        // Dropped after the recording, it goes to no call.
        let address = saved.address();
        drop(saved);
        let next = lend(&pool, &rank)?;
        assert_ne!(next.address(), address);
        forward.launch(&*rank)?.wait()
    }

    /// The graph of a backward pass alone reads the same at each replay.
    #[test]
    fn what_a_recording_takes_from_a_call_before_is_given_to_nobody() -> Result<(), Error> {
        let (rank, pool) = (rank(), Floats::default());
        let saved = lend(&pool, &rank)?;
        saved.write(&[7.0; ELEMENTS])?;
        let found = rank.zeros::<f32>([1, ELEMENTS])?;
        let backward = rank.capture_own(|| {
            found.copy_from(&saved)?;
            drop(saved);
            lend(&pool, &rank)?.fill(1)
        })?;
        lend(&pool, &rank)?.fill(2)?;
        for _ in 0..2 {
            found.fill(0)?;
            backward.launch(&*rank)?;
            assert_eq!(found.read()?, [7.0; ELEMENTS]);
        }
        Ok(())
    }

    #[test]
    fn calls_and_recordings_borrow_again_what_they_gave_back() -> Result<(), Error> {
        let (rank, pool) = (rank(), Floats::default());
        drop(lend(&pool, &rank)?);
        let _graph = rank.capture_own(|| {
            let before = rank.tensors_allocated();
            for _ in 0..3 {
                drop(lend(&pool, &rank)?);
            }
            assert_eq!(rank.tensors_allocated(), before + 1);
            Ok(())
        })?;
        let before = rank.tensors_allocated();
        drop(lend(&pool, &rank)?);
        assert_eq!(rank.tensors_allocated(), before);
        Ok(())
    }
}
