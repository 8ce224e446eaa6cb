//! A survey of the machine: attributes that the driver tells without a context. Nothing is opened, allocated or set.

use super::driver::{check, checked};
use super::{queues, start};
use crate::error::Error;
use crate::shared::Handles;
use cudarc::driver::{result::device, sys};
use sys::CUdevice_attribute_enum as Attribute;

/// The driver's answers about this machine, before any GPU is opened.
///
/// ```no_run
/// use counterflow::cuda::{ComputeMode, Pci, Reach, Survey, Surveyed};
///
/// let survey = Survey::take()?;
/// println!("CUDA {}.{}", survey.cuda.0, survey.cuda.1);
/// for gpu in &survey.gpus {
///     let Surveyed { name, pci, reach, .. } = gpu;
///     let pci: &Pci = pci;
///     let peers = reach.iter().filter(|reach: &&Reach| reach.access && reach.atomics).count() - 1;
///     println!("{name} at {pci} reaches {peers} peers");
///     assert_ne!(gpu.compute_mode, ComputeMode::Prohibited);
/// }
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Survey {
    /// The latest CUDA version that the driver supports: major, minor.
    pub cuda: (u32, u32),
    /// Hardware queues of a context. None if `CUDA_DEVICE_MAX_CONNECTIONS` is no number from 1 to 32.
    pub queues: Option<u32>,
    /// True if `CUDA_LAUNCH_BLOCKING` makes every launch wait for its end.
    pub blocking: bool,
    /// True if `COUNTERFLOW_HANDLES` asks for fabric handles. None if it has no such value.
    pub fabric_wanted: Option<bool>,
    /// The GPUs that this process may use, by ordinal.
    pub gpus: Vec<Surveyed>,
}

/// The driver's answers about one GPU.
///
/// [`Survey`] has an example.
#[derive(Clone, PartialEq, Debug)]
pub struct Surveyed {
    /// Name, as the driver writes it.
    pub name: String,
    /// Name among all GPUs, as NVIDIA's tools write it: `GPU-…`, or `MIG-…` for a part of one.
    pub uuid: String,
    /// Place on the PCI bus.
    pub pci: Pci,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Processes that may use the GPU.
    pub compute_mode: ComputeMode,
    /// True if memory can be mapped at addresses of our choice.
    pub virtual_memory: bool,
    /// True if memory goes to other processes by file descriptors.
    pub file_handles: bool,
    /// True if memory goes to other processes by fabric handles.
    pub fabric_handles: bool,
    /// True if the GPU and its switch have NVLink multicast. This is an attribute: no multicast object is made.
    pub multicast: bool,
    /// Access to the memory of each GPU, by ordinal. A GPU reaches its own memory.
    pub reach: Vec<Reach>,
}

/// A place on the PCI bus. It prints as `0000:1b:00.0`.
///
/// [`Survey`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pci {
    /// PCI domain.
    pub domain: u32,
    /// Bus of the domain.
    pub bus: u32,
    /// Device on the bus.
    pub device: u32,
}

impl std::fmt::Display for Pci {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Pci {
            domain,
            bus,
            device,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.0")
    }
}

/// Compute mode of a GPU: the processes that may make contexts on it.
///
/// [`Survey`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeMode {
    /// Any number of processes.
    Shared,
    /// One process at a time.
    OneProcess,
    /// Nobody.
    Prohibited,
    /// A mode that this version does not know, by its number.
    Other(i32),
}

impl ComputeMode {
    fn of(number: i32) -> ComputeMode {
        match number {
            0 => ComputeMode::Shared,
            2 => ComputeMode::Prohibited,
            3 => ComputeMode::OneProcess,
            other => ComputeMode::Other(other),
        }
    }
}

/// Access that one GPU has to another one's memory.
///
/// [`Survey`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Read and write it.
    pub access: bool,
    /// Add to it atomically.
    pub atomics: bool,
}

