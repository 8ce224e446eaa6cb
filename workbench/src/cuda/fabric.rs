//! State of a GPU in the NVSwitch fabric. nvml-wrapper has no function for it, so this binds NVML's own.

use libloading::os::unix::Library;
use nvml_wrapper::Device;
use std::ffi::{c_uchar, c_uint, c_void};

/// A GPU's place in the NVSwitch fabric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fabric {
    pub state: FabricState,
    /// NVML's status of the probe for the fabric, 0 if all is well. It counts once the state is [`FabricState::Done`].
    pub status: u32,
    /// True if the links run at less than their full rate.
    pub degraded: bool,
    /// True if a route through the switches is broken or being mended.
    pub unhealthy: bool,
}

/// State of the GPU's registration with the fabric manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FabricState {
    /// This machine has no such fabric.
    None,
    NotStarted,
    InProgress,
    Done,
    /// A state that this version does not know.
    Other(u8),
}

/// `nvmlGpuFabricInfo_v2_t` of nvml.h.
#[repr(C)]
struct Info {
    version: c_uint,
    cluster: [c_uchar; 16],
    status: c_uint,
    clique: c_uint,
    state: c_uchar,
    health: c_uint,
}

/// `NVML_STRUCT_VERSION(GpuFabricInfo, 2)`: the size, and the version in the highest byte.
const VERSION: c_uint = size_of::<Info>() as c_uint | 2 << 24;
const TRUE: c_uint = 1;

impl Fabric {
    /// Asks NVML about a GPU. None if this driver cannot tell.
    pub fn of(device: &Device<'_>) -> Option<Fabric> {
        // SAFETY: NVML is loaded already, as the device shows, so nothing new runs.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        type Ask = unsafe extern "C" fn(*mut c_void, *mut Info) -> c_uint;
        // SAFETY: nvml.h declares the function so.
        let ask = unsafe { library.get::<Ask>(b"nvmlDeviceGetGpuFabricInfoV\0") }.ok()?;
        let mut info = Info {
            version: VERSION,
            cluster: [0; 16],
            status: 0,
            clique: 0,
            state: 0,
            health: 0,
        };
        // SAFETY: the handle is the device's, which lives; the struct is ours and says its version.
        let code = unsafe { ask(device.handle().cast(), &raw mut info) };
        (code == 0).then(|| Fabric::read(info.state, info.status, info.health))
    }

    /// Two bits of the mask say each of these: 1 is yes, 2 no, 0 not told.
    fn read(state: u8, status: u32, health: u32) -> Fabric {
        let says = |shift: u32| health >> shift & 3 == TRUE;
        Fabric {
            state: match state {
                0 => FabricState::None,
                1 => FabricState::NotStarted,
                2 => FabricState::InProgress,
                3 => FabricState::Done,
                other => FabricState::Other(other),
            },
            status,
            degraded: says(0),
            unhealthy: says(2) || says(4) || says(6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmls_struct_has_its_documented_size_and_version() {
        assert_eq!(size_of::<Info>(), 36);
        assert_eq!(VERSION, 0x0200_0024);
    }

    #[test]
    fn a_mask_of_health_is_read_two_bits_at_a_time() {
        let read = |health| {
            let fabric = Fabric::read(3, 0, health);
            assert_eq!(fabric.state, FabricState::Done);
            (fabric.degraded, fabric.unhealthy)
        };
        assert_eq!(read(0), (false, false));
        assert_eq!(read(0b10_10_10_10), (false, false), "each says no");
        assert_eq!(read(0b10_10_10_01), (true, false));
        for mask in [0b10_10_01_10, 0b10_01_10_10, 0b01_10_10_10] {
            assert_eq!(read(mask), (false, true), "{mask:b}");
        }
    }
}
