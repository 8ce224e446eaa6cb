//! Amaxes of all ranks.

use crate::side::CodeKernels;
use crate::step::{Built, Step, shape};
use counterflow::{Communicator, Dtype, Error, Layout, Tensor, UserBuffer, schedules};
use std::sync::{Arc, Mutex, PoisonError};

/// Amaxes that ranks exchange at once.
const AT_ONCE: usize = 128;

/// The largest amaxes over the ranks of a group.
#[derive(Debug)]
pub(crate) struct Amaxes {
    rank: Arc<Communicator>,
    kernels: CodeKernels,
    /// A row of each rank. Held while an exchange is enqueued.
    all: Mutex<UserBuffer<f32>>,
    gather: Option<Built>,
    /// Where several come from the kernel.
    largest: Mutex<Tensor<f32>>,
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
            largest: Mutex::new(rank.zeros([1, AT_ONCE])?),
            kernels: kernels.clone(),
            rank: rank.clone(),
        })
    }

    /// Replaces each, a number of this rank, by the largest one of all ranks. Collective: every rank gives as many.
    pub fn over_ranks(&self, amaxes: &[Tensor<f32>]) -> Result<(), Error> {
        let Some(gather) = &self.gather else {
            return Ok(());
        };
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let me = self.rank.rank() as usize;
        let own = all.rows(me..me + 1)?.shaped([AT_ONCE, 1])?;
        for some in amaxes.chunks(AT_ONCE) {
            for (at, amax) in some.iter().enumerate() {
                own.rows(at..at + 1)?.copy_from(amax)?;
            }
            gather.op.on(&*self.rank).tensor("x", &*all).launch()?;
            if let [one] = some {
                self.kernels.largest_of_ranks(1, &all, &mut one.clone())?;
                continue;
            }
            let mut largest = self.largest.lock().unwrap_or_else(PoisonError::into_inner);
            self.kernels
                .largest_of_ranks(some.len(), &all, &mut largest)?;
            let each = largest.shaped([AT_ONCE, 1])?;
            for (at, amax) in some.iter().enumerate() {
                amax.shaped([1, 1])?.copy_from(&each.rows(at..at + 1)?)?;
            }
        }
        Ok(())
    }
}
