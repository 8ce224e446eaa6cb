//! The driver's library, and what cudarc's bindings for some toolkits lack or spell differently.
//!
//! A program that embeds us chooses cudarc's toolkit (12.3 or later) and how its functions are bound: loaded, linked
//! dynamically or statically. So what is newer than 12.3 is looked up here, in the driver's library that cudarc's calls
//! go to. Structs are those of `cuda.h` (CUDA 13.0).

use cudarc::driver::sys::{self, CUresult};
use libloading::Library;
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::OnceLock;

/// As the driver installs it, and as its packages for development do.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The driver's library, if there is one. It stays loaded.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let load = || {
        let mut names = NAMES.iter();
        // SAFETY: it loads the driver's library, which cudarc's calls load or link, too.
        names.find_map(|name| unsafe { Library::new(*name) }.ok())
    };
    LIBRARY.get_or_init(load).as_ref()
}

/// True if the driver's library is there.
pub(super) fn is_there() -> bool {
    library().is_some()
}

/// True if the driver has a function of that name.
pub(super) fn has(name: &CStr) -> bool {
    // SAFETY: the symbol is only asked for, not called.
    library().is_some_and(|library| unsafe { library.get::<*const c_void>(name).is_ok() })
}

/// Looks up a function once, and calls it. Without it the call is refused as one that the driver does not know.
macro_rules! call {
    ($name:literal as fn($($type:ty),* $(,)?), $($value:expr),* $(,)?) => {{
        type Called = unsafe extern "C" fn($($type),*) -> CUresult;
        static FOUND: OnceLock<Option<Called>> = OnceLock::new();
        // SAFETY: the driver's function of this name has this type.
        let found = FOUND.get_or_init(|| unsafe {
            let symbol = library()?.get::<Called>($name).ok()?;
            Some(*symbol)
        });
        match found {
            // SAFETY: the caller says that the arguments are as the driver wants them.
            Some(called) => unsafe { called($($value),*) },
            None => CUresult::CUDA_ERROR_NOT_FOUND,
        }
    }};
}

/// `CUctxCreateParams`.
#[repr(C)]
struct ContextParameters {
    affinity: *mut c_void,
    count: c_int,
    graphics: *mut c_void,
}

/// Makes a context without special parameters, current on this thread.
pub(super) fn make_context(context: &mut sys::CUcontext, device: sys::CUdevice) -> CUresult {
    let mut ordinary = ContextParameters {
        affinity: ptr::null_mut(),
        count: 0,
        graphics: ptr::null_mut(),
    };
    call!(
        b"cuCtxCreate_v4\0"
            as fn(*mut sys::CUcontext, *mut ContextParameters, c_uint, sys::CUdevice),
        context,
        &raw mut ordinary,
        0,
        device
    )
}

/// Loads a function's code onto the GPU.
///
/// # Safety
/// It is a function of a module that is loaded.
pub(super) unsafe fn load_function(function: sys::CUfunction) -> CUresult {
    call!(b"cuFuncLoad\0" as fn(sys::CUfunction), function)
}

/// The place and the size of a function's parameter.
///
/// # Safety
/// It is a function of a module that is loaded.
pub(super) unsafe fn parameter(
    function: sys::CUfunction,
    index: usize,
    [offset, size]: [&mut usize; 2],
) -> CUresult {
    call!(
        b"cuFuncGetParamInfo\0" as fn(sys::CUfunction, usize, *mut usize, *mut usize),
        function,
        index,
        offset,
        size
    )
}

/// `CUmemLocation`: a union from 13.2 on, in the same place.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    kind: c_uint,
    id: c_int,
}

/// Nowhere in particular.
const ANYWHERE: Location = Location { kind: 0, id: 0 };

impl Location {
    /// Memory of the GPU with this number.
    pub fn gpu(id: i32) -> Location {
        Location {
            kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint,
            id,
        }
    }

    /// As cudarc's calls take it.
    pub fn theirs(self) -> sys::CUmemLocation {
        // SAFETY: both are the struct of `cuda.h`, and a GPU is a legal type of a location in all versions.
        unsafe { std::mem::transmute(self) }
    }

