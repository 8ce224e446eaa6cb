//! Memory of a measurement: a list of all that tensors and results have, by which the heap is reserved and from which it
//! is taken. What is not on the list cannot be taken.

use counterflow_codegen::program::TensorId;
use counterflow_runtime::gpus::Memory;
use counterflow_runtime::{Communicator, Error, HeapUse};
use std::cell::RefCell;

/// Bytes that the communicator has for itself: a little more than a MiB.
const OWN: u64 = 2 << 20;

/// The bytes of a number in memory of its own.
pub(super) const NUMBER: u64 = 16;

/// Purpose of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// A tensor of the schedule's kernels, of one set.
    Tensor(TensorId),
    /// The product of this rank alone, of one set.
    Product,
    /// A tensor of our kernel for the product alone.
    Alone(TensorId),
    /// Memory that one kernel makes for the next, of candidates of several kernels: of that one.
    Between(usize),
    /// Exact products.
    Exact,
    /// Deviation that results may have.
    Allowed,
    /// Loss of the least codes.
    Least,
}

/// Memory on the list.
#[derive(Debug)]
pub(super) struct Part {
    what: What,
    name: String,
    bytes: u64,
    in_heap: bool,
    /// Of the heap's parts: all ranks allocate them together, when the room is made.
    memory: Option<Memory>,
}

impl Part {
    pub(super) fn new(what: What, name: &str, bytes: u64, in_heap: bool) -> Part {
        Part {
            what,
            name: name.into(),
            bytes,
            in_heap,
            memory: None,
        }
    }

    /// Bytes that it takes of the heap.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self.in_heap {
            true => HeapUse::by(self.bytes),
            false => 0,
        }
    }
}

/// Memory of a measurement.
pub(super) struct Room<'a> {
    pub rank: &'a Communicator,
    /// Parts that were not taken yet.
    left: RefCell<Vec<Part>>,
}

impl<'a> Room<'a> {
    /// Makes room for these, and for so many bytes of kernels in the heap: at once, and while nothing runs. Otherwise what an
    /// earlier product had there would not be free yet; parts of this one would come to lie behind that, and leave holes that the
    /// largest do not fit in. Collective.
    pub(super) fn new(
        rank: &'a Communicator,
        mut left: Vec<Part>,
        kernels: u64,
    ) -> Result<Room<'a>, Error> {
        let parts: u64 = left.iter().map(Part::heap_bytes).sum();
        rank.synchronize()?;
        rank.reserve(OWN + parts + kernels)?;
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

    /// True if something in the heap was not taken.
    #[cfg(test)]
    pub(super) fn has_more(&self) -> bool {
        self.left.borrow().iter().any(|part| part.in_heap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_is_refused() {
        let ranks = Communicator::emulated(1).expect("ranks");
        for in_heap in [false, true] {
            let part = Part::new(What::Exact, "exact", 5, in_heap);
            let room = Room::new(&ranks[0], vec![part], 0).expect("room");
            assert_eq!(room.has_more(), in_heap);
            let taken = room.take(What::Exact).expect("on the list");
            assert_eq!(matches!(taken, Memory::Heap(_)), in_heap);
            assert!(!room.has_more());
            for what in [What::Exact, What::Product] {
                let error = room.take(what).map(drop).expect_err("not on the list");
                assert!(error.to_string().contains("than was counted"), "{error}");
            }
        }
    }
}
