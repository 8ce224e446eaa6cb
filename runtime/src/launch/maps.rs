//! A kernel's view of its tensors: sizes, addresses and TMA maps.

use super::Loaded;
use super::tensors::{Placement, Tensors, alone, low};
use crate::communicator::Communicator;
use crate::cuda::MapSpec;
use crate::driver::Address;
use crate::error::Error;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::warp::{MapId, View};

impl Loaded {
    /// Bytes that a tensor needs on a rank, with the padding of its last shard in the heap, and whether it is in the
    /// heap.
    pub fn needs(kernel: &Kernel, plan: &Plan, tensor: TensorId) -> (u64, bool) {
        (plan.bytes(kernel, tensor), kernel.is_in_heap(tensor))
    }

    /// Tensors whose places in the heap are the same on all ranks: all that are there, but for what each rank may have anywhere.
    pub(super) fn compared(&self) -> impl Iterator<Item = TensorId> {
        let kernel = &self.pipeline.kernel;
        let all = kernel.buffers.iter().zip(0..);
        all.filter_map(|(buffer, at)| {
            let anywhere = buffer.usage.placement.symmetric && !kernel.is_in_heap(TensorId(at));
            (!anywhere).then_some(TensorId(at))
        })
    }

    /// A tensor's place: scratch is the kernel's own.
    pub(super) fn given(&self, tensors: &Tensors, tensor: TensorId) -> Option<Placement> {
        let own = self.scratch.place(tensor);
        own.or_else(|| tensors.place(tensor))
    }

    /// A tensor's address, if it is as large as the plan needs on this rank.
    pub(super) fn place(
        &self,
        rank: &Communicator,
        tensors: &Tensors,
        plan: &Plan,
        tensor: TensorId,
    ) -> Result<Placement, Error> {
        let place = self.given(tensors, tensor);
        let kernel = &self.pipeline.kernel;
        let needs = plan.own_lines(kernel, tensor, rank.rank()) * plan.pitch(kernel, tensor);
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
        rank: &Communicator,
        tensor: TensorId,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<[u8; 8], Error> {
        let bytes = self.place(rank, tensors, plan, tensor)?.own.to_bytes();
        let number = self.pipeline.kernel.buffers[tensor.index()]
            .usage
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
        let place = self.place(rank, tensors, plan, map.tensor)?;
        let shape = self.pipeline.map_shape(id, short, plan, rank.rank());
        let (base, stride) = match (map.view, place.shared) {
            _ if shape.zeros => (self.zeros.address(), shape.strides[1]),
            (View::Flat | View::Shards | View::ColumnShards, _) => (place.own, shape.strides[1]),
            (
                View::SharedShards
                | View::SharedSlots
                | View::SharedSlotShards
                | View::SharedShard
                | View::SharedRows,
                Some(base),
            ) => (base, self.stride),
            (
                View::SharedShards
                | View::SharedSlots
                | View::SharedSlotShards
                | View::SharedShard
                | View::SharedRows,
                None,
            ) => {
                if self.pipeline.kernel.is_in_heap(map.tensor) {
                    return Err(alone(self.name(map.tensor)));
                }
                // Boxes are at this rank's number alone, so what lies below its memory is no rank's.
                let stride = shape.strides[1] * shape.dims[2];
                let below = u64::from(rank.rank()) * stride;
                match place.bytes {
                    // The rank has no rows of it, and stores none.
                    0 => (self.zeros.address(), stride),
                    _ => {
                        let start = place.own.minus(below);
                        (start.ok_or_else(|| low(self.name(map.tensor)))?, stride)
                    }
                }
            }
        };
        let spec = MapSpec {
            dtype: self.pipeline.kernel.buffers[map.tensor.index()].dtype,
            size: shape.dims,
            stride: [shape.strides[0], shape.strides[1], stride],
            tile: [shape.boxed[0], shape.boxed[1]],
            swizzled: self.pipeline.kernel.buffers[map.tensor.index()]
                .usage
                .blocks()
                .is_none(),
        };
        Ok((spec, base))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ZEROS;
    use super::*;
    use crate::schedules::product;
    use counterflow_codegen::lower::lower;
    use counterflow_codegen::machine::Machine;
    use counterflow_codegen::shape::Shape;
    use counterflow_codegen::sm90;
    use counterflow_codegen::variant::Variant;
    use counterflow_codegen::verify;

    /// Makes the maps of a GPU without one. The operands' own addresses are read by nobody.
    #[test]
    fn operands_of_no_depth_are_zeros_that_tma_takes() -> Result<(), Error> {
        let rank = &Communicator::emulated(1)?[0];
        let kernel = lower(&product((64, 64)), &Variant::new(1)).and_then(verify::kernel)?;
        let pipeline = sm90::build(&kernel).and_then(verify::pipeline)?;
        let series = verify::series(&kernel, &Shape::new(64, 64, 8), &Machine::h200())?;
        let loaded = Loaded::load(rank, None, &pipeline, &series)?;
        let mut tensors = Tensors::new();
        let given = |id: u16| Placement {
            own: Address::of(4096 * u64::from(id + 1)),
            shared: None,
            bytes: 64 * 64 * 2,
        };
        for id in 0..kernel.buffers.len() as u16 {
            tensors.put(TensorId(id), given(id));
        }
        for k in [0, 8] {
            let plan = series.plan(&Shape::new(64, 64, k))?;
            for (map, id) in pipeline.maps.iter().zip(0..) {
                let (spec, address) = loaded.map(MapId(id), false, rank, &plan, &tensors)?;
                spec.check(address)?;
                let buffer = &kernel.buffers[map.tensor.index()];
                let own = given(map.tensor.0).own;
                let wanted = match k == 0 && buffer.usage.is_input() {
                    true => (loaded.zeros.address(), [8, 1, 1, 1]),
                    false => (
                        own,
                        [if buffer.usage.is_input() { 8 } else { 64 }, 64, 1, 1],
                    ),
                };
                assert_eq!((address, spec.size), wanted, "{} {k}", buffer.name);
            }
        }
        assert_eq!(loaded.zeros.read()?, [0; ZEROS]);
        Ok(())
    }
}
