//! What a stream does without a kernel: copies by copy engines, and waits for and stores in a cell.

use super::driver::{check, checked};
use super::{Address, Gpu};
use crate::error::Error;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;

/// One memory operation of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryOp {
    /// What follows in the stream waits until the 64 bits there are at least `value`.
    AtLeast { cell: Address, value: u64 },
    /// Stores 64 bits there, after a fence at system scope: all that came before in the stream is visible first.
    Store { cell: Address, value: u64 },
}

/// The driver takes so many at once.
const MOST: usize = 256;

/// Enqueues memory operations, in order.
pub(crate) fn memory_ops(stream: &CudaStream, ops: &[MemoryOp]) -> Result<(), Error> {
    if ops.is_empty() {
        return Ok(());
    }
    checked("select the GPU", stream.context().bind_to_thread())?;
    for ops in ops.chunks(MOST) {
        let mut params: Vec<_> = ops.iter().map(param).collect();
        // SAFETY: as many filled structs as is said; the addresses are cells of the heap or pinned memory, which the
        // types above this module keep alive while the stream runs.
        let code = unsafe {
            sys::cuStreamBatchMemOp_v2(
                stream.cu_stream(),
                params.len() as u32,
                params.as_mut_ptr(),
                0,
            )
        };
        check("enqueue waits and signals", code)?;
    }
    Ok(())
}

fn param(op: &MemoryOp) -> sys::CUstreamBatchMemOpParams {
    use sys::CUstreamBatchMemOpType as Type;
    match *op {
        MemoryOp::AtLeast { cell, value } => sys::CUstreamBatchMemOpParams {
            waitValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
                operation: Type::CU_STREAM_MEM_OP_WAIT_VALUE_64,
                address: cell.0,
                __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
                    value64: value,
                },
                flags: sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
                alias: 0,
            },
        },
        MemoryOp::Store { cell, value } => sys::CUstreamBatchMemOpParams {
            writeValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                operation: Type::CU_STREAM_MEM_OP_WRITE_VALUE_64,
                address: cell.0,
                __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                    value64: value,
                },
                flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
                alias: 0,
            },
        },
    }
}

/// Lines of bytes, so far apart at either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy2d {
    /// Where the first goes, and bytes from one to the next.
    pub to: (Address, u64),
    /// Where the first is, and bytes from one to the next.
    pub from: (Address, u64),
    /// Bytes of a line.
    pub bytes: u64,
    /// How many.
    pub lines: u64,
}

/// Copies between GPUs that reach each other, or within one, in the order of the stream.
pub(crate) fn copy(stream: &CudaStream, copy: &Copy2d) -> Result<(), Error> {
    checked("select the GPU", stream.context().bind_to_thread())?;
    let Copy2d {
        to,
        from,
        bytes,
        lines,
    } = *copy;
    let code = if lines == 1 {
        // SAFETY: both ranges lie in tensors whose sizes were compared with what the plan needs.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to.0.0, from.0.0, bytes as usize, stream.cu_stream()) }
    } else {
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.0.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.1 as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.1 as usize,
            WidthInBytes: bytes as usize,
            Height: lines as usize,
        };
        // SAFETY: as above, line by line.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.cu_stream()) }
    };
    check(format_args!("copy {lines} x {bytes} bytes"), code)
}

impl Gpu {
    /// A stream for copies: its own, not behind the default one, and before kernels where the GPU must choose.
    pub(crate) fn copy_stream(&self) -> Result<Arc<CudaStream>, Error> {
        self.bind()?;
        let wide = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        let can = checked("ask the GPU", self.context().attribute(wide))?;
        if can == 0 {
            return Err(super::driver::none(
                &format!("{}'s streams cannot wait for 64 bits", self.name()),
                "a #[comm] loop moves the same data by CTAs",
            ));
        }
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both places are ours, and a context is current.
        let code = unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) };
        check("ask for stream priorities", code)?;
        checked(
            "make a stream",
            self.context().new_stream_with_priority(greatest),
        )
    }
}
