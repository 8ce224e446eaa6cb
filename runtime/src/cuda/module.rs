//! Loaded machine code, its arguments, its launch.

use super::driver::{check, checked};
use super::{Address, Gpu, TensorMap, later};
use crate::error::Error;
use crate::jit::{self, Compiled, Facts};
use cudarc::driver::{CudaStream, sys};
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Machine code on one GPU. It is loaded eagerly: lazy loading would wait for kernels that wait for us.
///
/// ```no_run
/// use counterflow::Communicator;
/// use counterflow::cuda::{Arguments, Function, LaunchConfig, Module};
/// use counterflow::jit::{Compiler, Source, Target};
///
/// const TEXT: &str = "extern \"C\" __global__ void one(float* x, unsigned n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }";
///
/// let rank = &Communicator::local(1)?[0];
/// let compiled = Compiler::find()?.compile(&Source::new("one", TEXT), Target::Sm90a)?;
/// let module = Module::load(rank.gpu().cuda()?, &compiled)?;
/// let one: Function = module.function("one", 0)?; // without dynamic shared memory
/// println!("{} of {}: {:?}", one.name(), module.facts().len(), one.facts());
/// let x = rank.zeros::<f32>([64])?;
/// let mut arguments = Arguments::new();
/// arguments.address(x.address());
/// arguments.number(64);
/// // SAFETY: the kernel stays inside `x`, which is read after it in the same stream.
/// unsafe { one.launch(rank.stream().cuda()?, LaunchConfig::of(1, 64), &arguments)? };
/// assert_eq!(x.read()?, [1.0; 64]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Module {
    code: Code,
    facts: Vec<Facts>,
}

/// The driver's handle of it.
#[derive(Debug)]
struct Code {
    raw: sys::CUmodule,
    gpu: Arc<Gpu>,
    cubin: Arc<[u8]>,
}

// SAFETY: the driver's handles may be used from any thread; we never change them.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

/// Loaded code that is not used now. The driver unloads code only when nothing runs on the GPU, and would wait for a
/// kernel that waits for us. So code is not unloaded, but used again by who loads the same; it goes with its context.
static UNUSED: Mutex<Vec<Unused>> = Mutex::new(Vec::new());

/// The driver's handle of code that nobody has.
struct Unused {
    raw: sys::CUmodule,
    /// The GPU, and the number of its context.
    context: (u32, u64),
    cubin: Arc<[u8]>,
}

// SAFETY: as for the code that it was.
unsafe impl Send for Unused {}

fn unused(gpu: &Arc<Gpu>, cubin: &[u8]) -> Option<Code> {
    let mut all = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let (on, context) = (gpu.ordinal(), gpu.context_number());
    // What was a context's before this one went with it.
    all.retain(|code| code.context.0 != on || code.context.1 == context);
    let same = |code: &Unused| code.context == (on, context) && *code.cubin == *cubin;
    let at = all.iter().position(same)?;
    let Unused { raw, cubin, .. } = all.swap_remove(at);
    let gpu = gpu.clone();
    Some(Code { raw, gpu, cubin })
}

impl Module {
    /// Loads compiled code. Code that was loaded before and dropped is used again, with what its variables hold by then.
    ///
    /// # Errors
    /// When it is made for another GPU, or memory is full.
    pub fn load(gpu: &Arc<Gpu>, compiled: &Compiled) -> Result<Arc<Module>, Error> {
        let code = match unused(gpu, &compiled.cubin) {
            Some(code) => code.without_events()?,
            None => Code::load(gpu, &compiled.cubin)?,
        };
        let facts = compiled.facts.clone();
        Ok(Arc::new(Module { code, facts }))
    }

