//! A kernel's view of its tensors: sizes, addresses and TMA maps.

use super::Loaded;
use super::tensors::{Placement, Tensors, alone};
use crate::communicator::Communicator;
use crate::cuda::MapSpec;
use crate::driver::Address;
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::warp::{MapId, View};

impl Loaded {
    /// Bytes that a tensor needs on a rank, with the padding of its last chunk in the heap, and whether it is in the
    /// heap.
    pub fn needs(kernel: &Kernel, plan: &Plan, tensor: TensorId) -> (u64, bool) {
        let symmetric = kernel.buffers[tensor.index()].kind.symmetric();
        (plan.bytes(kernel, tensor), symmetric)
    }

    /// A tensor's place: scratch is the kernel's own.
    pub(super) fn given(&self, tensors: &Tensors, tensor: TensorId) -> Option<Placement> {
        let own = self.scratch.place(tensor);
        own.or_else(|| tensors.place(tensor))
    }

    /// A tensor's address, if it is as large as the plan needs.
    pub(super) fn place(
        &self,
        tensors: &Tensors,
        plan: &Plan,
        tensor: TensorId,
    ) -> Result<Placement, Error> {
        let place = self.given(tensors, tensor);
        let (needs, _) = Loaded::needs(&self.pipeline.kernel, plan, tensor);
        place
            .filter(|place| place.bytes >= needs)
            .ok_or_else(|| Error::Usage {
                what: format!(
                    "{} has {} bytes",
                    self.name(tensor),
                    place.map_or(0, |place| place.bytes)
                ),
                legal: format!("{needs} bytes for {}", plan.shape),
            })
    }

    /// The address of a vector or a scale, for a kernel that reads it by ordinary loads.
    pub(super) fn vector(
        &self,
        tensor: TensorId,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<[u8; 8], Error> {
        let bytes = self.place(tensors, plan, tensor)?.own.to_bytes();
        let number = self.pipeline.kernel.buffers[tensor.index()]
            .kind
            .is_number();
        let align = if number { 4 } else { 16 };
        if u64::from_le_bytes(bytes).is_multiple_of(align) {
            return Ok(bytes);
        }
        Err(Error::Usage {
            what: format!(
                "{} is at an address that is not a multiple of {align}",
                self.name(tensor)
            ),
            legal: format!("align it to {align} bytes"),
        })
    }

    pub(super) fn name(&self, tensor: TensorId) -> &str {
        &self.pipeline.kernel.buffers[tensor.index()].name
    }

    /// A tensor and its boxes, and where it starts.
    pub(super) fn map(
        &self,
        id: MapId,
        short: bool,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<(MapSpec, Address), Error> {
        let map = self.pipeline.map(id);
        let place = self.place(tensors, plan, map.tensor)?;
        let shape = self.pipeline.map_shape(id, short, plan, rank.rank());
        let (base, stride) = match (map.view, place.shared) {
            _ if shape.zeros => (self.zeros.address(), shape.strides[1]),
            (View::Flat | View::Chunks | View::ColumnChunks, _) => (place.own, shape.strides[1]),
            (
                View::SharedChunks | View::SharedSlots | View::SharedSlotChunks | View::SharedChunk,
                Some(base),
            ) => (base, self.stride),
            (
                View::SharedChunks | View::SharedSlots | View::SharedSlotChunks | View::SharedChunk,
                None,
            ) => {
                return Err(alone(self.name(map.tensor)));
            }
        };
        let spec = MapSpec {
            dtype: self.pipeline.kernel.buffers[map.tensor.index()].dtype,
            size: shape.dims,
            stride: [shape.strides[0], shape.strides[1], stride],
            tile: [shape.boxed[0], shape.boxed[1]],
            swizzled: self.pipeline.kernel.buffers[map.tensor.index()]
                .kind
                .blocks()
                .is_none(),
        };
        Ok((spec, base))
    }
}
