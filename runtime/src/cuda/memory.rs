//! Moving bytes.

use super::driver::{check, checked, on, passed};
use super::relaxed::{Relaxed, relaxed};
use super::{Address, Gpu};
use crate::error::Error;
use counterflow_codegen::dtype::Dtype;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, ValidAsZeroBits, sys};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Numbers a GPU can hold: every pattern of bits is a value.
///
/// ```
/// use counterflow::{Communicator, Dtype, Error, Tensor, op::Element, prelude::bf16};
///
/// fn copy_of<T: Element>(rank: &Communicator, of: &[T]) -> Result<Tensor<T>, Error> {
///     let tensor = rank.zeros([of.len()])?;
///     tensor.write(of).map(|()| tensor)
/// }
///
/// let rank = &Communicator::emulated(1)?[0];
/// assert_eq!(copy_of(rank, &[1i64, 2, 3])?.read()?, [1, 2, 3]);
/// assert_eq!((bf16::TENSOR, i64::TENSOR), (Some(Dtype::Bf16), None)); // no schedule has tensors of i64
/// # Ok::<(), counterflow::Error>(())
/// ```
pub trait Element:
    DeviceRepr + ValidAsZeroBits + Copy + Default + Send + Sync + 'static + sealed::Sealed
{
    /// The element type of a schedule's tensor that it stands for, if it stands for one.
    const TENSOR: Option<Dtype>;

    /// Kind of the numbers.
    #[doc(hidden)]
    const KIND: Kind;

    /// The bytes of some numbers. Compiled here, where tests are optimised.
    #[doc(hidden)]
    fn to_bytes(values: &[Self]) -> Vec<u8>;

    /// The numbers of some bytes; less than one at the end is left out.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// A kind of numbers, as DLPack tells them apart.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Signed,
    Unsigned,
    Float,
    Bfloat,
    Float8E4M3,
    Float8E5M2,
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    (@) => { None };
    (@ $dtype:ident) => { Some(Dtype::$dtype) };
    ($($kind:ident: $($number:ty $(=> $dtype:ident)?),*;)*) => {$($(
        impl sealed::Sealed for $number {}
        impl Element for $number {
            const TENSOR: Option<Dtype> = elements!(@ $($dtype)?);
            const KIND: Kind = Kind::$kind;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(size_of_val(values));
                for value in values {
                    bytes.extend_from_slice(&value.to_le_bytes());
                }
                bytes
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                let (each, _) = bytes.as_chunks();
                each.iter().map(|own| <$number>::from_le_bytes(*own)).collect()
            }
        }
    )*)*};
}
elements! {
    Unsigned: u8, u16, u32, u64;
    Signed: i8, i16, i32, i64;
    Float: f32 => F32, f64, half::f16 => F16;
    Bfloat: half::bf16 => Bf16;
}

macro_rules! bytes {
    ($($number:ty => $dtype:ident, $kind:ident;)*) => {$(
        impl sealed::Sealed for $number {}
        impl Element for $number {
            const TENSOR: Option<Dtype> = Some(Dtype::$dtype);
            const KIND: Kind = Kind::$kind;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                values.iter().map(|value| value.to_bits()).collect()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.iter().map(|bits| <$number>::from_bits(*bits)).collect()
            }
        }
    )*};
}
bytes! {
    float8::F8E4M3 => E4M3, Float8E4M3;
    float8::F8E5M2 => E5M2, Float8E5M2;
}

/// Memory that is freed in the order of its stream. A strict capture of another thread's would end with that, and refuse it.
#[derive(Debug)]
pub(crate) struct Freed<T>(ManuallyDrop<CudaSlice<T>>);

impl<T> From<CudaSlice<T>> for Freed<T> {
    fn from(slice: CudaSlice<T>) -> Freed<T> {
        Freed(ManuallyDrop::new(slice))
    }
}

