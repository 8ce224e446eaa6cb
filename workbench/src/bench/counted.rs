//! Memory that a measurement takes: its sets, the results' references, and kernels.

use super::check::Exact;
use super::peer::padded;
use super::room::{NUMBER, Part, Room, What};
use super::task::Task;
use super::variants::Planned;
use super::written::Holds;
use counterflow_codegen::program::TensorId;
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error, rotation};

/// The least bytes that are touched between two uses of a set: several times the L2 cache.
const ROTATED: u64 = 256 << 20;

impl Task<'_> {
    /// Number of sets of operands: so many that the cache does not hold them.
    pub(super) fn sets(&self) -> u64 {
        let first = &self.ours[0];
        let [m, n, k] = self.case.size.map(u64::from);
        let of_operands = (m * k + n * k) * u64::from(self.dtype.bytes());
        let of_y = padded(first)[1] * u64::from(self.wide().bytes());
        let more = self.epilogue().operands().map(|tensor| {
            let (bytes, _) = Loaded::needs(&first.built.kernel, &first.plan, tensor);
            bytes
        });
        rotation::sets(of_operands + of_y + more.sum::<u64>(), ROTATED)
    }

    /// Room for that many sets. Collective.
    pub(super) fn room<'a>(&self, rank: &'a Communicator, sets: u64) -> Result<Room<'a>, Error> {
        Room::new(rank, parts(self, sets), of_kernels(self))
    }
}

/// Bytes of the heap that kernels have.
fn of_kernels(task: &Task<'_>) -> u64 {
    let kernels = task.loaded();
    let each = kernels.map(|of| Loaded::exchange_workspace(&of.series, &of.plan, of.collective));
    each.sum()
}

/// All that a measurement takes.
fn parts(task: &Task<'_>, sets: u64) -> Vec<Part> {
    let first = &task.ours[0];
    // What comes of all ranks' products is compared with them: exact ones, or cuBLASLt's.
    let shared = Holds::of(first) != Holds::Own;
    let of_product = padded(first)[1] * u64::from(task.wide().bytes());
    let mut parts = Vec::new();
    for _ in 0..sets {
        parts.extend(tensors(first, What::Tensor));
        let in_heap = shared && !task.is_exact();
        parts.push(Part::new(What::Product, "product", of_product, in_heap));
    }
    if task.is_exact() {
        let exact = Exact::parts(task.case.size);
        parts.extend(exact.map(|(what, name, bytes)| Part::new(what, name, bytes, shared)));
    }
    let alone = task.alone.iter();
    parts.extend(alone.flat_map(|alone| tensors(alone, What::Alone)));
    let apart = task.apart.iter().enumerate();
    parts.extend(apart.filter_map(|(at, apart)| {
        let (stage, tensor) = apart.between()?;
        let planned = &apart.stages[stage];
        let (bytes, _) = Loaded::needs(&planned.built.kernel, &planned.plan, tensor);
        Some(Part::new(What::Between(at), "between", bytes, false))
    }));
    parts
}

/// The tensors of a kernel but for its scratch.
fn tensors<'a>(
    planned: &'a Planned<'_>,
    what: fn(TensorId) -> What,
) -> impl Iterator<Item = Part> + 'a {
    let kernel = &planned.built.kernel;
    let buffers = kernel.buffers.iter().zip(0..);
    let given = buffers.filter(|(buffer, _)| !buffer.is_scratch());
    given.map(move |(buffer, index)| {
        let (bytes, in_heap) = Loaded::needs(kernel, &planned.plan, TensorId(index));
        let bytes = bytes.max(NUMBER);
        Part::new(what(TensorId(index)), &buffer.name, bytes, in_heap)
    })
}

#[cfg(test)]
mod tests;