    /// A kernel in it, with this much dynamic shared memory.
    ///
    /// # Errors
    /// No kernel of that name, or too much shared memory.
    pub fn function(self: &Arc<Module>, name: &str, shared: u32) -> Result<Function, Error> {
        self.code.gpu.bind()?;
        let symbol = CString::new(name).unwrap_or_default();
        let mut raw = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in zero, the place is ours.
        check(format_args!("find {name}"), unsafe {
            sys::cuModuleGetFunction(&raw mut raw, self.code.raw, symbol.as_ptr())
        })?;
        // SAFETY: the function was just got.
        check(format_args!("load {name}"), unsafe {
            later::load_function(raw)
        })?;
        // SAFETY: as above.
        let code = unsafe {
            sys::cuFuncSetAttribute(
                raw,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared as i32,
            )
        };
        check(
            format_args!("give {name} {shared} bytes of shared memory"),
            code,
        )?;
        let facts = self.facts.iter().find(|facts| facts.name == name);
        let mut parameters = vec![0; facts.map_or(0, |facts| facts.parameter_count as usize)];
        if parameters.len() > MOST_PARAMETERS {
            return Err(Error::Usage {
                what: format!("{name} takes {} parameters", parameters.len()),
                legal: format!("at most {MOST_PARAMETERS}: put numbers into a struct"),
            });
        }
        for (index, size) in parameters.iter_mut().enumerate() {
            let mut offset = 0;
            // SAFETY: the function is loaded, and both places are ours.
            let code = unsafe { later::parameter(raw, index, [&mut offset, size]) };
            check(format_args!("ask for parameter {index} of {name}"), code)?;
        }
        Ok(Function {
            raw,
            name: name.into(),
            shared,
            parameters,
            module: self.clone(),
        })
    }

    /// Registers, shared memory and parameters of its kernels.
    pub fn facts(&self) -> &[Facts] {
        &self.facts
    }
}

impl Code {
    fn load(gpu: &Arc<Gpu>, cubin: &Arc<[u8]>) -> Result<Code, Error> {
        gpu.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the image is a whole cubin (it was parsed), and its bytes outlive the call.
        let code = unsafe { sys::cuModuleLoadData(&raw mut raw, cubin.as_ptr().cast()) };
        check("load the kernel", code)?;
        Ok(Code {
            raw,
            gpu: gpu.clone(),
            cubin: cubin.clone(),
        })
    }

    /// Without the events that its last user left, if it counts events.
    fn without_events(self) -> Result<Code, Error> {
        if !jit::defines(&self.cubin, "trace_counts") {
            return Ok(self);
        }
        self.gpu.bind()?;
        let (mut address, mut bytes) = (0, 0);
        let name = c"trace_counts".as_ptr();
        // SAFETY: the module is loaded, the name ends in zero, both places are ours.
        check("find the counts of events", unsafe {
            sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, self.raw, name)
        })?;
        // SAFETY: the variable has so many bytes, and no kernel of this module runs.
        check("clear the counts of events", unsafe {
            sys::cuMemsetD8_v2(address, 0, bytes)
        })?;
        Ok(self)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let Code { raw, gpu, cubin } = &self.code;
        let mut all = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Unused {
            raw: *raw,
            context: (gpu.ordinal(), gpu.context_number()),
            cubin: cubin.clone(),
        });
    }
}

/// One kernel, ready to launch.
///
/// [`Module`] has an example of how to get one.
///
/// ```
/// use counterflow::Error;
/// use counterflow::cuda::{Arguments, CudaStream, Function, LaunchConfig};
///
/// /// Launches a kernel without arguments whose compiler had [`Probes`](counterflow::jit::Probes).
/// fn told(kernel: &Function, stream: &CudaStream) -> Result<(), Error> {
///     println!("{} of {:?}", kernel.name(), kernel.facts().map(|facts| facts.registers));
///     // SAFETY: it is given no memory.
///     unsafe { kernel.launch(stream, LaunchConfig::of(1, 32), &Arguments::new())? };
///     kernel.trace(stream)?.iter().for_each(|strand| println!("{strand:?}"));
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Function {
    raw: sys::CUfunction,
    name: String,
    shared: u32,
    /// Bytes of each parameter, as the driver says.
    parameters: Vec<usize>,
    module: Arc<Module>,
}

// SAFETY: as for the module, which it holds.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The most parameters of a kernel: so many tensor maps fill the 4 KiB that the driver takes.
const MOST_PARAMETERS: usize = 32;

