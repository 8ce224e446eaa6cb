//! Moving bytes, and memory of one GPU alone.

use super::stream::{Kind as StreamKind, Stream};
use crate::cuda::{self, Address, Element};
use crate::emulated;
use crate::error::Error;
use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// Memory of one GPU that no peer addresses, for the bench and for tests. It belongs to no rank, so a read does not look
/// whether a launch gave up: programs use [`Tensor`](crate::Tensor).
#[doc(hidden)]
#[derive(Debug)]
pub struct Local<T> {
    place: Place<T>,
    len: usize,
    stream: Stream,
}

#[derive(Debug)]
enum Place<T> {
    Cuda {
        _slice: cuda::Freed<T>,
        /// Asked for once: cudarc puts an event into the stream whenever it is asked.
        address: Address,
    },
    Emulated(emulated::Memory),
}

impl<T: Element> Local<T> {
    /// `len` elements of zero bits, for use in the order of `stream`.
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub fn zeros(stream: &Stream, len: usize) -> Result<Local<T>, Error> {
        Local::made(stream, len, cuda::zeros)
    }

    /// `len` elements of any bits, for use in the order of `stream`. No work is enqueued that needs SMs.
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub(crate) fn unwritten(stream: &Stream, len: usize) -> Result<Local<T>, Error> {
        Local::made(stream, len, cuda::unwritten)
    }

    fn made(
        stream: &Stream,
        len: usize,
        allocates: impl FnOnce(&Arc<CudaStream>, usize) -> Result<CudaSlice<T>, Error>,
    ) -> Result<Local<T>, Error> {
        let bytes = bytes(len, size_of::<T>())?;
        must_do_it(stream, "an allocation")?;
        let _entering = stream.enter()?;
        Ok(Local {
            place: match &stream.0 {
                StreamKind::Cuda(on) => {
                    let slice = allocates(on, len)?;
                    Place::Cuda {
                        address: cuda::address_of(&slice, on),
                        _slice: slice.into(),
                    }
                }
                StreamKind::Emulated(on) => Place::Emulated(emulated::Memory::zeros(on, bytes)?),
            },
            len,
            stream: stream.clone(),
        })
    }

    /// Allocates memory in `stream`'s order and fills it with `values`.
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub fn of(stream: &Stream, values: &[T]) -> Result<Local<T>, Error> {
        let local = Local::zeros(stream, values.len())?;
        local.write(values)?;
        Ok(local)
    }

    /// Writes elements from the front, in stream order.
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has; what the driver refuses.
    pub fn write(&self, values: &[T]) -> Result<(), Error> {
        if values.len() > self.len {
            return Err(Error::Usage {
                what: format!("{} elements for memory of {}", values.len(), self.len),
                legal: "at most as many as it has".into(),
            });
        }
        write(&self.stream, self.address(), values)
    }

    /// The contents, after everything earlier in the stream.
    ///
    /// # Errors
    /// What the kernels before ended with.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        read(&self.stream, self.address(), self.len)
    }

    /// Sets all bytes, in stream order.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        let bytes = self.len * size_of::<T>();
        fill(&self.stream, self.address(), byte, bytes as u64)
    }

    /// The stream in whose order it is used and freed.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address on the GPU. The memory is freed in the order of its stream: only work that ends before the free may use it.
    pub fn address(&self) -> Address {
        match &self.place {
            Place::Cuda { address, .. } => *address,
            Place::Emulated(memory) => memory.address(),
        }
    }
}

/// The bytes of so many elements.
fn bytes(len: usize, each: usize) -> Result<u64, Error> {
    let bytes = len.checked_mul(each).map(|bytes| bytes as u64);
    bytes.ok_or_else(|| Error::Usage {
        what: format!("{len} elements of {each} bytes"),
        legal: "fewer bytes than there are addresses".into(),
    })
}

/// Rejects a stream that records a graph: a replay would use memory of the host, or of the GPU, that is gone by then.
fn must_do_it(stream: &Stream, what: &str) -> Result<(), Error> {
    if stream.is_capturing() {
        return Err(Error::Usage {
            what: format!("{what} in a stream that records a graph"),
            legal: "do it before the recording or after it: a graph keeps only what launches on `Communicator::capture`'s recording are given".into(),
        });
    }
    Ok(())
}

/// Copies to the GPU in stream order. `values` may be reused when this returns.
pub(crate) fn write<T: Element>(stream: &Stream, to: Address, values: &[T]) -> Result<(), Error> {
    must_do_it(stream, "a copy to the GPU")?;
    // Of many bytes it waits for what is in the stream.
    stream.around(|| match &stream.0 {
        StreamKind::Cuda(stream) => cuda::write(stream, to, values),
        StreamKind::Emulated(stream) => stream.write(to, values),
    })
}

/// Copies from the GPU, after everything earlier in the stream, and waits for it.
pub(crate) fn read<T: Element>(
    stream: &Stream,
    from: Address,
    len: usize,
) -> Result<Vec<T>, Error> {
    must_do_it(stream, "a copy from the GPU")?;
    stream.around(|| match &stream.0 {
        StreamKind::Cuda(stream) => cuda::read(stream, from, len),
        StreamKind::Emulated(stream) => stream.read(from, len),
    })
}

/// As [`read`]. Gives nothing if a dead GPU no longer answers.
pub(crate) fn read_words(stream: &Stream, from: Address, len: usize) -> Option<Vec<u64>> {
    read(stream, from, len).ok()
}

/// Copies within the GPUs' memory, in stream order.
pub(crate) fn copy(stream: &Stream, to: Address, from: Address, bytes: u64) -> Result<(), Error> {
    must_do_it(stream, "a copy")?;
    enqueue_copy(stream, to, from, bytes)
}

/// The same, or its record in a graph that keeps both memories.
pub(crate) fn enqueue_copy(
    stream: &Stream,
    to: Address,
    from: Address,
    bytes: u64,
) -> Result<(), Error> {
    let _entering = stream.enter()?;
    match &stream.0 {
        StreamKind::Cuda(stream) => cuda::copy(stream, to, from, bytes),
        StreamKind::Emulated(stream) => stream.copy(to, from, bytes),
    }
}

/// Sets bytes, in stream order.
pub(crate) fn fill(stream: &Stream, to: Address, byte: u8, bytes: u64) -> Result<(), Error> {
    must_do_it(stream, "a fill")?;
    enqueue_fill(stream, to, byte, bytes)
}

/// The same, or its record in a graph that keeps the memory.
pub(crate) fn enqueue_fill(
    stream: &Stream,
    to: Address,
    byte: u8,
    bytes: u64,
) -> Result<(), Error> {
    let _entering = stream.enter()?;
    match &stream.0 {
        StreamKind::Cuda(stream) => cuda::fill(stream, to, byte, bytes),
        StreamKind::Emulated(stream) => stream.fill(to, byte, bytes),
    }
}
