//! Moving bytes, and memory of one GPU alone.

use super::stream::{Kind as StreamKind, Stream};
use crate::cuda::{self, Address, Element};
use crate::error::Error;
use cudarc::driver::CudaSlice;

/// Memory of one GPU that no peer addresses: operands, outputs.
#[derive(Debug)]
pub struct Local<T> {
    place: Place<T>,
    len: usize,
    stream: Stream,
}

#[derive(Debug)]
enum Place<T> {
    Cuda {
        _slice: CudaSlice<T>,
        /// Asked for once: cudarc puts an event into the stream whenever it is asked.
        address: Address,
    },
}

impl<T: Element> Local<T> {
    /// `len` elements of zero bits, for use in the order of `stream`.
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub fn zeros(stream: &Stream, len: usize) -> Result<Local<T>, Error> {
        let StreamKind::Cuda(on) = &stream.0;
        let slice = cuda::zeros(on, len)?;
        Ok(Local {
            place: Place::Cuda {
                address: cuda::address_of(&slice, on),
                _slice: slice,
            },
            len,
            stream: stream.clone(),
        })
    }

    /// Those elements.
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub fn of(stream: &Stream, values: &[T]) -> Result<Local<T>, Error> {
        let local = Local::zeros(stream, values.len())?;
        write(stream, local.address(), values)?;
        Ok(local)
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

    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is. It is freed in the order of its stream: only work that ends before the free may use it.
    pub fn address(&self) -> Address {
        let Place::Cuda { address, .. } = &self.place;
        *address
    }
}

/// Copies to the GPU in stream order. `values` may be reused when this returns.
pub(crate) fn write<T: Element>(stream: &Stream, to: Address, values: &[T]) -> Result<(), Error> {
    let StreamKind::Cuda(stream) = &stream.0;
    cuda::write(stream, to, values)
}

/// Copies from the GPU, after everything earlier in the stream, and waits for it.
pub(crate) fn read<T: Element>(
    stream: &Stream,
    from: Address,
    len: usize,
) -> Result<Vec<T>, Error> {
    let StreamKind::Cuda(stream) = &stream.0;
    cuda::read(stream, from, len)
}

/// As [`read`]. Gives nothing if a dead GPU no longer answers.
pub(crate) fn read_words(stream: &Stream, from: Address, len: usize) -> Option<Vec<u64>> {
    read(stream, from, len).ok()
}

/// Copies within the GPUs' memory, in stream order.
pub(crate) fn copy(stream: &Stream, to: Address, from: Address, bytes: u64) -> Result<(), Error> {
    let StreamKind::Cuda(stream) = &stream.0;
    cuda::copy(stream, to, from, bytes)
}

/// Sets bytes, in stream order.
pub(crate) fn fill(stream: &Stream, to: Address, byte: u8, bytes: u64) -> Result<(), Error> {
    let StreamKind::Cuda(stream) = &stream.0;
    cuda::fill(stream, to, byte, bytes)
}
