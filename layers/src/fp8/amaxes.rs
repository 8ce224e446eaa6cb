//! Amaxes of all ranks.

use crate::schedules::gather_rows;
use crate::side::CodeKernels;
use crate::step::{Built, Step, shape};
use counterflow::{Communicator, Error, Layout, Tensor, UserBuffer};
use std::sync::{Arc, Mutex, PoisonError};

/// Amaxes that ranks exchange at once: those of three tensors of each of some hundred layers.
const AT_ONCE: usize = 1024;

/// Exchange of amaxes between the ranks of a group.
#[derive(Debug)]
pub(crate) struct Amaxes {
    rank: Arc<Communicator>,
    kernels: CodeKernels,
    /// A row of each rank. Held while an exchange and what reads it are enqueued.
    all: Mutex<UserBuffer<f32>>,
    gather: Option<Built>,
    /// Rows for an exchange of one number.
    one: OwnRow,
}

/// A row of this rank, in memory of the rank's own that has one for each rank.
#[derive(Clone, Debug)]
pub(crate) struct OwnRow {
    rows: Tensor<f32>,
    own: Tensor<f32>,
}

impl OwnRow {
    /// Of zeros.
    pub fn new(rank: &Communicator) -> Result<OwnRow, Error> {
        let (me, world) = (rank.rank() as usize, rank.world() as usize);
        let rows = rank.zeros([world, AT_ONCE])?;
        let own = rows.rows(me..me + 1)?;
        Ok(OwnRow { rows, own })
    }

    /// This rank's numbers.
    pub fn own(&self) -> &Tensor<f32> {
        &self.own
    }
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
            let shape = shape(world, AT_ONCE, AT_ONCE);
            let step = Step::new(gather_rows(), Layout::Nt, shape);
            step.margin(margin).build(rank)
        };
        Ok(Amaxes {
            all: Mutex::new(rank.allocate("amaxes", [world, AT_ONCE])?),
            gather: (world > 1).then(gather).transpose()?,
            one: OwnRow::new(rank)?,
            kernels: kernels.clone(),
            rank: rank.clone(),
        })
    }

    /// Gathers a row of each rank, and lets `reads` enqueue what reads them. A rank alone has none. Collective.
    pub fn of_ranks<T>(
        &self,
        row: &OwnRow,
        reads: impl FnOnce(Option<&UserBuffer<f32>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(gather) = &self.gather else {
            return reads(None);
        };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = gather.op.on(&*self.rank).tensor("x", &row.rows);
        launch.tensor("y", &mut *all).launch()?;
        reads(Some(&all))
    }

    /// Replaces a number of this rank by the largest one of all ranks. Collective.
    pub fn largest(&self, amax: &mut Tensor<f32>) -> Result<(), Error> {
        if self.gather.is_none() {
            return Ok(());
        }
        let first = self.one.own.shaped([1, 1])?;
        first.copy_from(&amax.shaped([1, 1])?)?;
        self.of_ranks(&self.one, |all| match all {
            Some(all) => self.kernels.largest_of_ranks(1, all, amax),
            None => Ok(()),
        })
    }
}
