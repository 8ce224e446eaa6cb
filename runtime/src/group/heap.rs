//! The heap's memory: which ranges of offsets are free, in use, or dropped while a kernel may still use them.

use super::{Group, lock};
use crate::driver::{Address, Event, Gpu, Slots, Stream};
use crate::error::Error;
use crate::retire::{Mark, Retired};
use range_alloc::RangeAllocator;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Allocations start on this: the swizzle's period, and a multiple of the lines that keep counters apart.
const ALIGN: u64 = 1024;

/// The slots and what is free in them.
#[derive(Debug)]
pub(super) struct Heap {
    pub slots: Slots,
    free: RangeAllocator<u64>,
    retired: Retired<Mark, Range<u64>>,
}

impl Heap {
    /// All free that has memory, from `first` on.
    pub fn new(slots: Slots, first: u64) -> Heap {
        Heap {
            free: RangeAllocator::new(first..slots.backed()),
            slots,
            retired: Retired::new(),
        }
    }

    /// Maps memory to the first `bytes` of every slot.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        let before = self.slots.backed();
        self.slots.grow(bytes)?;
        let now = self.slots.backed();
        if now > before {
            self.free.grow_to(now);
        }
        Ok(())
    }

    /// A free range of that many bytes, or more.
    pub fn take(&mut self, bytes: u64) -> Option<Range<u64>> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        self.free.allocate_range(bytes).ok()
    }

    /// Every rank dropped its handle of that range.
    pub fn retire(&mut self, range: Range<u64>) {
        self.retired.push(range);
    }

    /// Frees what was dropped and is no longer used. Whether something is still used.
    pub fn reclaim(&mut self, gpus: &[Gpu], streams: &[Stream]) -> bool {
        // Everything that uses a range was enqueued by who had a handle of it: it is in the streams by now.
        let gone = self.retired.sweep(
            |_| Mark::of(gpus.iter().zip(streams)).ok(),
            |mark| mark.passed(),
        );
        gone.into_iter()
            .for_each(|range| self.free.free_range(range));
        !self.retired.is_empty()
    }
}

/// A range of offsets. It can be given out again once every rank has dropped it and no stream has work left that was
/// enqueued before.
#[derive(Debug)]
pub(crate) struct Allocation {
    range: Range<u64>,
    group: Arc<Group>,
    /// In each rank's stream, after its memory was cleared.
    cleared: Vec<Event>,
    /// Whether what comes later in a rank's stream comes after all of these.
    ready: Vec<AtomicBool>,
}

impl Allocation {
    pub(super) fn new(range: Range<u64>, group: Arc<Group>, cleared: Vec<Event>) -> Allocation {
        Allocation {
            range,
            group,
            ready: cleared.iter().map(|_| AtomicBool::new(false)).collect(),
            cleared,
        }
    }

    /// Where a rank has it.
    pub(crate) fn on(&self, rank: u32) -> Address {
        self.group.address(rank, self.range.start)
    }

    /// Where it starts in each rank's slot.
    pub(crate) fn offset(&self) -> u64 {
        self.range.start
    }

    /// Lets a rank's stream wait until the memory is cleared on every rank. Call it before anything in that stream uses
    /// a peer's. The host does not wait.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn ready(&self, rank: u32) -> Result<(), Error> {
        let ready = &self.ready[rank as usize];
        if ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let stream = &self.group.streams()[rank as usize];
        for event in &self.cleared {
            if !event.is_done()? {
                stream.wait(event)?;
            }
        }
        ready.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        lock(&self.group.heap).retire(self.range.clone());
    }
}
