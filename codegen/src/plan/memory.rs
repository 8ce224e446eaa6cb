//! The sizes of a plan's tensors in bytes.

use super::Plan;
use crate::kernel::Kernel;
use crate::program::{TensorId, TensorKind};

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

    /// Bytes that a tensor needs on every rank, with the padding of its last chunk if peers address it.
    pub fn bytes(&self, kernel: &Kernel, tensor: TensorId) -> u64 {
        let buffer = &kernel.buffers[tensor.index()];
        let geometry = &self.geometry;
        let chunk = u64::from(geometry.chunk_rows(buffer.rows));
        let lines = match buffer.kind {
            // Every chunk is a separate matrix, with a line for each column.
            _ if buffer.mn_major => {
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