/// The grid of a launch.
///
/// ```
/// use counterflow::cuda::LaunchConfig;
///
/// let pairs = LaunchConfig { cluster: 2, ..LaunchConfig::of(64, 256) };
/// assert_eq!((pairs.ctas, pairs.threads, pairs.dependent_launch), (64, 256, false));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    /// CTAs.
    pub ctas: u32,
    /// Threads of each.
    pub threads: u32,
    /// CTAs of a cluster; 1: none.
    pub cluster: u32,
    /// True if its CTAs may start before the previous launch on the stream has ended (programmatic dependent launch).
    /// Only for a kernel that waits for that end itself (`wait_prerequisites`).
    ///
    /// If the previous launch does not allow this (a copy, a graph, another library's ordinary kernel, a fused kernel
    /// of ours), the driver starts this one at its end. If it does, this one's CTAs only become resident: the wait
    /// returns when the previous launch is complete and its writes are visible, and a kernel of ours loads nothing but
    /// constants from global memory before it. A launch that would load one which earlier launches of an op may still
    /// write is an ordinary one, and so is any that comes right behind a step, a replay, a copy or a fill, unless it is
    /// a step that loads nothing before the wait. This extends to all earlier launches if each that started early
    /// waited for its own predecessor, as ours do. Another library's kernel that is launched programmatically and never
    /// waits may end before its predecessor.
    pub dependent_launch: bool,
    /// Priority of its CTAs where several launches wait for SMs: the smallest number is first, as for streams. 0 is
    /// the default.
    pub priority: i32,
}

impl LaunchConfig {
    /// So many CTAs of so many threads, that start when what is before them in the stream has ended.
    pub const fn of(ctas: u32, threads: u32) -> LaunchConfig {
        LaunchConfig {
            ctas,
            threads,
            cluster: 1,
            dependent_launch: false,
            priority: 0,
        }
    }
}

/// The bytes of a kernel's parameters, in order.
///
/// [`Module`] has an example of a launch.
///
/// ```
/// use counterflow::cuda::{Address, Arguments, TensorMap};
///
/// fn set(arguments: &mut Arguments, map: &TensorMap, start: Address) {
///     arguments.clear(); // `Arguments::new()` once, then used for every launch
///     arguments.map(map);
///     arguments.address(start);
///     arguments.number(64);
///     arguments.bytes(&0.5f32.to_le_bytes()); // anything else, as it is in memory
/// }
/// ```
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    words: Vec<u64>,
    /// First word and bytes of each.
    parts: Vec<(usize, usize)>,
}

impl Arguments {
    /// None yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// Removes all arguments and keeps the memory.
    pub fn clear(&mut self) {
        self.words.clear();
        self.parts.clear();
    }

    /// Adds these bytes as one parameter.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let at = self.words.len();
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_le_bytes(word));
        }
        self.parts.push((at, bytes.len()));
    }

    /// Adds a tensor map.
    pub fn map(&mut self, map: &TensorMap) {
        self.parts.push((self.words.len(), 128));
        self.words.extend(map.0.opaque);
    }

    /// Adds an address.
    pub fn address(&mut self, address: Address) {
        self.bytes(&address.0.to_le_bytes());
    }

    /// Adds a number.
    pub fn number(&mut self, number: u32) {
        self.bytes(&number.to_le_bytes());
    }
}

impl Address {
    /// Bytes of the address, for a struct that a kernel takes.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

impl Function {
    /// The module it is in.
    pub(super) fn module(&self) -> sys::CUmodule {
        self.module.code.raw
    }

    /// Makes its GPU this thread's current one.
    pub(super) fn bind(&self) -> Result<(), Error> {
        self.module.code.gpu.bind()
    }

    /// Name of the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Registers, shared memory and parameters of the kernel.
    pub fn facts(&self) -> Option<&Facts> {
        self.module
            .facts()
            .iter()
            .find(|facts| facts.name == self.name)
    }

    /// Starts it. The number and sizes of the arguments are compared with what the kernel takes.
    ///
    /// # Safety
    /// The kernel may only access memory that lives until it has ended, and every signal that it waits for must come.
    ///
    /// # Errors
    /// [`Error::Usage`] for wrong arguments; what the driver rejects.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        grid: LaunchConfig,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        checked("select the GPU", stream.context().bind_to_thread())?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, grid, arguments) }
    }

