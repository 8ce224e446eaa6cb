//! The structs of DLPack, by which libraries hand tensors to each other, and what owns one.

use super::{Address, Element, Kind};
use crate::error::Error;
use dlpack_rs::ffi::{
    DLDataType, DLDataTypeCode as Code, DLDevice, DLDeviceType, DLPACK_FLAG_BITMASK_READ_ONLY,
};
use dlpack_rs::safe::{TensorInfo, pack_versioned};
use std::ptr::NonNull;

/// The standard's struct, of version 1.
///
/// ```
/// use counterflow::{Communicator, dlpack::ManagedTensor};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let mut raw = rank.zeros::<f32>([4, 8])?.to_dlpack(rank.stream())?.into_raw();
/// // SAFETY: it was just made, and nobody else has it.
/// let given: &mut ManagedTensor = unsafe { raw.as_mut() };
/// assert_eq!((given.version.major, given.dl_tensor.ndim), (1, 2));
/// // SAFETY: the same; this deletes it.
/// drop(unsafe { counterflow::dlpack::Managed::from_raw(raw) });
/// # Ok::<(), counterflow::Error>(())
/// ```
pub type ManagedTensor = dlpack_rs::ffi::DLManagedTensorVersioned;

/// The standard's version that we write and read.
const MAJOR: u32 = 1;

/// A tensor on its way to another library or from one. If it is dropped, its deleter is called.
///
/// ```
/// use counterflow::{Communicator, dlpack::Managed};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let given: Managed = rank.zeros::<f32>([4, 8])?.to_dlpack(rank.stream())?;
/// let raw = given.into_raw(); // for a library that calls the deleter
/// // SAFETY: it is whole, and nobody else has it.
/// let back = unsafe { Managed::from_raw(raw) };
/// drop(back); // the deleter frees the tensor
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Managed(NonNull<ManagedTensor>);

// SAFETY: ours may be deleted from any thread, and for others' `from_raw` asks for it.
unsafe impl Send for Managed {}
// SAFETY: by a shared reference it is only read, and nobody else has it.
unsafe impl Sync for Managed {}

/// The device of emulated memory, which no other library can address: the standard's "extension" device.
const EMULATED: u32 = DLDeviceType::kDLExtDev;

/// Device that has memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    kind: u32,
    ordinal: i32,
}

impl Home {
    /// A GPU.
    pub(crate) fn gpu(emulated: bool, ordinal: u32) -> Home {
        Home {
            kind: match emulated {
                true => EMULATED,
                false => DLDeviceType::kDLCUDA,
            },
            ordinal: ordinal as i32,
        }
    }
}

impl std::fmt::Display for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            EMULATED => write!(f, "emulated GPU {}", self.ordinal),
            DLDeviceType::kDLCUDA => write!(f, "GPU {}", self.ordinal),
            DLDeviceType::kDLCPU => f.write_str("the host"),
            other => write!(f, "device {} of DLPack's kind {other}", self.ordinal),
        }
    }
}

/// Element type in DLPack's words.
fn element<T: Element>() -> DLDataType {
    DLDataType {
        code: match T::KIND {
            Kind::Signed => Code::kDLInt,
            Kind::Unsigned => Code::kDLUInt,
            Kind::Float => Code::kDLFloat,
            Kind::Bfloat => Code::kDLBfloat,
            Kind::Float8E4M3 => Code::kDLFloat8_e4m3fn,
            Kind::Float8E5M2 => Code::kDLFloat8_e5m2,
        } as u8,
        bits: 8 * size_of::<T>() as u8,
        lanes: 1,
    }
}

/// Description that another library gives of its tensor.
pub(crate) struct Contents {
    pub start: Address,
    pub shape: Vec<usize>,
    /// True if nobody may write it.
    pub read_only: bool,
}

impl Managed {
    /// Rows of elements, one after another, in memory that `keeps` keeps until the deleter is called.
    pub(crate) fn pack<T: Element>(
        keeps: impl Send + Sync + 'static,
        at: Address,
        device: Home,
        (shape, read_only): (&[usize], bool),
    ) -> Managed {
        let size = |size: &usize| *size as i64;
        let place = DLDevice {
            device_type: device.kind,
            device_id: device.ordinal,
        };
        let info = TensorInfo::strided(
            at.0 as *mut std::ffi::c_void,
            place,
            element::<T>(),
            shape.iter().map(size).collect(),
            strides(shape),
        );
        let flags = if read_only {
            DLPACK_FLAG_BITMASK_READ_ONLY
        } else {
            0
        };
        let packed = pack_versioned(keeps, info, flags);
        // SAFETY: it comes from a box.
        Managed(unsafe { NonNull::new_unchecked(packed) })
    }