impl<T> Drop for Freed<T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped once, here, where nobody has the place any more.
        relaxed(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// `len` elements of zero bits, for use in the order of `stream`.
pub(crate) fn zeros<T: Element>(
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<CudaSlice<T>, Error> {
    relaxed(|| checked("allocate on the GPU", stream.alloc_zeros(len.max(1))))
}

/// `len` elements of whatever bits the memory has, for use in the order of `stream`.
pub(crate) fn unwritten<T: Element>(
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<CudaSlice<T>, Error> {
    // SAFETY: every pattern of bits is a value of the type.
    let allocate = || unsafe { stream.alloc(len.max(1)) };
    relaxed(|| checked("allocate on the GPU", allocate()))
}

/// The address of a cudarc slice, for work in the order of `stream`.
///
/// ```no_run
/// use counterflow::Communicator;
/// use counterflow::cuda::{CudaSlice, address_of};
///
/// let rank = &Communicator::local(1)?[0];
/// let stream = rank.gpu().cuda()?.stream()?;
/// let slice: CudaSlice<f32> = stream.alloc_zeros(1024).expect("memory");
/// println!("{:#x}", address_of(&slice, &stream).get());
/// # Ok::<(), counterflow::Error>(())
/// ```
pub fn address_of<T>(slice: &impl DevicePtr<T>, stream: &CudaStream) -> Address {
    Address(slice.device_ptr(stream).0)
}

/// So many bytes of pageable memory the driver takes at once, without waiting for the stream.
const AT_ONCE: usize = 64 << 10;

/// Copies to the GPU in stream order. `values` may be reused when this returns: the driver has read pageable memory by
/// then. More than 64 KiB wait for what is in the stream (see [`read`]).
pub(crate) fn write<T: Element>(
    stream: &CudaStream,
    to: Address,
    values: &[T],
) -> Result<(), Error> {
    if values.is_empty() {
        return Ok(());
    }
    checked("select the GPU", stream.context().bind_to_thread())?;
    let _mode = Relaxed::now();
    if size_of_val(values) > AT_ONCE {
        checked("wait for the GPU", stream.synchronize())?;
    }
    // SAFETY: the source is a slice and its type is plain bytes to the GPU; the caller's address has room for it, which
    // the types above this module see to.
    let code = unsafe {
        sys::cuMemcpyHtoDAsync_v2(
            to.0,
            values.as_ptr().cast(),
            size_of_val(values),
            stream.cu_stream(),
        )
    };
    check("copy to the GPU", code)
}

/// Copies from the GPU, after everything earlier in the stream.
///
/// It waits before it copies. The driver keeps a lock of the context while a copy to pageable memory waits: a peer that
/// shares the GPU could then make no event, and the launch that we wait for would not come (`notes/truth`).
pub(crate) fn read<T: Element>(
    stream: &CudaStream,
    from: Address,
    len: usize,
) -> Result<Vec<T>, Error> {
    let _mode = Relaxed::now();
    let mut values = vec![T::default(); len];
    if len > 0 {
        checked("wait for the GPU", stream.synchronize())?;
        // SAFETY: the destination is a vector of so many elements whose every bit pattern is a value (see `Element`),
        // and it lives until the stream has been waited for below.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                values.as_mut_ptr().cast(),
                from.0,
                size_of_val(&values[..]),
                stream.cu_stream(),
            )
        };
        check("copy from the GPU", code)?;
    }
    checked("wait for the GPU", stream.synchronize())?;
    Ok(values)
}

/// Copies within the GPUs' memory, in the order of the stream.
pub(crate) fn copy(
    stream: &CudaStream,
    to: Address,
    from: Address,
    bytes: u64,
) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    checked("select the GPU", stream.context().bind_to_thread())?;
    // SAFETY: both ranges belong to allocations of the caller's.
    let code =
        unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes as usize, stream.cu_stream()) };
    check("copy on the GPU", code)
}

/// Sets bytes, in the order of the stream.
pub(crate) fn fill(stream: &CudaStream, to: Address, byte: u8, bytes: u64) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    checked("select the GPU", stream.context().bind_to_thread())?;
    // SAFETY: the range belongs to the caller's allocation.
    let code = unsafe { sys::cuMemsetD8Async(to.0, byte, bytes as usize, stream.cu_stream()) };
    check("fill the GPU's memory", code)
}

/// True if the stream is empty. Does not wait.
pub(crate) fn is_done(stream: &CudaStream) -> Result<bool, Error> {
    // SAFETY: the stream is alive.
    let query = || unsafe { sys::cuStreamQuery(stream.cu_stream()) };
    passed(on(stream.context(), query)?)
}

/// Waits until the stream is empty.
pub(crate) fn synchronize(stream: &CudaStream) -> Result<(), Error> {
    relaxed(|| checked("wait for the GPU", stream.synchronize()))
}

/// Makes the stream's context this thread's current one.
pub(crate) fn bind(stream: &CudaStream) -> Result<(), Error> {
    checked("select the GPU", stream.context().bind_to_thread())
}

/// The priority of the stream's work: the smallest number comes first. Its context is current.
pub(crate) fn priority(stream: &CudaStream) -> Result<i32, Error> {
    let mut priority = 0;
    // SAFETY: the stream is alive, and the place is ours.
    let code = unsafe { sys::cuStreamGetPriority(stream.cu_stream(), &raw mut priority) };
    check("ask for a stream's priority", code).map(|()| priority)
}

/// True if the stream's work is recorded into a graph. Its context is current.
pub(crate) fn is_capturing(stream: &CudaStream) -> bool {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive, and the place is ours.
    let code = unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &raw mut status) };
    code == sys::CUresult::CUDA_SUCCESS
        && status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

impl Gpu {
    /// Waits for everything on this GPU.
    ///
    /// # Errors
    /// What any kernel ended with.
    pub fn synchronize(&self) -> Result<(), Error> {
        relaxed(|| checked("wait for the GPU", self.context().synchronize()))
    }
}
