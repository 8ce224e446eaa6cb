//! The driver's calls about multicast objects, by the text of its manual. Only programs with the feature `multicast` have this
//! file, and nothing of ours is built with it: it compiles, and was not run by us.

use super::Gpu;
use super::driver::{check, checked};
use super::handle::{Handle, kind};
use crate::device::Device;
use crate::error::Error;
use crate::multicast::{Calls, Granularity, Object, Part, Team};
use crate::shared::Handed;
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The driver of one process, and its handles of objects.
#[derive(Debug)]
pub(crate) struct MulticastCalls {
    gpus: Vec<Arc<Gpu>>,
    objects: Mutex<BTreeMap<Object, Handle>>,
}

impl MulticastCalls {
    /// For these GPUs of this process, one a rank.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for one that has no multicast, by its attribute.
    pub fn of(gpus: Vec<Arc<Gpu>>) -> Result<MulticastCalls, Error> {
        const ATTRIBUTE: sys::CUdevice_attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
        for gpu in &gpus {
            let has = checked("ask the GPU", gpu.context().attribute(ATTRIBUTE))? == 1;
            if !has {
                return Err(Error::NoDevice {
                    device: Device::Cuda,
                    why: format!("GPU {} and its switch have no multicast", gpu.ordinal()),
                    help: "go on without it".into(),
                });
            }
        }
        Ok(MulticastCalls {
            gpus,
            objects: Mutex::default(),
        })
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<Object, Handle>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPU with that number, whose context is current from here on.
    fn gpu(&self, ordinal: u32) -> Result<&Arc<Gpu>, Error> {
        let found = self.gpus.iter().find(|gpu| gpu.ordinal() == ordinal);
        let gpu = found.ok_or_else(|| unknown(&format!("GPU {ordinal}")))?;
        gpu.bind()?;
        Ok(gpu)
    }

    fn first(&self) -> Result<&Arc<Gpu>, Error> {
        let first = self.gpus.first().ok_or_else(|| unknown("a GPU"))?;
        first.bind()?;
        Ok(first)
    }

    fn kept(&self, handle: Handle) -> Object {
        let object = Object(handle.raw());
        self.objects().insert(object, handle);
        object
    }

    fn of_object<T>(
        &self,
        object: Object,
        act: impl FnOnce(&Handle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let objects = self.objects();
        act(objects.get(&object).ok_or_else(|| unknown("that object"))?)
    }
}

fn unknown(what: &str) -> Error {
    Error::Driver {
        what: format!("multicast of {what}, which this process has not"),
        code: "invalid handle".into(),
        help: "report it".into(),
    }
}

fn properties(team: &Team) -> sys::CUmulticastObjectProp {
    sys::CUmulticastObjectProp {
        numDevices: team.gpus,
        size: team.bytes as usize,
        handleTypes: u64::from(kind(team.handles).0),
        flags: 0,
    }
}

impl Calls for MulticastCalls {
    fn granularity(&self, team: &Team) -> Result<Granularity, Error> {
        use sys::CUmulticastGranularity_flags as Flags;
        self.first()?;
        let wanted = properties(team);
        let ask = |which| {
            let mut bytes = 0;
            // SAFETY: both places are ours, and the struct is filled.
            let code =
                unsafe { sys::cuMulticastGetGranularity(&raw mut bytes, &raw const wanted, which) };
            check("ask for the granularity of multicast", code).map(|()| bytes as u64)
        };
        Ok(Granularity {
            least: ask(Flags::CU_MULTICAST_GRANULARITY_MINIMUM)?,
            recommended: ask(Flags::CU_MULTICAST_GRANULARITY_RECOMMENDED)?,
        })
    }

    fn create(&self, team: &Team) -> Result<Object, Error> {
        self.first()?;
        let wanted = properties(team);
        let mut raw = 0;
        // SAFETY: both places are ours, and the struct is filled.
        let code = unsafe { sys::cuMulticastCreate(&raw mut raw, &raw const wanted) };
        check(
            format_args!("make a multicast object of {} bytes", team.bytes),
            code,
        )?;
        Ok(self.kept(Handle::of_multicast(raw, team.bytes, team.handles)))
    }

    fn export(&self, object: Object) -> Result<Handed, Error> {
        self.of_object(object, Handle::export)
    }

    fn import(&self, handed: &Handed, team: &Team) -> Result<Object, Error> {
        let handle = Handle::import(self.first()?, handed, team.bytes)?;
        Ok(self.kept(handle))
    }

    fn add(&self, object: Object, gpu: u32) -> Result<(), Error> {
        let device = self.gpu(gpu)?.context().cu_device();
        self.of_object(object, |handle| {
            // SAFETY: the handle is of a multicast object, and the device one of this process.
            let code = unsafe { sys::cuMulticastAddDevice(handle.raw(), device) };
            check(format_args!("add GPU {gpu} to a multicast object"), code)
        })
    }

    fn bind(&self, object: Object, part: &Part) -> Result<(), Error> {
        self.gpu(part.gpu)?;
        let Part {
            gpu,
            offset,
            address,
            bytes,
        } = *part;
        self.of_object(object, |handle| {
            // SAFETY: the memory is mapped there, as one piece, for as long as it is bound.
            let code = unsafe {
                sys::cuMulticastBindAddr(handle.raw(), offset as usize, address, bytes as usize, 0)
            };
            check(
                format_args!("bind {bytes} bytes of GPU {gpu} to a multicast object"),
                code,
            )
        })
    }

    fn map(
        &self,
        object: Object,
        (team, granularity): (&Team, Granularity),
        gpus: &[u32],
    ) -> Result<u64, Error> {
        self.first()?;
        let mut address = 0;
        let (bytes, aligned) = (team.bytes as usize, granularity.recommended as usize);
        // SAFETY: the address's place is ours; no memory is touched.
        let code = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, aligned, 0, 0) };
        check("reserve addresses for multicast", code)?;
        let gpus: Vec<i32> = gpus.iter().map(|gpu| *gpu as i32).collect();
        let mapped = self.of_object(object, |handle| handle.map(address, &gpus));
        mapped.map(|()| address).inspect_err(|_| {
            // Why it was not mapped says more than a free that fails, too.
            // SAFETY: nothing is mapped there, and it is ours.
            let _ = unsafe { sys::cuMemAddressFree(address, bytes) };
        })
    }

    fn unmap(&self, address: u64, team: &Team) -> Result<(), Error> {
        let bytes = team.bytes as usize;
        // SAFETY: exactly this was mapped, and no work uses it any more.
        let code = unsafe { sys::cuMemUnmap(address, bytes) };
        check("take a multicast object from its addresses", code)?;
        // SAFETY: nothing is mapped there any more, and it is ours.
        let code = unsafe { sys::cuMemAddressFree(address, bytes) };
        check("give addresses of multicast back", code)
    }

    fn unbind(&self, object: Object, part: &Part) -> Result<(), Error> {
        let device = self.gpu(part.gpu)?.context().cu_device();
        let (offset, bytes) = (part.offset as usize, part.bytes as usize);
        self.of_object(object, |handle| {
            // SAFETY: exactly this was bound.
            let code = unsafe { sys::cuMulticastUnbind(handle.raw(), device, offset, bytes) };
            check(
                format_args!("unbind {bytes} bytes from a multicast object"),
                code,
            )
        })
    }

    fn release(&self, object: Object) -> Result<(), Error> {
        // Its drop lets go of the driver's handle.
        let handle = self.objects().remove(&object);
        handle.map(drop).ok_or_else(|| unknown("that object"))
    }
}