impl Survey {
    /// Asks the driver. A driver that hangs keeps the calling thread.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver, an old one, one that does not start, or no GPU, each with what to do;
    /// [`Error::Driver`] for what it refuses.
    pub fn take() -> Result<Survey, Error> {
        let count = start::open()?;
        let devices: Vec<sys::CUdevice> = (0..count)
            .map(|ordinal| checked("open the GPU", device::get(ordinal as i32)))
            .collect::<Result<_, _>>()?;
        let gpus = devices.iter().map(|gpu| surveyed(*gpu, &devices));
        let mut version = 0;
        // SAFETY: the place is ours.
        let code = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        check("ask the driver's version", code)?;
        let version = version.unsigned_abs();
        Ok(Survey {
            cuda: (version / 1000, version % 1000 / 10),
            queues: queues::queues().ok(),
            blocking: queues::blocking(),
            fabric_wanted: (Handles::wanted().ok()).map(|handles| handles == Handles::Fabric),
            gpus: gpus.collect::<Result<_, _>>()?,
        })
    }
}

fn surveyed(gpu: sys::CUdevice, all: &[sys::CUdevice]) -> Result<Surveyed, Error> {
    let ask = |attribute| {
        // SAFETY: the driver gave us the device.
        let told = unsafe { device::get_attribute(gpu, attribute) };
        checked("ask the GPU", told)
    };
    let number = |attribute| ask(attribute).map(i32::unsigned_abs);
    let has = |attribute| ask(attribute).map(|told| told != 0);
    // SAFETY: as above.
    let memory = unsafe { device::total_mem(gpu) };
    let memory = checked("ask the GPU's memory", memory)?;
    Ok(Surveyed {
        name: checked("ask the GPU's name", device::get_name(gpu))?,
        uuid: uuid_of(gpu)?,
        pci: Pci {
            domain: number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            bus: number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            device: number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        },
        capability: (
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sms: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory: memory as u64,
        compute_mode: ComputeMode::of(ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?),
        virtual_memory: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
        file_handles: has(
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        )?,
        fabric_handles: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?,
        multicast: has(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)?,
        reach: (all.iter().map(|other| reach(gpu, *other))).collect::<Result<_, _>>()?,
    })
}

/// Access of a GPU to another one's memory.
pub(super) fn reach(gpu: sys::CUdevice, other: sys::CUdevice) -> Result<Reach, Error> {
    if gpu == other {
        return Ok(Reach {
            access: true,
            atomics: true,
        });
    }
    let mut access = 0;
    // SAFETY: the answer's place is ours, and both are devices.
    let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut access, gpu, other) };
    check("ask whether two GPUs reach each other", code)?;
    let mut atomics = 0;
    // SAFETY: as above.
    let code = unsafe {
        sys::cuDeviceGetP2PAttribute(
            &raw mut atomics,
            sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
            gpu,
            other,
        )
    };
    check("ask whether two GPUs add to each other's memory", code)?;
    Ok(Reach {
        access: access != 0,
        atomics: atomics != 0,
    })
}

/// A device's name among all GPUs.
pub(super) fn uuid_of(device: sys::CUdevice) -> Result<String, Error> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the place is ours, and the device is one.
    let code = unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    check("ask the GPU's identity", code)?;
    let hex: String = uuid
        .bytes
        .iter()
        .map(|byte| format!("{:02x}", *byte as u8))
        .collect();
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    Ok(format!("GPU-{a}-{b}-{c}-{d}-{e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_prints_as_nvidias_tools_write_it() {
        let pci = Pci {
            domain: 0,
            bus: 0x1b,
            device: 2,
        };
        assert_eq!(pci.to_string(), "0000:1b:02.0");
    }

    #[test]
    fn compute_modes_have_the_drivers_numbers() {
        use sys::CUcomputemode_enum as Mode;
        for (mode, number) in [
            (ComputeMode::Shared, Mode::CU_COMPUTEMODE_DEFAULT),
            (ComputeMode::Prohibited, Mode::CU_COMPUTEMODE_PROHIBITED),
            (
                ComputeMode::OneProcess,
                Mode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS,
            ),
        ] {
            assert_eq!(ComputeMode::of(number as i32), mode);
        }
        assert_eq!(ComputeMode::of(1), ComputeMode::Other(1));
    }
}