    /// The GPU that it is.
    pub fn on_gpu(theirs: sys::CUmemLocation) -> Option<i32> {
        // SAFETY: both are the struct of `cuda.h`, and every number is a legal one here.
        let Location { kind, id } =
            unsafe { std::mem::transmute::<sys::CUmemLocation, Location>(theirs) };
        (kind == Location::gpu(id).kind).then_some(id)
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
struct CopyAttributes {
    order: c_uint,
    from: Location,
    to: Location,
    flags: c_uint,
}

/// `CUmemcpy3DOperand` of a pointer.
#[repr(C)]
struct Operand {
    kind: c_uint,
    start: u64,
    pitch: usize,
    lines: usize,
    hint: Location,
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
struct LinesCopy {
    from: Operand,
    to: Operand,
    extent: [usize; 3],
    order: c_uint,
    flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
const IN_ORDER: c_uint = 1;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`: by a copy engine.
const BESIDE: c_uint = 1;
/// `CU_MEMCPY_OPERAND_TYPE_POINTER`.
const POINTER: c_uint = 1;

/// Copies bytes by a copy engine, in the stream's order.
///
/// # Safety
/// Both ranges are memory of GPUs that reach each other, until the copy is done.
pub(super) unsafe fn copy(
    stream: sys::CUstream,
    mut to: u64,
    mut from: u64,
    bytes: u64,
) -> CUresult {
    let (mut bytes, mut first) = (bytes as usize, 0);
    let mut how = CopyAttributes {
        order: IN_ORDER,
        from: ANYWHERE,
        to: ANYWHERE,
        flags: BESIDE,
    };
    call!(
        b"cuMemcpyBatchAsync_v2\0"
            as fn(
                *mut u64,
                *mut u64,
                *mut usize,
                usize,
                *mut CopyAttributes,
                *mut usize,
                usize,
                sys::CUstream,
            ),
        &raw mut to,
        &raw mut from,
        &raw mut bytes,
        1,
        &raw mut how,
        &raw mut first,
        1,
        stream
    )
}

/// Copies lines of bytes. Both ends have a start and a pitch.
///
/// # Safety
/// As for [`copy`], line by line.
pub(super) unsafe fn copy_lines(
    stream: sys::CUstream,
    to: (u64, u64),
    from: (u64, u64),
    (bytes, lines): (u64, u64),
) -> CUresult {
    let operand = |(start, pitch): (u64, u64)| Operand {
        kind: POINTER,
        start,
        pitch: pitch as usize,
        lines: lines as usize,
        hint: ANYWHERE,
    };
    let mut all = LinesCopy {
        from: operand(from),
        to: operand(to),
        extent: [bytes as usize, lines as usize, 1],
        order: IN_ORDER,
        flags: BESIDE,
    };
    call!(
        b"cuMemcpy3DBatchAsync_v2\0" as fn(usize, *mut LinesCopy, c_ulonglong, sys::CUstream),
        1,
        &raw mut all,
        0,
        stream
    )
}

/// Tests have the bindings for 13.0 ([dev-dependencies]).
#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    fn like<T, U>() {
        assert_eq!(size_of::<T>(), size_of::<U>());
        assert_eq!(align_of::<T>(), align_of::<U>());
    }

    #[test]
    fn structs_are_those_of_the_driver() {
        like::<Location, sys::CUmemLocation>();
        like::<ContextParameters, sys::CUctxCreateParams>();
        like::<CopyAttributes, sys::CUmemcpyAttributes>();
        like::<Operand, sys::CUmemcpy3DOperand>();
        like::<LinesCopy, sys::CUDA_MEMCPY3D_BATCH_OP>();
        assert_eq!(
            [
                offset_of!(CopyAttributes, to),
                offset_of!(CopyAttributes, flags),
                offset_of!(LinesCopy, to),
                offset_of!(LinesCopy, extent),
                offset_of!(LinesCopy, order),
                offset_of!(Operand, start),
            ],
            [
                offset_of!(sys::CUmemcpyAttributes, dstLocHint),
                offset_of!(sys::CUmemcpyAttributes, flags),
                offset_of!(sys::CUDA_MEMCPY3D_BATCH_OP, dst),
                offset_of!(sys::CUDA_MEMCPY3D_BATCH_OP, extent),
                offset_of!(sys::CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder),
                offset_of!(sys::CUmemcpy3DOperand, op),
            ]
        );
        type Pointer = sys::CUmemcpy3DOperand_st__bindgen_ty_1__bindgen_ty_1;
        let within = [
            offset_of!(Operand, pitch),
            offset_of!(Operand, lines),
            offset_of!(Operand, hint),
        ];
        let theirs = [
            offset_of!(Pointer, rowLength),
            offset_of!(Pointer, layerHeight),
            offset_of!(Pointer, locHint),
        ];
        assert_eq!(within.map(|at| at - offset_of!(Operand, start)), theirs);
        let numbers = [
            sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as u32,
            sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
            sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER as u32,
            sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID as u32,
        ];
        assert_eq!(numbers, [IN_ORDER, BESIDE, POINTER, ANYWHERE.kind]);
        let gpu = Location::gpu(3).theirs();
        assert_eq!((gpu.id, Location::on_gpu(gpu)), (3, Some(3)));
        let host = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
            id: 3,
        };
        assert_eq!(Location::on_gpu(host), None);
    }
}
