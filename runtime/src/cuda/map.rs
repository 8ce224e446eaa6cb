//! Tensor maps, which describe tensors to TMA. Always 4-D: {columns, rows in a shard, shard or slot, rank}.

use super::Address;
use super::driver::check;
use crate::error::Error;
use counterflow_codegen::dtype::Dtype;
use cudarc::driver::sys;

/// A tensor and its boxes.
///
/// ```no_run
/// use counterflow::cuda::{Arguments, MapSpec, TensorMap};
/// use counterflow::{Communicator, Dtype};
///
/// let rank = &Communicator::local(1)?[0];
/// let x = rank.zeros::<counterflow::prelude::bf16>([512, 1024])?;
/// let spec = MapSpec {
///     dtype: Dtype::Bf16,
///     size: [1024, 512, 1, 1],
///     stride: [2 * 1024, 2 * 1024 * 512, 2 * 1024 * 512],
///     tile: [64, 128], // 128 rows of 128 bytes
///     swizzled: true,
/// };
/// let map: TensorMap = spec.encode(x.address())?;
/// let mut arguments = Arguments::new();
/// arguments.map(&map);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSpec {
    /// Element type of the tensor.
    pub dtype: Dtype,
    /// Elements along columns, rows, shards, ranks. Parts of a box beyond them are read as zero and not written.
    pub size: [u64; 4],
    /// Bytes from one row, shard and rank to the next.
    pub stride: [u64; 3],
    /// Columns and rows of a box.
    pub tile: [u32; 2],
    /// True if a box lies in shared memory with the swizzle of its width, as tensor cores read it; otherwise row after row.
    pub swizzled: bool,
}

/// An encoded map, for a kernel's parameters.
///
/// [`MapSpec`] has an example.
#[derive(Clone, Copy)]
pub struct TensorMap(pub(super) sys::CUtensorMap);

impl std::fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TensorMap(..)")
    }
}

impl MapSpec {
    /// TMA's requirements of a map. The driver would only report an invalid value.
    pub(crate) fn check(&self, address: Address) -> Result<(), Error> {
        let element = u64::from(self.dtype.bytes());
        let refuse = |what: String, legal: &str| {
            Err(Error::Usage {
                what,
                legal: legal.into(),
            })
        };
        if !address.0.is_multiple_of(16) {
            return refuse(
                "a tensor at an address that is not a multiple of 16".into(),
                "align tensors to 16 bytes",
            );
        }
        if let Some(stride) = self
            .stride
            .iter()
            .find(|stride| **stride % 16 != 0 || **stride >= 1 << 40)
        {
            return refuse(
                format!("rows, shards or ranks {stride} bytes apart"),
                "multiples of 16 below 1 TiB: choose K and N so, or give a leading dimension",
            );
        }
        if let Some(size) = self
            .size
            .iter()
            .find(|size| **size == 0 || **size > 1 << 32)
        {
            return refuse(format!("a dimension of {size}"), "1 to 2^32 elements");
        }
        let row = u64::from(self.tile[0]) * element;
        if !self.swizzled {
            let fits = self.tile.iter().all(|side| (1..=256).contains(side));
            if !fits || !row.is_multiple_of(16) {
                return refuse(
                    format!("boxes of {} rows of {row} bytes", self.tile[1]),
                    "up to 256 rows and columns, a multiple of 16 bytes a row",
                );
            }
            return Ok(());
        }
        if ![32, 64, 128].contains(&row) || !(1..=256).contains(&self.tile[1]) {
            return refuse(
                format!("boxes of {} rows of {row} bytes", self.tile[1]),
                "up to 256 rows of 32, 64 or 128 bytes: one swizzle atom",
            );
        }
        Ok(())
    }

    /// The map of the tensor at that address.
    ///
    /// # Errors
    /// [`Error::Usage`] with what TMA cannot do.
    pub fn encode(&self, address: Address) -> Result<TensorMap, Error> {
        self.check(address)?;
        let dtype = match self.dtype {
            Dtype::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Dtype::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Dtype::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            // TMA moves bytes: it does not look at them.
            Dtype::E4M3 | Dtype::E5M2 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        let swizzle = match self.tile[0] * self.dtype.bytes() {
            _ if !self.swizzled => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        };
        let tile = [self.tile[0], self.tile[1], 1, 1];
        let steps = [1u32; 4];
        let mut map = TensorMap(sys::CUtensorMap { opaque: [0; 16] });
        // SAFETY: the map is as aligned as its type; four sizes, three strides, four boxes and four steps are there.
        // The address is only written down.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map.0,
                dtype,
                4,
                address.0 as *mut std::ffi::c_void,
                self.size.as_ptr(),
                self.stride.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(
            format_args!("describe a tensor of {:?} to TMA", self.size),
            code,
        )?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tma_cannot_do_is_said_before_the_driver_is_asked() {
        let fine = MapSpec {
            dtype: Dtype::Bf16,
            size: [72, 100, 1, 1],
            stride: [144, 14400, 14400],
            tile: [64, 128],
            swizzled: true,
        };
        assert!(fine.check(Address(1024)).is_ok());
        assert!(fine.check(Address(1032)).is_err());
        for wrong in [
            MapSpec {
                stride: [140, 14000, 14000],
                ..fine
            },
            MapSpec {
                size: [72, 0, 1, 1],
                ..fine
            },
            MapSpec {
                tile: [128, 128],
                ..fine
            },
            MapSpec {
                tile: [64, 257],
                ..fine
            },
        ] {
            let error = wrong.check(Address(1024)).expect_err("refused");
            assert_eq!(error.kind(), "usage", "{error}");
        }
    }
}
