//! Every rank's memory at once: what a kernel is told of a tensor and of the heap, for its `multimem` instructions.

use super::Loaded;
use super::tensors::{Tensors, alone};
use crate::communicator::Communicator;
use crate::driver::Address;
use crate::error::Error;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::warp::MapId;
use counterflow_emitter::EVERY_COPY_BYTES;

impl Loaded {
    /// Address at which a store reaches the start of every rank's slot of the heap, and all up to the kernel's
    /// counters.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why no multicast reaches them.
    pub(super) fn heap_everywhere(&self, rank: &Communicator) -> Result<Address, Error> {
        let cells = self.placed.cells.as_ref();
        rank.everywhere(0, cells.map_or(0, |cells| cells.offset() + cells.bytes()))
    }

    /// A tensor on every rank, as the prelude's `EveryCopy` has it: its rows, columns and strides are those of its map.
    pub(super) fn every_copy(
        &self,
        id: MapId,
        short: bool,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<[u8; EVERY_COPY_BYTES], Error> {
        let map = self.pipeline.map(id);
        let place = self.place(rank, tensors, plan, map.tensor)?;
        let base = place.shared.ok_or_else(|| alone(self.name(map.tensor)))?;
        let at = rank.everywhere(base.since(self.heap), place.bytes)?;
        let shape = self.pipeline.map_shape(id, short, plan, rank.rank());
        let mut bytes = [0; EVERY_COPY_BYTES];
        bytes[..8].copy_from_slice(&at.to_bytes());
        bytes[8..16].copy_from_slice(&shape.strides[0].to_le_bytes());
        bytes[16..24].copy_from_slice(&shape.strides[1].to_le_bytes());
        let sizes = match shape.zeros {
            true => [0; 2],
            false => [shape.dims[0], shape.dims[1]],
        };
        for (place, size) in bytes[24..].chunks_exact_mut(4).zip(sizes) {
            place.copy_from_slice(&(size as u32).to_le_bytes());
        }
        Ok(bytes)
    }
}