    /// Takes over what another library made.
    ///
    /// # Safety
    /// It is a whole struct of the standard's version 1, which nobody else deletes, and whose deleter may be called from
    /// any thread.
    pub unsafe fn from_raw(raw: NonNull<ManagedTensor>) -> Managed {
        Managed(raw)
    }

    /// Hands it to another library, which calls the deleter once it needs the memory no more.
    pub fn into_raw(self) -> NonNull<ManagedTensor> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Checks that the tensor has `T`s on that device, one row after another, and gives its description.
    ///
    /// # Errors
    /// [`Error::Usage`] for what it is instead.
    pub(crate) fn contents<T: Element>(&self, device: Home) -> Result<Contents, Error> {
        let refuse = |what: String, legal: String| Err(Error::Usage { what, legal });
        // SAFETY: the struct is whole, and stays until this is dropped.
        let managed = unsafe { self.0.as_ref() };
        if managed.version.major != MAJOR {
            return refuse(
                format!("a tensor of DLPack {}", managed.version.major),
                format!("version {MAJOR}"),
            );
        }
        let tensor = &managed.dl_tensor;
        let on = Home {
            kind: tensor.device.device_type,
            ordinal: tensor.device.device_id,
        };
        if on != device {
            return refuse(format!("a tensor on {on}"), format!("one on {device}"));
        }
        let (held, wanted) = (tensor.dtype, element::<T>());
        let parts = |of: DLDataType| (of.code, of.bits, of.lanes);
        if parts(held) != parts(wanted) {
            return refuse(
                format!(
                    "elements of DLPack's kind {} with {} bits and {} lanes",
                    held.code, held.bits, held.lanes
                ),
                format!(
                    "{}: kind {} with {} bits and 1 lane",
                    std::any::type_name::<T>(),
                    wanted.code,
                    wanted.bits
                ),
            );
        }
        // SAFETY: a struct of the standard has as many extents as it says, and as many strides or none.
        let shape = unsafe { numbers(tensor.shape, tensor.ndim) };
        // SAFETY: as above.
        let given = unsafe { numbers(tensor.strides, tensor.ndim) };
        let sizes = shape.iter().map(|size| usize::try_from(*size));
        let Ok(sizes) = sizes.collect::<Result<Vec<_>, _>>() else {
            return refuse(format!("extents of {shape:?}"), "none below zero".into());
        };
        // What has one element in a dimension, or none at all, may have any stride there.
        let all = given.iter().zip(strides(&sizes)).zip(&sizes);
        let apart = |((given, own), size): ((&i64, i64), &usize)| *size > 1 && *given != own;
        if !sizes.contains(&0) && all.into_iter().any(apart) {
            return refuse(
                format!("extents of {sizes:?} with strides of {given:?}"),
                "one row after another: make it contiguous".into(),
            );
        }
        let start = (tensor.data as u64).checked_add(tensor.byte_offset);
        match start {
            Some(start) => Ok(Contents {
                start: Address(start),
                shape: sizes,
                read_only: managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0,
            }),
            None => refuse(
                "an offset beyond all addresses".into(),
                "a smaller one".into(),
            ),
        }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the struct is whole, and nobody else has it.
        if let Some(deleter) = unsafe { self.0.as_ref() }.deleter {
            // SAFETY: it is the struct's own deleter, called once: nothing has the struct any more.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

/// Elements from one index to the next in each dimension, one row after another.
fn strides(shape: &[usize]) -> Vec<i64> {
    let mut next = 1i64;
    let mut strides: Vec<i64> = shape
        .iter()
        .rev()
        .map(|size| {
            let own = next;
            next = next.saturating_mul(*size as i64);
            own
        })
        .collect();
    strides.reverse();
    strides
}

/// So many numbers, or none.
///
/// # Safety
/// `at` is null, or has them while the result is used.
unsafe fn numbers<'a>(at: *const i64, count: i32) -> &'a [i64] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if !at.is_null() => unsafe { std::slice::from_raw_parts(at, count) },
        Ok(_) | Err(_) => &[],
    }
}
