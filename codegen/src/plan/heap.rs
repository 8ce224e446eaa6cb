//! The heap layout of counters and tensors that peers address.

use crate::kernel::Kernel;
use crate::program::CounterId;
use crate::shape::{Geometry, Shape};

/// The layout of the symmetric heap, the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heap {
    /// Name, offset and bytes of each, in order.
    pub entries: Vec<(String, u64, u64)>,
    /// Bytes in all.
    pub bytes: u64,
}

/// Bytes of a counter cell: its count and its base, on a separate line, since peers write it while others are polled.
pub const COUNTER_LINE: u64 = 128;

/// Counters, then symmetric buffers, one after another, sized for the largest launch of the series, so that nothing
/// moves when m changes. Every entry starts on a 1024-byte boundary: TMA's swizzle atom, and a multiple of a counter's
/// line.
pub(super) fn heap(kernel: &Kernel, geometry: &Geometry, shape: &Shape) -> Heap {
    let mut heap = Heap::default();
    let mut add = |name: &str, sizes: &[u64]| {
        let bytes = sizes
            .iter()
            .fold(1u64, |bytes, size| bytes.saturating_mul(*size));
        heap.entries.push((name.into(), heap.bytes, bytes));
        let room = bytes.checked_next_multiple_of(1024).unwrap_or(bytes);
        heap.bytes = heap.bytes.saturating_add(room);
    };
    for (index, counter) in kernel.counters.iter().enumerate() {
        let cells = geometry.counter_cells(CounterId(index as u16));
        add(&counter.name, &[u64::from(cells), COUNTER_LINE]);
    }
    for buffer in kernel
        .buffers
        .iter()
        .filter(|buffer| buffer.usage.placement.symmetric)
    {
        let shards = geometry.held_shards(buffer);
        // If rows are contiguous, every shard is a separate matrix.
        let lines = match buffer.mn_major {
            true => geometry.most(buffer.columns),
            false => geometry.most_shard_rows(buffer.rows),
        };
        let given = shape.ld.get(&buffer.name).copied();
        let contiguous = given.unwrap_or_else(|| geometry.most_contiguous(buffer));
        let slots = buffer.slots(geometry.world);
        let sizes = [slots, shards, lines, contiguous, buffer.dtype.bytes()];
        add(&buffer.name, &sizes.map(u64::from));
    }
    heap
}
