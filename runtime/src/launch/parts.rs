//! Parts of tiles: what a kernel is told of a tensor, for ordinary stores at each rank's own address.

use super::Loaded;
use super::tensors::Tensors;
use crate::communicator::Communicator;
use crate::error::Error;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::warp::MapId;
use counterflow_emitter::EACH_RANK_BYTES;

impl Loaded {
    /// A tensor on each rank, as the prelude's `EachRank` has it: its address, strides and columns are those of its map, and as
    /// much of what TMA requires of one holds for stores of 16 bytes.
    pub(super) fn each_rank(
        &self,
        id: MapId,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<[u8; EACH_RANK_BYTES], Error> {
        let (spec, start) = self.map(id, false, rank, plan, tensors)?;
        spec.check(start)?;
        let mut bytes = [0; EACH_RANK_BYTES];
        bytes[..8].copy_from_slice(&start.to_bytes());
        let numbers = spec.stride.iter().chain(&spec.size[..1]);
        for (place, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        Ok(bytes)
    }
}
