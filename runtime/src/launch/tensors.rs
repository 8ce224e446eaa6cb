//! Where a kernel's tensors are, and how TMA sees them.

use super::Loaded;
use crate::communicator::Communicator;
use crate::cuda::{Address, Element, MapSpec, TensorMap};
use crate::error::Error;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::pipeline::{MapId, View};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::TensorId;

/// Where a kernel's tensors are.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// In this rank's memory.
    own: Address,
    /// In slot 0 of the heap, if it is in the heap.
    shared: Option<Address>,
    bytes: u64,
}

impl Tensors {
    /// None yet.
    pub fn new() -> Tensors {
        Tensors::default()
    }

    fn put(&mut self, tensor: TensorId, place: Place) {
        let index = tensor.index();
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(place);
    }

    /// A tensor in memory of this rank alone, so many bytes.
    pub fn local(&mut self, tensor: TensorId, address: Address, bytes: u64) {
        self.put(
            tensor,
            Place {
                own: address,
                shared: None,
                bytes,
            },
        );
    }

    /// A tensor in the heap.
    pub fn shared<T: Element>(&mut self, tensor: TensorId, buffer: &UserBuffer<T>) {
        self.put(
            tensor,
            Place {
                own: buffer.address(),
                shared: Some(buffer.on(0)),
                bytes: (buffer.len() * size_of::<T>()) as u64,
            },
        );
    }
}

impl Place {
    /// Where a rank has it.
    pub fn on(&self, home: u32, rank: &Communicator, name: &str) -> Result<Address, Error> {
        match self.shared {
            _ if home == rank.rank() => Ok(self.own),
            Some(base) => Ok(base.plus(u64::from(home) * rank.stride())),
            None => Err(alone(name)),
        }
    }
}

fn alone(name: &str) -> Error {
    Error::Usage {
        what: format!("{name} is not in the symmetric heap"),
        legal: "a UserBuffer: peers address it".into(),
    }
}

impl Loaded {
    /// Bytes a tensor needs on a rank, with what pads its last chunk in the heap; and whether it is in the heap.
    pub fn needs(kernel: &Kernel, plan: &Plan, tensor: TensorId) -> (u64, bool) {
        let symmetric = kernel.buffers[tensor.index()].kind.symmetric();
        (plan.bytes(kernel, tensor), symmetric)
    }

    /// Where a tensor is, if it is as large as the plan needs.
    pub(super) fn place(
        &self,
        tensors: &Tensors,
        plan: &Plan,
        tensor: TensorId,
    ) -> Result<Place, Error> {
        let place = tensors.places.get(tensor.index()).copied().flatten();
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

    /// The address of a vector, for a kernel that reads it by ordinary loads.
    pub(super) fn vector(
        &self,
        tensor: TensorId,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<[u8; 8], Error> {
        let bytes = self.place(tensors, plan, tensor)?.own.to_bytes();
        if u64::from_le_bytes(bytes).is_multiple_of(16) {
            return Ok(bytes);
        }
        Err(Error::Usage {
            what: format!(
                "{} is at an address that is no multiple of 16",
                self.name(tensor)
            ),
            legal: "vectors start on 16 bytes".into(),
        })
    }

    pub(super) fn name(&self, tensor: TensorId) -> &str {
        &self.pipeline.kernel.buffers[tensor.index()].name
    }

    /// A tensor as boxes are cut from it.
    pub(super) fn map(
        &self,
        id: MapId,
        short: bool,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
    ) -> Result<TensorMap, Error> {
        let map = self.pipeline.map(id);
        let place = self.place(tensors, plan, map.tensor)?;
        let shape = self.pipeline.map_shape(id, short, plan, rank.rank());
        let (base, stride) = match (map.view, place.shared) {
            (View::Flat | View::Chunks, _) => (place.own, shape.strides[1]),
            (View::SharedChunks | View::SharedSlots | View::SharedChunk, Some(base)) => {
                (base, self.stride)
            }
            (View::SharedChunks | View::SharedSlots | View::SharedChunk, None) => {
                return Err(alone(self.name(map.tensor)));
            }
        };
        let spec = MapSpec {
            dtype: self.pipeline.kernel.buffers[map.tensor.index()].dtype,
            size: shape.dims,
            stride: [shape.strides[0], shape.strides[1], stride],
            tile: [shape.boxed[0], shape.boxed[1]],
        };
        spec.encode(base.plus(shape.offset))
    }
}
