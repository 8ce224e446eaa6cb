//! FP8 without a fused kernel, as users have it: NCCL moves codes and scales, or sums, and cuBLASLt or our product multiplies.

use super::super::contenders::Ready;
use super::super::peer::{How, Peer, Product};
use super::super::task::{Set, Task};
use super::super::variants::{Plane, Planned};
use super::super::worker::Worker;
use super::operands::Both;
use super::theirs::Theirs;
use crate::cuda::{Fp8, Matrix, Operands, Pieces, Scaled};
use counterflow_codegen::program::TensorId;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::{Communicator, Error};

/// Planes of all rows, of scales of 1×128 that are gathered shard by shard: products by themselves read no others. All sets
/// share one.
pub(super) struct Joined([Option<(Matrix, u32, Memory)>; 2]);

impl Joined {
    /// For the operands of our kind that need one.
    pub(super) fn new(
        rank: &Communicator,
        task: &Task<'_>,
        both: &Both,
        own: Scaled,
    ) -> Result<Joined, Error> {
        let (first, built) = (&task.ours[0], task.ours[0].built);
        let of = |side: usize| -> Result<Option<(Matrix, u32, Memory)>, Error> {
            let operand = built.operands()[side];
            if own.pieces[side] != Pieces::OneBy128 || !built.is_gathered(operand) {
                return Ok(None);
            }
            let matrix = both[&(side, own.pieces[side])].matrix;
            let rows = built.kernel.buffers[operand.index()].rows;
            let shard = first.plan.geometry.shard_rows(rows);
            let plane = Memory::new(rank, "joined", 4 * matrix.scales(), false)?;
            Ok(Some((matrix, shard, plane)))
        };
        Ok(Joined([of(0)?, of(1)?]))
    }

    /// The plane that a product reads of a set.
    fn plane<'m>(&'m self, set: &'m Set, side: usize) -> Option<&'m Memory> {
        match &self.0[side] {
            Some((.., plane)) => Some(plane),
            None => set.operands[side].given.scales.as_ref(),
        }
    }

    /// Makes the planes of what has come.
    fn join(&self, fp8: &Fp8, set: &Set) -> Result<(), Error> {
        for (side, joined) in self.0.iter().enumerate() {
            if let (Some((matrix, shard, to)), Some(from)) =
                (joined, &set.operands[side].given.scales)
            {
                fp8.join_shards(*matrix, (from.address(), to.address()), *shard)?;
            }
        }
        Ok(())
    }
}

impl Worker {
    /// NCCL beside cuBLASLt of our kind, if it has that, and beside our product, if that is measured; with their names.
    pub(super) fn peers<'a>(
        &'a self,
        (rank, fp8): (&'a Communicator, &'a Fp8),
        task: &'a Task<'a>,
        (own, sets, joined): (Scaled, &'a [Set], &'a Joined),
        theirs: &'a [Theirs<'a>],
    ) -> Result<Vec<(Peer<'a>, String)>, Error> {
        let Some(nccl) = &self.nccl else {
            return Ok(Vec::new());
        };
        let gathers = How::of(&task.ours[0]) == How::Gather;
        let mut peers = Vec::new();
        if let Some(same) = theirs.iter().find(|one| one.kind == own) {
            let multiply = move |at: usize| {
                if !gathers {
                    return same.product.run(&same.operands[at]);
                }
                let set = &sets[at];
                joined.join(fp8, set)?;
                let [x, w] = [0, 1].map(|side| set.operands[side].given.elements.address());
                let scale = |side: usize| match own.pieces[side] {
                    Pieces::Nothing => None,
                    Pieces::Whole | Pieces::Rows | Pieces::OneBy128 | Pieces::Square => {
                        joined.plane(set, side).map(Memory::address)
                    }
                };
                same.product.run(&Operands {
                    x,
                    w,
                    scales: [scale(0), scale(1)],
                    ..same.operands[at]
                })
            };
            let product = Product::Theirs(same.result);
            let peer = Peer::new(rank, nccl, task, sets, (product, multiply));
            let name = peer.name(&same.name(task));
            peers.push((peer, name));
        }
        if let Some(alone) = task.alone {
            let place = |set: usize, tensor| moved(alone, (&sets[set], joined), gathers, tensor);
            let ready = Ready::with((rank, task.compiler), alone, sets.len(), place)?;
            let multiply = move |at: usize| {
                if gathers {
                    joined.join(fp8, &sets[at])?;
                }
                ready.launch(rank, at)
            };
            let product = Product::Ours(alone);
            let peer = Peer::new(rank, nccl, task, sets, (product, multiply));
            let name = peer.name(&alone.name());
            peers.push((peer, name));
        }
        Ok(peers)
    }
}

/// A tensor of our product beside NCCL: what was gathered, and the schedule's result; or what the rank has, and the product that
/// is summed.
fn moved<'m>(
    alone: &Planned<'_>,
    (set, joined): (&'m Set, &'m Joined),
    gathers: bool,
    tensor: TensorId,
) -> Option<&'m Memory> {
    let roles = alone.built.roles;
    match alone.built.operand(tensor) {
        Some((side, Plane::Elements)) => Some(&set.operands[side].given.elements),
        Some((side, Plane::Scales)) => joined.plane(set, side),
        None if tensor != roles.y => set.beside.place(roles.beside, tensor),
        None if gathers => Some(&set.y),
        None => Some(&set.product),
    }
}
