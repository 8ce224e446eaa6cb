//! The sizes of a plan's tensors in bytes, and where their rectangles are.

use super::Plan;
use crate::kernel::Kernel;
use crate::program::TensorId;
use crate::region::Span;

/// A rectangle's lines in its tensor's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// Bytes from the tensor's start to the first line.
    pub offset: u64,
    /// Bytes from a line to the next.
    pub pitch: u64,
    /// Bytes of a line.
    pub bytes: u64,
    /// Number of lines.
    pub lines: u64,
}

impl Plan {
    /// Bytes from a row of a tensor to the next, or from a column to the next if rows are contiguous.
    pub fn pitch(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let given = match self.shape.ld.is_empty() {
            true => None,
            false => self.shape.ld.get(&buffer.name).copied(),
        };
        let elements = given.unwrap_or_else(|| self.geometry.contiguous(buffer));
        u64::from(elements) * u64::from(buffer.dtype.bytes())
    }

    /// Bytes that a tensor needs on every rank, with the padding of its last shard if peers address it.
    pub fn bytes(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        self.held_lines(kernel, tensor) * self.pitch(kernel, tensor)
    }

    /// Rows that it has there, or columns if rows are contiguous, in all its slots.
    pub fn held_lines(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let geometry = &self.geometry;
        let shard = u64::from(geometry.shard_rows(buffer.rows));
        let shards = u64::from(geometry.held_shards(buffer));
        let lines = match buffer.usage.placement.symmetric {
            // Every shard is a separate matrix, with a line for each column.
            _ if buffer.mn_major => u64::from(geometry.size(buffer.columns)) * shards,
            true => shard * shards,
            false => u64::from(geometry.size(buffer.rows)),
        };
        lines * u64::from(buffer.slots(geometry.world))
    }

    /// Rows that a rank needs of a tensor that its launch alone addresses: of one that ranks divide those of its own shard, unless a
    /// statement reads it, which may load whole tiles.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// use counterflow_codegen::program::TensorId;
    ///
    /// let (_, plan) = example::proven();
    /// let (kernel, w) = (plan.kernel(), TensorId(1));
    /// assert_eq!(plan.own_lines(kernel, w, 0), plan.held_lines(kernel, w), "each rank has all of it");
    /// ```
    pub fn own_lines(&self, kernel: &Kernel, tensor: TensorId, rank: u32) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let divided = buffer.usage.is_own_shard() && !kernel.is_in_heap(tensor);
        match divided && kernel.is_only_stored(tensor) {
            true => self.geometry.held(buffer, rank).len().into(),
            false => self.held_lines(kernel, tensor),
        }
    }

    /// The part of its plane's memory that a write of a box touches: behind the last scale of a line, the padding that nobody
    /// needs. Who writes that scale fills the padding, so that a reader of whole lines finds nothing old.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// use counterflow_codegen::unroll::StepKind;
    ///
    /// let (_, plan) = example::proven();
    /// for step in &plan.agent(0, 1).steps {
    ///     for (_, one) in step.kind.boxes(plan.kernel(), &plan.geometry, 0) {
    ///         assert_eq!(plan.touched(plan.kernel(), &one), one, "no scales, no padding");
    ///     }
    /// }
    /// ```
    pub fn touched(&self, kernel: &Kernel, span: &Span) -> Span {
        let buffer = &kernel.buffers[span.buffer.index()];
        let end = self.geometry.size(buffer.columns);
        let pads = buffer.usage.rule().is_some() && !buffer.is_scratch();
        let mut touched = *span;
        if pads && span.columns.end == end && !span.columns.is_empty() {
            let line = self.pitch(kernel, span.buffer) / u64::from(buffer.dtype.bytes());
            touched.columns.end = u32::try_from(line).unwrap_or(end);
        }
        touched
    }

    /// A box's lines in its plane's memory on the rank that has it.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
    /// use counterflow_codegen::unroll::StepKind;
    ///
    /// let (_, plan) = example::proven();
    /// for step in &plan.agent(0, 0).steps {
    ///     if let StepKind::Copy { src, .. } = &step.kind {
    ///         for one in src.boxes(plan.kernel(), &plan.geometry) {
    ///             let bytes = plan.lines(plan.kernel(), &one);
    ///             println!("{} lines of {} bytes from {} on", bytes.lines, bytes.bytes, bytes.offset);
    ///         }
    ///     }
    /// }
    /// ```
    pub fn lines(&self, kernel: &Kernel, span: &Span) -> Bytes {
        let buffer = &kernel.buffers[span.buffer.index()];
        let geometry = &self.geometry;
        let element = u64::from(buffer.dtype.bytes());
        let pitch = self.pitch(kernel, span.buffer);
        let shard_rows = geometry.shard_rows(buffer.rows).max(1);
        let row = span.rows.start - geometry.held(buffer, u32::from(span.home)).start;
        let shards = geometry.held_shards(buffer);
        let (columns, column) = (geometry.size(buffer.columns), span.columns.start);
        let (rows_long, columns_long) = (span.rows.len().into(), u64::from(span.columns.len()));
        // If rows are contiguous, every shard is a separate matrix, whose lines are its columns.
        let (line, first, slot, long, lines) = if buffer.mn_major {
            let line = row / shard_rows * columns + column;
            (
                line,
                row % shard_rows,
                shards * columns,
                rows_long,
                columns_long,
            )
        } else {
            (row, column, shards * shard_rows, columns_long, rows_long)
        };
        let line = u64::from(span.slot) * u64::from(slot) + u64::from(line);
        Bytes {
            offset: line * pitch + u64::from(first) * element,
            pitch,
            bytes: long * element,
            lines,
        }
    }
}
