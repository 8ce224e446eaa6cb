//! NCCL and a product, one after the other: what users have without a fused kernel.

use super::task::{Set, Task};
use super::unlike;
use super::variants::Planned;
use super::written::Written;
use crate::cuda::{Nccl, Parts};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{AtEnd, TensorId};
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error};

/// NCCL communicates and someone multiplies, one after the other.
pub(super) struct Peer<'a> {
    nccl: &'a Nccl,
    /// Launches the product on a set: of what was gathered, into the schedule's result, or of this rank alone.
    multiply: Box<dyn Fn(usize) -> Result<(), Error> + 'a>,
    sets: &'a [Set],
    /// The schedule that does the same.
    like: &'a Planned<'a>,
    /// Gathered parts, set by set.
    gathered: Vec<Vec<Parts>>,
    dtype: Dtype,
    rank: u32,
    world: u32,
    /// Elements of the result, and of a rank's shard of it.
    count: [u64; 2],
    how: How,
    product: Product<'a>,
    rows: u32,
}

/// Library or kernel that multiplies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Product<'a> {
    /// cuBLASLt, into memory of its own where it does so last, in that type.
    Theirs(Dtype),
    /// A kernel of ours, into the schedule's result where it does so last.
    Ours(&'a Planned<'a>),
}

/// Work of NCCL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Gather,
    Scatter,
    Reduce,
    Exchange,
}

impl How {
    /// Instead of that schedule's communication.
    pub(super) fn of(like: &Planned<'_>) -> How {
        let y = like.built.kernel.buffers[like.built.roles.y.index()].usage;
        match y.at_end {
            AtEnd::Sum { everywhere: false } => How::Scatter,
            AtEnd::Sum { everywhere: true } => How::Reduce,
            AtEnd::Sent => How::Exchange,
            AtEnd::Nothing
            | AtEnd::Gathered
            | AtEnd::Computed
            | AtEnd::Own
            | AtEnd::Accumulated => How::Gather,
        }
    }
}

/// The tensors that are gathered before the product, elements and scales, with the bytes of each rank's part.
pub(super) fn parts(like: &Planned<'_>) -> Vec<(TensorId, u64)> {
    let (kernel, plan) = (&like.built.kernel, &like.plan);
    let tensors = (0..kernel.buffers.len()).map(|index| TensorId(index as u16));
    let gathered = tensors.filter(|tensor| like.built.is_gathered(*tensor));
    let part = |tensor| {
        let (bytes, _) = Loaded::needs(kernel, plan, tensor);
        (tensor, bytes / u64::from(plan.geometry.world))
    };
    gathered.map(part).collect()
}

/// Elements of a shard of the result's rows, and of all shards: ranks sum shards of one size.
pub(super) fn padded(like: &Planned<'_>) -> [u64; 2] {
    let y = &like.built.kernel.buffers[like.built.roles.y.index()];
    let geometry = &like.plan.geometry;
    let of = |rows: u32| u64::from(rows) * u64::from(geometry.size(y.columns));
    let shard = geometry.shard_rows(y.rows);
    [of(shard), of(shard * geometry.shards(y.rows))]
}

/// The name of NCCL with who multiplies, instead of that schedule.
pub(super) fn name(like: &Planned<'_>, product: &str) -> String {
    let kernel = &like.built.kernel;
    let adds = || {
        unlike::adds(
            kernel.buffers[like.built.roles.y.index()].dtype,
            &kernel.variant,
        )
    };
    match How::of(like) {
        How::Gather => format!("NCCL, then {product}"),
        How::Scatter | How::Reduce => format!("{product}, then NCCL{}", adds()),
        How::Exchange => format!("{product}, then NCCL"),
    }
}

impl<'a> Peer<'a> {
    pub(super) fn new(
        rank: &Communicator,
        nccl: &'a Nccl,
        task: &'a Task<'a>,
        sets: &'a [Set],
        (product, multiply): (Product<'a>, impl Fn(usize) -> Result<(), Error> + 'a),
    ) -> Peer<'a> {
        let like = &task.ours[0];
        let [m, n, _] = task.case.size.map(u64::from);
        let parts = parts(like);
        let of_set = |set: &Set| {
            let each = parts.iter().filter_map(|(tensor, bytes)| {
                let memory = set.given(like.built, *tensor)?;
                Some(Parts {
                    at: memory.address(),
                    bytes: *bytes,
                })
            });
            each.collect()
        };
        Peer {
            nccl,
            multiply: Box::new(multiply),
            sets,
            like,
            gathered: sets.iter().map(of_set).collect(),
            dtype: task.result(),
            rank: rank.rank(),
            world: rank.world(),
            count: [m * n, padded(like)[0]],
            how: How::of(like),
            product,
            rows: task.case.size[0],
        }
    }

    /// Name, with that of who multiplies.
    pub(super) fn name(&self, product: &str) -> String {
        name(self.like, product)
    }

    pub(super) fn launch(&self, set: usize) -> Result<(), Error> {
        if self.how == How::Gather {
            self.nccl.gather(self.rank, &self.gathered[set])?;
            return (self.multiply)(set);
        }
        (self.multiply)(set)?;
        let set = &self.sets[set];
        let [all, shard] = self.count;
        let (from, to) = (set.product.address(), set.y.address());
        match self.how {
            How::Gather => Ok(()),
            How::Scatter => self.nccl.reduce_scatter(from, to, shard, self.dtype),
            How::Reduce => self.nccl.all_reduce(from, to, all, self.dtype),
            How::Exchange => {
                let each = (shard, self.world);
                self.nccl.all_to_all(from, to, each, self.dtype)
            }
        }
    }

    pub(super) fn result<'b>(&self, rank: &Communicator, set: &'b Set) -> Written<'b> {
        match (self.how, self.product) {
            (How::Gather, Product::Theirs(dtype)) => set.theirs(dtype, self.rows),
            (How::Gather, Product::Ours(planned)) => {
                Written::of(rank, planned, &set.y, &set.beside)
            }
            // They are added in the result's type.
            (How::Scatter | How::Reduce | How::Exchange, _) => Written {
                codes: None,
                ..Written::of(rank, self.like, &set.y, &set.beside)
            },
        }
    }
}
