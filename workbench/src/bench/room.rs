//! Memory of a measurement: a list of all that tensors and results have, by which the heap is reserved and from which it
//! is taken. What is not on the list cannot be taken.

use super::check::Exact;
use super::peer::padded;
use super::task::Task;
use super::variants::Planned;
use super::written::Holds;
use counterflow_codegen::program::TensorId;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::launch::Loaded;
use counterflow_runtime::{Communicator, Error};
use std::cell::RefCell;

/// What the communicator has for itself: a little more than a MiB.
const OWN: u64 = 2 << 20;

/// Parts of the heap are multiples of this.
const ALIGN: u64 = 1024;

/// The bytes of a number in memory of its own.
pub(super) const NUMBER: u64 = 16;

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// A tensor of the schedule's kernels, of one set.
    Tensor(TensorId),
    /// The product of this rank alone, of one set.
    Product,
    /// A tensor of our kernel for the product alone.
    Alone(TensorId),
    /// Exact products.
    Exact,
    /// What results may be off.
    Allowed,
    /// What the least codes lose.
    Least,
}

/// Memory on the list.
#[derive(Debug)]
struct Part {
    what: What,
    name: String,
    bytes: u64,
    in_heap: bool,
    /// What is in the heap, all ranks have at once.
    memory: Option<Memory>,
}

impl Part {
    fn in_heap(&self) -> u64 {
        match self.in_heap {
            true => self.bytes.max(1).next_multiple_of(ALIGN),
            false => 0,
        }
    }
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
        Part {
            what: what(TensorId(index)),
            name: buffer.name.clone(),
            bytes: bytes.max(NUMBER),
            in_heap,
            memory: None,
        }
    })
}

/// What a measurement has.
pub(super) struct Room<'a> {
    pub rank: &'a Communicator,
    /// What was not taken yet.
    left: RefCell<Vec<Part>>,
}

impl<'a> Room<'a> {
    /// Makes room for that many sets: at once, and while nothing runs. Otherwise what an earlier product had there would not be
    /// free yet; parts of this one would come to lie behind that, and leave holes that the largest do not fit in. Collective.
    pub(super) fn new(
        rank: &'a Communicator,
        task: &Task<'_>,
        sets: u64,
    ) -> Result<Room<'a>, Error> {
        let mut left = parts(task, sets);
        rank.synchronize()?;
        rank.reserve(OWN + heap(&left, task))?;
        for part in left.iter_mut().filter(|part| part.in_heap) {
            part.memory = Some(Memory::new(rank, &part.name, part.bytes, true)?);
        }
        Ok(Room {
            rank,
            left: RefCell::new(left),
        })
    }

    /// Memory for that.
    ///
    /// # Errors
    /// When it was taken as often as it is on the list; when the GPU's memory is full.
    pub(super) fn take(&self, what: What) -> Result<Memory, Error> {
        let mut left = self.left.borrow_mut();
        let at = left.iter().position(|part| part.what == what);
        let part = left.remove(at.ok_or_else(|| Error::Usage {
            what: format!("more memory for {what:?} than was counted"),
            legal: "this is a mistake of `bench`: please report it".into(),
        })?);
        match part.memory {
            Some(memory) => Ok(memory),
            None => Memory::new(self.rank, &part.name, part.bytes, false),
        }
    }
}

/// Bytes of the heap for these, and for what kernels have there.
fn heap(parts: &[Part], task: &Task<'_>) -> u64 {
    let kernels = task.loaded();
    let kernels = kernels.map(|of| Loaded::workspace(&of.series, &of.plan));
    parts.iter().map(Part::in_heap).chain(kernels).sum()
}

/// All that a measurement takes.
fn parts(task: &Task<'_>, sets: u64) -> Vec<Part> {
    let first = &task.ours[0];
    let part = |what, name: &str, bytes, in_heap| Part {
        what,
        name: name.into(),
        bytes,
        in_heap,
        memory: None,
    };
    // What comes of all ranks' products is compared with them: exact ones, or cuBLASLt's.
    let shared = Holds::of(first) != Holds::Own;
    let of_product = padded(first)[1] * u64::from(task.wide().bytes());
    let mut parts = Vec::new();
    for _ in 0..sets {
        parts.extend(tensors(first, What::Tensor));
        let in_heap = shared && !task.is_exact();
        parts.push(part(What::Product, "product", of_product, in_heap));
    }
    if task.is_exact() {
        let exact = Exact::parts(task.case.size);
        parts.extend(exact.map(|(what, name, bytes)| part(what, name, bytes, shared)));
    }
    let alone = task.alone.iter();
    parts.extend(alone.flat_map(|alone| tensors(alone, What::Alone)));
    parts
}

#[cfg(test)]
mod tests;
