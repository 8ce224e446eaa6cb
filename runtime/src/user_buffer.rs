//! Memory of the symmetric heap: the same offset on every rank, addressed by every GPU.

use crate::driver::{self, Address, Element, Local, Stream};
use crate::error::Error;
use crate::group::{Allocation, End};
use std::marker::PhantomData;
use std::sync::Arc;

/// A tensor on each rank, at one offset of the heap. The memory is freed when every rank has dropped its handles and the
/// work that was enqueued until then is done: a handle may be dropped under a running kernel.
#[derive(Clone, Debug)]
pub struct UserBuffer<T> {
    allocation: Arc<Allocation>,
    name: Arc<str>,
    shape: Arc<[usize]>,
    len: usize,
    rank: u32,
    stream: Stream,
    end: Arc<End>,
    elements: PhantomData<T>,
}

impl<T: Element> UserBuffer<T> {
    pub(crate) fn new(
        allocation: Arc<Allocation>,
        (name, shape): (Arc<str>, Arc<[usize]>),
        len: usize,
        rank: u32,
        (stream, end): (Stream, Arc<End>),
    ) -> Self {
        UserBuffer {
            allocation,
            name,
            shape,
            len,
            rank,
            stream,
            end,
            elements: PhantomData,
        }
    }

    /// Its range of the heap.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// The name that it was allocated under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its dimensions on each rank.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The rank whose handle this is.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Elements on each rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the start of a rank's slot: the same on every rank.
    pub fn offset(&self) -> u64 {
        self.allocation.offset()
    }

    /// Its address on rank `rank`. Every GPU of the group can use it.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn on(&self, rank: u32) -> Address {
        self.allocation.on(rank)
    }

    /// Its address on this rank.
    pub fn address(&self) -> Address {
        self.on(self.rank)
    }

    /// Writes this rank's elements from the front, in stream order.
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has; what the driver rejects.
    pub fn write(&self, values: &[T]) -> Result<(), Error> {
        self.write_on(self.rank, values)
    }

    /// Writes a peer's elements, in the order of this rank's stream.
    ///
    /// # Errors
    /// As [`UserBuffer::write`]; [`Error::Usage`] if there is no such rank.
    pub fn write_on(&self, rank: u32, values: &[T]) -> Result<(), Error> {
        self.is_rank(rank)?;
        self.fits(values.len(), "written to")?;
        self.allocation.ready(self.rank)?;
        driver::write(&self.stream, self.on(rank), values)
    }

    /// Copies elements from this rank's GPU to its front, in stream order.
    ///
    /// # Errors
    /// As [`UserBuffer::write`]; [`Error::Usage`] for memory of another stream.
    pub fn copy_from(&self, from: &Local<T>) -> Result<(), Error> {
        self.in_order(from)?;
        self.fits(from.len(), "copied to")?;
        let bytes = (from.len() * size_of::<T>()) as u64;
        driver::copy(&self.stream, self.address(), from.address(), bytes)
    }

    /// Copies as many elements from its front as `to` has, in the order of this rank's stream.
    ///
    /// # Errors
    /// As [`UserBuffer::copy_from`].
    pub fn copy_to(&self, to: &Local<T>) -> Result<(), Error> {
        self.in_order(to)?;
        self.fits(to.len(), "copied from")?;
        let bytes = (to.len() * size_of::<T>()) as u64;
        driver::copy(&self.stream, to.address(), self.address(), bytes)
    }

    fn is_rank(&self, rank: u32) -> Result<(), Error> {
        let world = self.allocation.world();
        if rank >= world {
            return Err(Error::Usage {
                what: format!("rank {rank} of {world}"),
                legal: format!("0 to {}", world - 1),
            });
        }
        Ok(())
    }

    /// Memory is freed in the order of its stream: a copy in another one may come after that.
    fn in_order(&self, local: &Local<T>) -> Result<(), Error> {
        if !local.stream().is(&self.stream) {
            return Err(Error::Usage {
                what: "a copy between a buffer and memory of another stream".into(),
                legal: "memory made in the stream of the buffer's rank: `Communicator::stream`"
                    .into(),
            });
        }
        Ok(())
    }

    fn fits(&self, len: usize, done: &str) -> Result<(), Error> {
        if len > self.len {
            return Err(Error::Usage {
                what: format!("{len} elements {done} a buffer of {}", self.len),
                legal: "give at most as many as it has".into(),
            });
        }
        Ok(())
    }

    /// Sets all of this rank's bytes, in stream order.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        driver::fill(
            &self.stream,
            self.address(),
            byte,
            (self.len * size_of::<T>()) as u64,
        )
    }

    /// This rank's elements, once its stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with; why the communicator has ended, if it has.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        self.read_on(self.rank)
    }

    /// A peer's elements, in the order of this rank's stream.
    ///
    /// # Errors
    /// As [`UserBuffer::read`]; [`Error::Usage`] if there is no such rank.
    pub fn read_on(&self, rank: u32) -> Result<Vec<T>, Error> {
        self.is_rank(rank)?;
        self.allocation.ready(self.rank)?;
        let values = driver::read(&self.stream, self.on(rank), self.len)?;
        // Once the communicator has ended, they may be anything.
        self.end.alive().map(|()| values)
    }
}
