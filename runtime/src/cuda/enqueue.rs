//! A stream's operations without a kernel: copies by copy engine, and waits and stores in a cell.

use super::driver::{check, checked};
use super::{Address, Gpu, later};
use crate::error::Error;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;

/// One memory operation of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryOp {
    /// The stream waits until the 64 bits there are at least `value`.
    AtLeast { cell: Address, value: u64 },
    /// Stores 64 bits there, after a fence at system scope: everything earlier in the stream is visible first.
    Store { cell: Address, value: u64 },
}

/// The most operations that the driver takes at once.
const MOST: usize = 256;

/// Enqueues memory operations, in order. The stream's context is current.
pub(crate) fn memory_ops(stream: &CudaStream, ops: &[MemoryOp]) -> Result<(), Error> {
    memory_ops_in(stream.cu_stream(), ops)
}

/// Enqueues memory operations in a stream of whatever library.
pub(super) fn memory_ops_in(stream: sys::CUstream, ops: &[MemoryOp]) -> Result<(), Error> {
    for ops in ops.chunks(MOST) {
        let mut params: Vec<_> = ops.iter().map(param).collect();
        // SAFETY: as many filled structs as is said; the addresses are cells of the heap or pinned memory, which the
        // types above this module keep alive while the stream runs.
        let code = unsafe {
            sys::cuStreamBatchMemOp_v2(stream, params.len() as u32, params.as_mut_ptr(), 0)
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

/// Lines of bytes, with a pitch at either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lines2d {
    /// Destination of the first line, and bytes from one line to the next.
    pub to: (Address, u64),
    /// Source of the first line, and bytes from one line to the next.
    pub from: (Address, u64),
    /// Bytes of a line.
    pub bytes: u64,
    /// Number of lines.
    pub lines: u64,
}

/// Copies between GPUs that reach each other, or within one, in stream order. It asks for a copy engine: a kernel of
/// the driver would find no free SM beside a kernel that takes every SM until the copy is done. The stream's context is
/// current.
pub(crate) fn copy_lines(stream: &CudaStream, copy: &Lines2d) -> Result<(), Error> {
    let [to, from] = [copy.to, copy.from].map(|(start, pitch)| (start.0, pitch));
    let stream = stream.cu_stream();
    // SAFETY: both ranges lie in tensors whose sizes were compared with what the plan needs, line by line.
    let code = unsafe {
        match copy.lines {
            1 => later::copy(stream, to.0, from.0, copy.bytes),
            lines => later::copy_lines(stream, to, from, (copy.bytes, lines)),
        }
    };
    check(
        format_args!("copy {} x {} bytes", copy.lines, copy.bytes),
        code,
    )
}

impl Gpu {
    /// A separate stream for copies. It does not wait for the default stream, and has priority over kernels.
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