    /// Describes a launch to the driver. The attributes stay where they are until it was.
    fn config(
        &self,
        stream: sys::CUstream,
        grid: LaunchConfig,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: grid.ctas,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }

    /// Clusters of such a launch that its GPU runs at once.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(super) fn clusters(&self, grid: LaunchConfig) -> Result<u32, Error> {
        self.bind()?;
        let (mut attributes, count) = attributes(grid);
        let config = self.config(ptr::null_mut(), grid, &mut attributes[..count]);
        let mut clusters = 0;
        // SAFETY: the function is loaded; the configuration and the place are ours, and nothing is launched.
        let code = unsafe {
            sys::cuOccupancyMaxActiveClusters(&raw mut clusters, self.raw, &raw const config)
        };
        check(
            format_args!("ask how many clusters of {} run at once", self.name),
            code,
        )?;
        Ok(clusters.unsigned_abs())
    }

    /// Enqueues a launch where the stream's context is current.
    ///
    /// # Safety
    /// As [`Function::launch`].
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        grid: LaunchConfig,
        arguments: &Arguments,
    ) -> Result<(), Error> {
        let given = arguments.parts.iter().map(|(_, bytes)| *bytes);
        if !given.clone().eq(self.parameters.iter().copied()) {
            return Err(Error::Usage {
                what: format!(
                    "{} called with arguments of {:?} bytes",
                    self.name,
                    given.collect::<Vec<_>>()
                ),
                legal: format!("it takes {:?}", self.parameters),
            });
        }
        let mut pointers = [ptr::null_mut::<c_void>(); MOST_PARAMETERS];
        for (pointer, (at, _)) in pointers.iter_mut().zip(&arguments.parts) {
            *pointer = ptr::from_ref(&arguments.words[*at]).cast_mut().cast();
        }
        let (mut attributes, count) = attributes(grid);
        let config = self.config(stream.cu_stream(), grid, &mut attributes[..count]);
        // SAFETY: the pointers are to as many arguments, of the sizes the kernel takes (compared above), and the driver
        // copies them before it returns; what the kernel does with them is the caller's promise.
        let code = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.raw,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(format_args!("launch {}", self.name), code)
    }
}

/// Launch attributes beside the grid, and how many there are: none for most launches.
fn attributes(grid: LaunchConfig) -> ([sys::CUlaunchAttribute; 3], usize) {
    use sys::CUlaunchAttributeID as Id;
    let none = sys::CUlaunchAttribute {
        id: Id::CU_LAUNCH_ATTRIBUTE_IGNORE,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    let (mut all, mut count) = ([none; 3], 0);
    let mut add = |id, value| {
        all[count] = sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        count += 1;
    };
    if grid.cluster > 1 {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
            x: grid.cluster,
            y: 1,
            z: 1,
        };
        add(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
    }
    if grid.dependent_launch {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        add(
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            value,
        );
    }
    if grid.priority != 0 {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.priority = grid.priority;
        add(Id::CU_LAUNCH_ATTRIBUTE_PRIORITY, value);
    }
    (all, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_the_attributes_it_asks_for() {
        use sys::CUlaunchAttributeID as Id;
        let ids = |cluster, dependent_launch, priority| {
            let grid = LaunchConfig {
                cluster,
                dependent_launch,
                priority,
                ..LaunchConfig::of(132, 384)
            };
            let (all, count) = attributes(grid);
            all[..count].iter().map(|one| one.id).collect::<Vec<_>>()
        };
        let (cluster, dependent_launch) = (
            Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        );
        let priority = Id::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        assert_eq!(ids(1, false, 0), []);
        assert_eq!(ids(1, true, 0), [dependent_launch]);
        assert_eq!(ids(2, false, 0), [cluster]);
        assert_eq!(ids(1, false, -5), [priority]);
        assert_eq!(ids(2, true, -1), [cluster, dependent_launch, priority]);
    }
}
