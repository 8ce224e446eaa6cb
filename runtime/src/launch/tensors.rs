//! The addresses of a kernel's tensors.

use crate::communicator::Communicator;
use crate::driver::{Address, Element, Local, Stream};
use crate::error::Error;
use crate::group::Allocation;
use crate::unfinished::Bytes;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::TensorId;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The addresses of a kernel's tensors. Their memory stays for as long as this, and under launches that were given it:
/// it is freed in the order of the rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    places: SmallVec<[Option<Placement>; 8]>,
    /// The heap's ranges among them.
    held: SmallVec<[(TensorId, Arc<Allocation>); 8]>,
    /// Memory of this rank alone among them.
    own: SmallVec<[(TensorId, Own); 1]>,
}

/// Memory of a rank alone, and the stream in whose order it is freed.
#[derive(Clone)]
struct Own {
    stream: Stream,
    _memory: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own(..)")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// In this rank's memory.
    pub own: Address,
    /// Address in slot 0, if the tensor is in the heap.
    pub shared: Option<Address>,
    pub bytes: u64,
}

impl Placement {
    /// Addresses in this rank's memory.
    pub fn bytes(self) -> Bytes {
        let start = self.own.get();
        start..start + self.bytes
    }
}

impl Tensors {
    /// None yet.
    pub fn new() -> Tensors {
        Tensors::default()
    }

    /// None yet, of so many that there will be.
    pub(crate) fn of(count: usize) -> Tensors {
        Tensors {
            places: SmallVec::from_elem(None, count),
            ..Tensors::default()
        }
    }

    pub(crate) fn put(&mut self, tensor: TensorId, place: Placement) {
        let index = tensor.index();
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        if self.places[index].replace(place).is_some() {
            self.held.retain(|(held, _)| *held != tensor);
            self.own.retain(|(own, _)| *own != tensor);
        }
    }

    /// A tensor that a launch of that rank may not have, if there is one, and where it is.
    pub(super) fn strange(&self, rank: &Communicator) -> Option<(TensorId, &'static str)> {
        let held = self.held.iter().find(|(_, range)| !rank.owns(range));
        let elsewhere = held.map(|(tensor, _)| (*tensor, "another communicator's heap"));
        elsewhere.or_else(|| {
            let mut own = self.own.iter();
            let freed = own.find(|(_, own)| !own.stream.is(rank.own_stream()));
            freed.map(|(tensor, _)| (*tensor, "memory of another stream"))
        })
    }

    /// Lets a rank's stream wait until what is in the heap is cleared on every rank.
    pub(super) fn ready(&self, rank: u32) -> Result<(), Error> {
        self.held
            .iter()
            .try_for_each(|(_, range)| range.ready(rank))
    }

    /// Places of the tensors, those that were given.
    pub(super) fn places(&self) -> &[Option<Placement>] {
        &self.places
    }

    /// One tensor's address, if it was given.
    pub(crate) fn place(&self, tensor: TensorId) -> Option<Placement> {
        self.places.get(tensor.index()).copied().flatten()
    }

    /// A tensor in a range of the heap.
    pub(super) fn range(&mut self, tensor: TensorId, range: &Arc<Allocation>, rank: u32) {
        self.put(
            tensor,
            Placement {
                own: range.on(rank),
                shared: Some(range.on(0)),
                bytes: range.bytes(),
            },
        );
        self.held.push((tensor, range.clone()));
    }

    /// A tensor of at most `bytes` bytes in this rank's own memory, which is kept for as long as this.
    pub fn own<T: Element>(&mut self, tensor: TensorId, local: &Arc<Local<T>>, bytes: u64) {
        let place = Placement {
            own: local.address(),
            shared: None,
            bytes: bytes.min((local.len() * size_of::<T>()) as u64),
        };
        self.put(tensor, place);
        let own = Own {
            stream: local.stream().clone(),
            _memory: local.clone(),
        };
        self.own.push((tensor, own));
    }

    /// A tensor of `bytes` bytes in this rank's own memory.
    ///
    /// # Safety
    /// They are memory of the rank's GPU, until every launch that is given this is done, and nobody else uses them
    /// meanwhile.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn local(&mut self, tensor: TensorId, address: Address, bytes: u64) {
        self.put(
            tensor,
            Placement {
                own: address,
                shared: None,
                bytes,
            },
        );
    }

    /// A tensor in the heap. Its memory is kept for as long as this.
    pub fn shared<T: Element>(&mut self, tensor: TensorId, buffer: &UserBuffer<T>) {
        let place = Placement {
            own: buffer.address(),
            shared: Some(buffer.on(0)),
            bytes: (buffer.len() * size_of::<T>()) as u64,
        };
        self.hold(tensor, place, buffer.allocation());
    }

    /// A tensor at that place of the heap, with what keeps it.
    pub(crate) fn hold(&mut self, tensor: TensorId, place: Placement, range: &Arc<Allocation>) {
        self.put(tensor, place);
        self.held.push((tensor, range.clone()));
    }
}

impl Placement {
    /// Address of the tensor on a rank.
    pub fn on(&self, home: u32, rank: &Communicator, name: &str) -> Result<Address, Error> {
        match self.shared {
            _ if home == rank.rank() => Ok(self.own),
            Some(base) => Ok(base.plus(u64::from(home) * rank.stride())),
            None => Err(alone(name)),
        }
    }
}

/// Error of memory so low that the shards of the ranks before this one would lie below 0.
pub(super) fn low(name: &str) -> Error {
    Error::Usage {
        what: format!("{name} lies lower than the shards before this rank's take"),
        legal: "give a UserBuffer".into(),
    }
}

/// Error of memory that peers address and that is not in the heap.
pub(super) fn alone(name: &str) -> Error {
    Error::Usage {
        what: format!("{name} is not in the symmetric heap"),
        legal: "give a UserBuffer: peers address it".into(),
    }
}
