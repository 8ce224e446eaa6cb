//! One GPU of this process.

use super::driver::{self, check, checked};
use super::start;
use super::survey::{Reach, reach, uuid_of};
use super::unused::Unused;
use crate::device::Device;
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// One GPU, with its primary context held: other libraries of the process share it.
///
/// ```no_run
/// use counterflow::cuda::Gpu;
///
/// println!("{} GPUs", Gpu::count()?);
/// let gpu = Gpu::open(0)?;
/// gpu.must_be_hopper()?;
/// println!("{} {} {}: {} SMs, {} bytes", gpu.ordinal(), gpu.name(), gpu.uuid()?, gpu.sms(), gpu.memory());
/// gpu.keep_freed()?; // for a program that allocates often
/// let stream = gpu.stream()?;
/// gpu.bind()?; // for another library's calls in this thread
/// println!("{} streams and more share the context", gpu.context().ordinal());
/// gpu.synchronize()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    context_number: u64,
    name: String,
    sms: u32,
    memory: u64,
    l2: u64,
    capability: (i32, i32),
    unused: Arc<Unused>,
}

impl Gpu {
    /// Number of GPUs that the driver shows.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver, an old one, or no GPU.
    pub fn count() -> Result<u32, Error> {
        start::open()
    }

    /// Opens a GPU by CUDA's ordinal, from 0.
    ///
    /// # Errors
    /// As [`Gpu::count`], and if there is no such GPU.
    pub fn open(ordinal: u32) -> Result<Gpu, Error> {
        let count = start::open()?;
        if ordinal >= count {
            return Err(driver::none(
                &format!("GPU {ordinal} of {count}"),
                "use fewer ranks than GPUs, or a loopback communicator, whose ranks share one",
            ));
        }
        let context = checked("open the GPU", CudaContext::new(ordinal as usize))?;
        let mut context_number = 0;
        // SAFETY: the context is open, and the place is ours.
        check("ask for the context's number", unsafe {
            sys::cuCtxGetId(context.cu_ctx(), &raw mut context_number)
        })?;
        let ask = |attribute| checked("ask the GPU", context.attribute(attribute));
        let sms = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let l2 = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        Ok(Gpu {
            name: checked("ask the GPU's name", context.name())?,
            sms: sms.unsigned_abs(),
            memory: checked("ask the GPU's memory", context.total_mem())? as u64,
            l2: l2.unsigned_abs().into(),
            capability: checked("ask the GPU's capability", context.compute_capability())?,
            context,
            context_number,
            unused: Arc::default(),
        })
    }

    /// Name that the driver gives the GPU.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ordinal of the GPU in this process.
    pub fn ordinal(&self) -> u32 {
        self.context.ordinal() as u32
    }

