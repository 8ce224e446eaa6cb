//! Amaxes of all ranks.

use crate::side::CodeKernels;
use crate::step::{Built, Step, shape};
use counterflow::{Communicator, Dtype, Error, Layout, Tensor, UserBuffer, schedules};
use std::sync::{Arc, Mutex, PoisonError};

/// Amaxes that ranks exchange at once: those of three tensors of each of some hundred layers.
pub(super) const AT_ONCE: usize = 1024;

/// Exchange of amaxes between the ranks of a group.
#[derive(Debug)]
pub(crate) struct Amaxes {
    rank: Arc<Communicator>,
    kernels: CodeKernels,
    /// A row of each rank. Held while an exchange and what reads it are enqueued.
    all: Mutex<UserBuffer<f32>>,
    gather: Option<Built>,
}

impl Amaxes {
    /// Bytes of the heap that it takes on each rank, beside its op's counters.
    pub fn heap_bytes(world: u32) -> u64 {
        u64::from(world) * (AT_ONCE * size_of::<f32>()) as u64
    }

    /// Collective. The exchange leaves so many SMs to others.
    pub fn new(
        rank: &Arc<Communicator>,
        kernels: &CodeKernels,
        margin: u32,
    ) -> Result<Amaxes, Error> {
        let world = rank.world() as usize;
        let gather = || {
            let step = Step::new(
                schedules::all_gather(),
                Layout::Nt,
                shape(world, AT_ONCE, AT_ONCE),
            );
            step.margin(margin).of(Dtype::F32).build(rank)
        };
        Ok(Amaxes {
            all: Mutex::new(rank.allocate("amaxes", [world, AT_ONCE])?),
            gather: (world > 1).then(gather).transpose()?,
            kernels: kernels.clone(),
            rank: rank.clone(),
        })
    }

    /// Gathers the numbers of all ranks, [`AT_ONCE`] at most, and lets `reads` enqueue what reads them: a row of each rank, which begins
    /// with its numbers. A rank alone has no rows. Collective: every rank gives as many.
    pub fn of_ranks<T>(
        &self,
        own: &Tensor<f32>,
        reads: impl FnOnce(Option<&UserBuffer<f32>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(gather) = &self.gather else {
            return reads(None);
        };
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.rank.rank() as usize;
        all.rows(me..me + 1)?.copy_from(own)?;
        gather.op.on(&*self.rank).tensor("x", &*all).launch()?;
        reads(Some(&all))
    }

    /// Replaces a number of this rank by the largest one of all ranks. Collective.
    pub fn largest(&self, amax: &mut Tensor<f32>) -> Result<(), Error> {
        self.of_ranks(&amax.clone(), |all| match all {
            Some(all) => self.kernels.largest_of_ranks(1, all, amax),
            None => Ok(()),
        })
    }
}
