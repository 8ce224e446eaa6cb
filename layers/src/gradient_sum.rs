//! Sums of gradients over the ranks of a group.

use crate::schedules::sum_gradients;
use crate::step::{Built, Step, shape, together};
use counterflow::{Communicator, Error, Layout, Tensor, UserBuffer};
use std::sync::{Arc, Mutex, PoisonError};

/// Sums gradients over the ranks of a group, in place, in f32 and in the order of ranks: those of norms over the tensor-parallel group,
/// and all of them over the data-parallel group.
///
/// ```
/// use counterflow::Communicator;
/// use counterflow_layers::GradientSum;
/// use std::sync::Arc;
///
/// let rank = Arc::new(Communicator::emulated(1)?.remove(0));
/// rank.reserve(GradientSum::heap_bytes(64, 1) + (2 << 20))?;
/// let sum = GradientSum::new(&rank, 64)?; // elements at most
/// let mut gradient = rank.zeros::<f32>([1, 64])?;
/// sum.over_ranks(&mut gradient)?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct GradientSum {
    rank: Arc<Communicator>,
    most: usize,
    /// Buffer that sums come to. Held while one is enqueued.
    sums: Mutex<UserBuffer<f32>>,
    /// By columns.
    ops: Vec<(usize, Built)>,
}

impl GradientSum {
    /// Bytes of the heap that it takes on each rank, beside its ops' counters.
    pub fn heap_bytes(elements: usize, world: u32) -> u64 {
        let world = u64::from(world.max(1));
        // The sums; and the terms of this rank's part, for each number of columns that there can be.
        4 * (elements as u64).div_ceil(world) * world * (1 + WIDTHS.len() as u64)
    }

    /// For gradients of so many elements at most. Collective: every rank makes the same.
    ///
    /// # Errors
    /// As [`Communicator::allocate`] and [`OpBuilder::build`](counterflow::OpBuilder::build).
    pub fn new(rank: &Arc<Communicator>, elements: usize) -> Result<GradientSum, Error> {
        GradientSum::beside(rank, elements, 0)
    }

    /// As [`GradientSum::new`]; sums leave so many SMs to others, as [`Initialize::ext_margin_sm`](crate::Initialize::ext_margin_sm) does.
    ///
    /// # Errors
    /// As [`GradientSum::new`]; [`Error::Usage`] for all SMs.
    pub fn beside(
        rank: &Arc<Communicator>,
        elements: usize,
        sm_margin: u32,
    ) -> Result<GradientSum, Error> {
        GradientSum::of_widths(rank, elements, (&WIDTHS, sm_margin))
    }

    /// For gradients of so many elements, and no others.
    pub(crate) fn of_one(
        rank: &Arc<Communicator>,
        elements: usize,
        sm_margin: u32,
    ) -> Result<GradientSum, Error> {
        GradientSum::of_widths(rank, elements, (width(elements).as_slice(), sm_margin))
    }

    fn of_widths(
        rank: &Arc<Communicator>,
        elements: usize,
        (widths, sm_margin): (&[usize], u32),
    ) -> Result<GradientSum, Error> {
        let world = rank.world() as usize;
        let most = elements
            .next_multiple_of(WIDTHS[0] * world)
            .max(WIDTHS[0] * world);
        let build = |width: &usize| {
            let shape = shape(most / width, *width, *width);
            let built = Step::new(sum_gradients(), Layout::Nt, shape);
            let built = built.margin(sm_margin).build(rank)?;
            Ok((*width, built))
        };
        let widths = if world > 1 { widths } else { &[] };
        together(rank, || {
            Ok(GradientSum {
                sums: Mutex::new(rank.allocate("gradients", [most])?),
                ops: widths.iter().map(build).collect::<Result<_, Error>>()?,
                rank: rank.clone(),
                most,
            })
        })
    }

    /// Enqueues the sum, which takes the gradient's place. Collective: every rank gives the same gradients in the same order.
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it was made for, and for a number that is no multiple of 8; what building and launching
    /// refuse.
    pub fn over_ranks(&self, gradient: &mut Tensor<f32>) -> Result<(), Error> {
        let elements = gradient.len();
        if self.rank.world() == 1 || elements == 0 {
            return Ok(());
        }
        let width = width(elements).filter(|_| elements <= self.most);
        let built = width.and_then(|width| self.ops.iter().find(|(of, _)| *of == width));
        let Some((width, built)) = built else {
            return Err(Error::Usage {
                what: format!("a gradient of {elements} elements"),
                legal: format!("give a multiple of 8, and {} at most", self.most),
            });
        };
        let rows = elements / width;
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        // Ranks own whole shards of rows.
        let whole = rows.next_multiple_of(self.rank.world() as usize);
        let mut to = sums.shaped([whole, *width])?;
        let from = gradient.shaped([rows, *width])?;
        let launch = built.op.on(&*self.rank).tensor("g", &from);
        launch.tensor("y", &mut to).rows(rows).launch()?;
        to.copy_to(&from)
    }
}

/// The columns that a gradient of so many elements is seen with.
fn width(elements: usize) -> Option<usize> {
    let mut widths = WIDTHS.into_iter();
    widths.find(|width| elements.is_multiple_of(*width))
}

/// Columns that a gradient is seen with, the widest first.
const WIDTHS: [usize; 5] = [128, 64, 32, 16, 8];
