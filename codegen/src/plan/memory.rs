//! Where a plan's tensors and counters lie, and how many bytes they take.

use super::Plan;
use crate::kernel::Kernel;
use crate::program::{CounterId, TensorId, TensorKind};
use crate::shape::{Geometry, Shape};

/// Where buffers and counters lie in the symmetric heap, the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heap {
    /// Name, offset and bytes of each, in order.
    pub entries: Vec<(String, u64, u64)>,
    /// Bytes in all.
    pub bytes: u64,
}

impl Plan {
    /// Bytes from a row of a tensor to the next, or from a column where rows are contiguous.
    pub fn pitch(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let given = match self.shape.ld.is_empty() {
            true => None,
            false => self.shape.ld.get(&buffer.name).copied(),
        };
        let elements = given.unwrap_or_else(|| self.geometry.contiguous(buffer));
        u64::from(elements) * u64::from(buffer.dtype.bytes())
    }

    /// Bytes that a tensor needs on every rank, with what pads its last chunk where peers address it.
    pub fn bytes(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let geometry = &self.geometry;
        let chunk = u64::from(geometry.chunk_rows(buffer.rows));
        let lines = match buffer.kind {
            // Every chunk is a matrix of its own, a line for each column.
            _ if buffer.rows_contiguous => {
                u64::from(geometry.size(buffer.columns)) * u64::from(geometry.chunks(buffer.rows))
            }
            _ if buffer.chunk_only() => chunk,
            TensorKind::Scratch { .. }
            | TensorKind::Gathered
            | TensorKind::Reduced
            | TensorKind::Scattered => chunk * u64::from(geometry.chunks(buffer.rows)),
            TensorKind::Local | TensorKind::Vector | TensorKind::Out | TensorKind::Accumulated => {
                u64::from(geometry.size(buffer.rows))
            }
        };
        lines * self.pitch(kernel, tensor) * u64::from(buffer.slots(geometry.world))
    }
}

/// Bytes of a counter cell: its count and its base, on a line of their own that peers write while others are polled.
pub const COUNTER_LINE: u64 = 128;

/// Counters, then symmetric buffers, one after another, sized for the largest launch of the series: nothing moves
/// while m changes. Every entry starts on a 1024-byte boundary: TMA's swizzle atom, and a multiple of a counter's line.
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
        .filter(|buffer| buffer.kind.symmetric())
    {
        let chunks = if buffer.chunk_only() {
            1
        } else {
            geometry.chunks(buffer.rows)
        };
        let (rows, columns) = (
            geometry.most_chunk_rows(buffer.rows),
            geometry.most(buffer.columns),
        );
        // Where rows are contiguous, every chunk is a matrix of its own.
        let (lines, contiguous) = if buffer.rows_contiguous {
            (columns, rows)
        } else {
            (rows, columns)
        };
        let contiguous = shape.ld.get(&buffer.name).copied().unwrap_or(contiguous);
        let slots = buffer.slots(geometry.world);
        let sizes = [slots, chunks, lines, contiguous, buffer.dtype.bytes()];
        add(&buffer.name, &sizes.map(u64::from));
    }
    heap
}
