//! A CUDA driver and an NVML of a machine with two H100s, for tests of `doctor` on machines without one. A test compiles
//! it as a library of its own. `FAKE_DRIVER` says what is wrong with the machine. What would open a GPU, make something or
//! set something ends the process: `doctor` only asks.
#![allow(non_snake_case, unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Status = c_int;

fn machine_is(what: &str) -> bool {
    std::env::var("FAKE_DRIVER").is_ok_and(|said| said == what)
}

/// Whether a call hangs.
static HANGS: AtomicBool = AtomicBool::new(false);

fn hang() -> ! {
    HANGS.store(true, Ordering::Relaxed);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Its own function at the end of a process waits for a call that hangs, as a driver's may.
extern "C" fn end() {
    if HANGS.load(Ordering::Relaxed) {
        hang();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

macro_rules! forbidden {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            eprintln!(concat!(stringify!($name), " was called"));
            std::process::abort();
        })*
    };
}

forbidden! {
    cuMemAddressReserve cuMemCreate cuMemMap cuMemSetAccess cuMemRetainAllocationHandle
    cuMemGetAllocationPropertiesFromHandle cuMemGetAddressRange_v2 cuMemExportToShareableHandle
    cuMemImportFromShareableHandle cuMemHostRegister_v2 cuMemHostUnregister cuMemHostGetDevicePointer_v2
    cuTensorMapEncodeTiled cuLaunchKernelEx cuFuncGetParamInfo cuFuncLoad cuDeviceGetDefaultMemPool cuDeviceGetMemPool
    cuMemPoolSetAttribute cuDevicePrimaryCtxRetain cuCtxCreate_v4 cuCtxCreate_v2 cuCtxGetId cuStreamBatchMemOp_v2
    cuMemcpy3DBatchAsync_v2
    nvmlDeviceSetPersistenceMode nvmlDeviceSetComputeMode nvmlDeviceSetMigMode nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetGpuLockedClocks nvmlDeviceSetApplicationsClocks nvmlDeviceResetApplicationsClocks
    nvmlDeviceClearEccErrorCounts nvmlDeviceResetNvLinkErrorCounters
}

#[cfg(not(old))]
forbidden! { cuMemcpyBatchAsync_v2 }

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: c_uint) -> Status {
    match std::env::var("FAKE_DRIVER").as_deref() {
        Ok("hangs") => hang(),
        Ok("no fabric manager") => 802,
        Ok("no gpu") => 100,
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    unsafe { *version = 13000 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    unsafe { *count = 2 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    _: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Status {
    unsafe { (*flags, *active) = (0, 0) };
    0
}

/// Numbers of cuda.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> Status {
    let told = match attribute {
        16 => 132,            // multiprocessors
        20 => 0,              // compute mode
        33 => 0x1b + device,  // PCI bus
        34 | 50 => 0,         // PCI device, domain
        75 => 9,              // compute capability: major
        76 => 0,              // minor
        102 | 103 | 132 => 1, // virtual memory, file descriptors, multicast
        128 => 0,             // fabric handles
        _ => return 1,
    };
    unsafe { *value = told };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _: c_int) -> Status {
    text(name, length as usize, "NVIDIA H100 80GB HBM3")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> Status {
    unsafe { *bytes = 80 << 30 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Status {
    unsafe { *uuid = [device as u8; 16] };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, _: c_int, _: c_int) -> Status {
    unsafe { *can = c_int::from(!machine_is("no peers")) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    one: c_int,
    other: c_int,
) -> Status {
    assert!(attribute == 3 && one != other);
    unsafe { *value = c_int::from(!machine_is("no peers")) };
    0
}

fn text(place: *mut c_char, length: usize, text: &str) -> Status {
    assert!(text.len() < length);
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // The caller's place has that length.
        unsafe { *place.add(at) = byte as c_char };
    }
    0
}

// ---- NVML: a device is its number and one, as a pointer ----

type Device = *mut c_void;

const NOT_SUPPORTED: Status = 3;

fn number(device: Device) -> u32 {
    device as usize as u32 - 1
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Status {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Status {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(place: *mut c_char, length: c_uint) -> Status {
    text(place, length as usize, "580.95.05")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    unsafe { *count = 2 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut Device,
) -> Status {
    unsafe { *device = (index as usize + 1) as Device };
    0
}

#[repr(C)]
pub struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    sub_system: c_uint,
    name: [c_char; 32],
}

unsafe fn place(info: *mut PciInfo, bus: u32) -> Status {
    let info = unsafe { &mut *info };
    (info.domain, info.bus, info.device) = (0, bus, 0);
    text(
        info.name.as_mut_ptr(),
        32,
        &format!("00000000:{bus:02X}:00.0"),
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, info: *mut PciInfo) -> Status {
    unsafe { place(info, 0x1b + number(device)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    _: Device,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> Status {
    unsafe { (*now, *pending) = (0, 0) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(_: Device, on: *mut c_uint) -> Status {
    unsafe { *on = 1 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: Device,
    milli: *mut c_uint,
) -> Status {
    let low = machine_is("low power") && number(device) == 1;
    unsafe { *milli = if low { 500_000 } else { 700_000 } };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementDefaultLimit(
    _: Device,
    milli: *mut c_uint,
) -> Status {
    unsafe { *milli = 700_000 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    _: Device,
    _: c_uint,
    clock: *mut c_uint,
) -> Status {
    unsafe { *clock = 1980 };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetApplicationsClock(_: Device, _: c_uint, _: *mut c_uint) -> Status {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    _: Device,
    reasons: *mut c_ulonglong,
) -> Status {
    unsafe { *reasons = 1 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    _: Device,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> Status {
    unsafe { (*now, *pending) = (1, 1) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    _: Device,
    kind: c_uint,
    counter: c_uint,
    count: *mut c_ulonglong,
) -> Status {
    assert_eq!((kind, counter), (1, 0), "uncorrected, volatile");
    unsafe { *count = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    _: Device,
    count: *mut c_uint,
    _: *mut c_void,
) -> Status {
    unsafe { *count = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: Device,
    link: c_uint,
    active: *mut c_uint,
) -> Status {
    let down = machine_is("a link is down") && number(device) == 1 && link == 3;
    unsafe { *active = c_uint::from(!down) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    _: Device,
    _: c_uint,
    info: *mut PciInfo,
) -> Status {
    unsafe { place(info, 0xa0) }
}

#[repr(C)]
pub struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(_: Device, info: *mut FabricInfo) -> Status {
    let info = unsafe { &mut *info };
    assert_eq!(info.version, 36 | 2 << 24);
    (info.status, info.health) = (0, 0b10);
    info.state = if machine_is("no fabric manager") {
        1
    } else {
        3
    };
    0
}