    /// Name of the GPU among all GPUs, as NVIDIA's tools write it: `GPU-…`.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn uuid(&self) -> Result<String, Error> {
        uuid_of(self.context.cu_device())
    }

    /// Number of streaming multiprocessors.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Bytes of its L2 cache.
    pub(crate) fn l2(&self) -> u64 {
        self.l2
    }

    /// Rejects a GPU that our kernels do not support.
    ///
    /// # Errors
    /// [`Error::NoDevice`], with what it is.
    pub fn must_be_hopper(&self) -> Result<(), Error> {
        match self.capability {
            (9, 0) => Ok(()),
            (major, minor) => Err(driver::none(
                &format!("{} has compute capability {major}.{minor}", self.name),
                "kernels are made for Hopper (9.0: H100, H200); emulated ranks need no GPU: `Communicator::emulated`, or --device cpu of the tool",
            )),
        }
    }

    /// A new stream that does not wait for the default one.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn stream(&self) -> Result<Arc<CudaStream>, Error> {
        checked("make a stream", self.context.new_stream())
    }

    /// A stream of this GPU's primary context that somebody else made and destroys: the raw door for other libraries, and
    /// for other versions of cudarc. `driver::Stream::from` takes it.
    ///
    /// ```no_run
    /// use counterflow::{Communicator, Error, driver::Stream};
    /// use std::ffi::c_void;
    ///
    /// /// # Safety
    /// /// `raw` is a stream of the rank's GPU, and outlives what this gives.
    /// unsafe fn borrowed(rank: &Communicator, raw: *mut c_void) -> Result<Stream, Error> {
    ///     // SAFETY: the caller's promise.
    ///     Ok(unsafe { rank.gpu().cuda()?.borrowed_stream(raw) }.into())
    /// }
    /// ```
    ///
    /// # Safety
    /// `raw` is a `CUstream` of the primary context of this GPU, and lives as long as what this gives and every clone.
    pub unsafe fn borrowed_stream(&self, raw: *mut c_void) -> Arc<CudaStream> {
        // SAFETY: the caller's promise.
        unsafe { self.context.wrap_borrowed_stream(raw.cast()) }
    }

    /// Tells its context from all others of the process, also from those that are gone: a GPU's context goes with its last
    /// user, with all that was loaded and allocated in it.
    pub(super) fn context_number(&self) -> u64 {
        self.context_number
    }

    /// Events of the GPU that nobody has.
    pub(super) fn unused(&self) -> &Arc<Unused> {
        &self.unused
    }

    /// The context, to use with cudarc.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Keeps freed memory for the next allocation, instead of returning it to the driver at every synchronization. A
    /// bench of many products allocates gigabytes for each.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn keep_freed(&self) -> Result<(), Error> {
        self.bind()?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: the pool's place is ours, and the device is open.
        let found =
            unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.context.cu_device()) };
        check("find the GPU's memory pool", found)?;
        keep_freed(pool)
    }

    /// Keeps what is allocated in one stream from waiting for another stream.
    ///
    /// If memory that was freed in another stream is to be used again, the driver may let the allocating stream wait for
    /// that free. Where ranks share the GPU, the free may stand behind a kernel that waits for what the allocating rank
    /// does next. Then both wait for ever. So the pool that streams of this GPU allocate from, cudarc's slices among
    /// them, gives out only what was freed in the same stream, or before by the streams' order, or is free already. It
    /// also keeps what is freed: to return memory to the driver, or to get more, may wait for every kernel.
    pub(crate) fn allocate_without_waits(&self) -> Result<(), Error> {
        self.bind()?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: the pool's place is ours, and the device is open.
        let found = unsafe { sys::cuDeviceGetMemPool(&raw mut pool, self.context.cu_device()) };
        check("find the GPU's memory pool", found)?;
        let mut no = 0i32;
        // SAFETY: the attribute is an `int`, which is there.
        let said = unsafe {
            sys::cuMemPoolSetAttribute(
                pool,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                (&raw mut no).cast(),
            )
        };
        check("keep allocations from waiting", said)?;
        keep_freed(pool)
    }

    /// Makes it this thread's current GPU. Our calls do so themselves; calls of other libraries may need it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn bind(&self) -> Result<(), Error> {
        checked("select the GPU", self.context.bind_to_thread())
    }

    /// Rejects another GPU whose memory this one does not reach, by ordinary accesses or by atomic ones.
    pub(super) fn must_reach(&self, other: &Gpu) -> Result<(), Error> {
        self.must_reach_device(other.context.cu_device(), other.ordinal())
    }

    /// Checks that this GPU reaches one of another process, by its [`Gpu::uuid`]. One that this process does not see
    /// cannot be asked about: the driver maps its memory, or refuses to.
    pub(crate) fn must_reach_named(&self, uuid: &str) -> Result<(), Error> {
        for ordinal in 0..Gpu::count()? {
            let mut device = 0;
            // SAFETY: the device's place is ours.
            let code = unsafe { sys::cuDeviceGet(&raw mut device, ordinal as i32) };
            check("open the GPU", code)?;
            if uuid_of(device)? == uuid {
                return self.must_reach_device(device, ordinal);
            }
        }
        Ok(())
    }

    fn must_reach_device(&self, other: sys::CUdevice, ordinal: u32) -> Result<(), Error> {
        if self.ordinal() == ordinal {
            return Ok(());
        }
        let Reach { access, atomics } = reach(self.context.cu_device(), other)?;
        apart([self.ordinal(), ordinal], access, atomics).map_or(Ok(()), Err)
    }
}

/// Lets a pool return nothing to the driver by itself.
fn keep_freed(pool: sys::CUmemoryPool) -> Result<(), Error> {
    let mut most = u64::MAX;
    // SAFETY: the pool is one of the driver's, and the attribute is a 64-bit number of bytes, which is there.
    let said = unsafe {
        sys::cuMemPoolSetAttribute(
            pool,
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut most).cast(),
        )
    };
    check("keep freed memory", said)
}

/// Reason that two GPUs cannot have ranks of one communicator. None if they can.
fn apart([one, other]: [u32; 2], reaches: bool, adds: bool) -> Option<Error> {
    let (why, letter) = match (reaches, adds) {
        (true, true) => return None,
        (false, _) => ("does not reach the memory of", 'r'),
        (true, false) => ("makes no atomic additions in the memory of", 'a'),
    };
    Some(driver::none(
        &format!("GPU {one} {why} GPU {other}"),
        &format!(
            "ranks signal each other by atomic additions in each other's memory: use GPUs of one NVLink domain (nvidia-smi topo -p2p {letter} lists them), or let ranks share a GPU"
        ),
    ))
}

impl Device {
    /// Opens the device, if this machine has it.
    ///
    /// ```
    /// use counterflow::Device;
    ///
    /// assert!(Device::Cpu.open().is_ok()); // the emulator is always there
    /// if let Err(why) = Device::Cuda.open() {
    ///     println!("{why}: {}", why.help().unwrap_or_default());
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`], with what to do instead.
    pub fn open(self) -> Result<Device, Error> {
        match self {
            Device::Cpu => Ok(self),
            Device::Cuda => Gpu::open(0)?.must_be_hopper().map(|()| self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_without_access_or_without_atomics_are_refused_with_what_to_do() {
        assert!(apart([0, 1], true, true).is_none());
        for (reaches, adds, why, list) in [
            (false, false, "does not reach the memory of GPU 1", "-p2p r"),
            (true, false, "makes no atomic additions", "-p2p a"),
        ] {
            let error = apart([0, 1], reaches, adds).expect("refused");
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.help().is_some_and(|help| help.contains(list)));
        }
    }
}
