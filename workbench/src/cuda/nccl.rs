//! NCCL, the baseline for fused kernels. It is bound at run time, only for measurements.
//!
//! Never with multicast: on a shared host a program that uses it can put other people's GPUs out of service.

use super::elements;
use counterflow_codegen::dtype::Dtype;
use counterflow_runtime::cuda::{CudaStream, Gpu};
use counterflow_runtime::driver::Address;
use counterflow_runtime::{Error, jit, multicast};
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

const FILE: &str = "libnccl.so.2";

type Comm = *mut c_void;
type Status = c_int;
/// Arguments: sent, received, elements, type, communicator, stream.
type Gather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> Status;
/// Call with an operation after the type.
type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Comm,
    *mut c_void,
) -> Status;
/// Arguments: what is sent or received, elements, type, peer, communicator, stream.
type Exchange = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> Status;
const SUM: c_int = 0;
/// `ncclUint8`: what is only moved has no other type.
const BYTES: c_int = 1;

/// Parts of every rank, in memory for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    /// Address of the first rank's part.
    pub at: Address,
    /// Bytes of each.
    pub bytes: u64,
}

/// The library's functions.
#[derive(Clone, Copy)]
struct Functions {
    init: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> Status,
    destroy: unsafe extern "C" fn(Comm) -> Status,
    text: unsafe extern "C" fn(Status) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int) -> Status,
    all_gather: Gather,
    reduce_scatter: Reduce,
    all_reduce: Reduce,
    send: Exchange,
    receive: Exchange,
    /// Between these, calls are one operation.
    begin: unsafe extern "C" fn() -> Status,
    end: unsafe extern "C" fn() -> Status,
}

/// One rank's communicator.
pub struct Nccl {
    functions: Functions,
    comm: Comm,
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
}

// SAFETY: a communicator may be used from any thread, one call at a time: calls take `&self` of what one rank owns.
unsafe impl Send for Nccl {}
// SAFETY: as above; ranks' threads use a communicator each.
unsafe impl Sync for Nccl {}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({:?})", self.version())
    }
}

fn bind<T: Copy>(library: &Library, name: &CStr) -> Result<T, Error> {
    // SAFETY: the type is that of NCCL's manual, the same since its second version, and the library is never unloaded.
    let symbol = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    symbol
        .map(|symbol| *symbol)
        .map_err(|error| Error::Toolkit {
            what: format!("NCCL has no {}: {error}", name.to_string_lossy()),
            help: "install NCCL 2.18 or later".into(),
        })
}

impl Nccl {
    /// A communicator for each of those GPUs and streams, in order.
    ///
    /// # Errors
    /// [`Error::Usage`] unless the environment forbids multicast; [`Error::Toolkit`] if the library is missing; what it
    /// rejects.
    pub fn all(ranks: &[(Arc<Gpu>, Arc<CudaStream>)]) -> Result<Vec<Nccl>, Error> {
        multicast::must_be_off("NCCL")?;
        let missing = || Error::Toolkit {
            what: format!("there is no NCCL ({FILE}) to compare with"),
            help: "install it, or `pip install nvidia-nccl-cu13`".into(),
        };
        if !jit::preload(FILE)? {
            return Err(missing());
        }
        // SAFETY: it is loaded already, and NVIDIA's libraries run no code at loading that depends on anything of ours.
        let library = unsafe { Library::open(Some(FILE), RTLD_NOW) };
        // Never unloaded: its functions are kept as plain pointers.
        let library = std::mem::ManuallyDrop::new(library.map_err(|_| missing())?);
        let functions = Functions {
            init: bind(&library, c"ncclCommInitAll")?,
            destroy: bind(&library, c"ncclCommDestroy")?,
            text: bind(&library, c"ncclGetErrorString")?,
            version: bind(&library, c"ncclGetVersion")?,
            all_gather: bind(&library, c"ncclAllGather")?,
            reduce_scatter: bind(&library, c"ncclReduceScatter")?,
            all_reduce: bind(&library, c"ncclAllReduce")?,
            send: bind(&library, c"ncclSend")?,
            receive: bind(&library, c"ncclRecv")?,
            begin: bind(&library, c"ncclGroupStart")?,
            end: bind(&library, c"ncclGroupEnd")?,
        };
        let ordinals: Vec<c_int> = ranks
            .iter()
            .map(|(gpu, _)| gpu.ordinal() as c_int)
            .collect();
        let mut comms = vec![ptr::null_mut(); ranks.len()];
        // SAFETY: there is a place for each communicator and a number for each GPU.
        let status = unsafe {
            (functions.init)(
                comms.as_mut_ptr(),
                ordinals.len() as c_int,
                ordinals.as_ptr(),
            )
        };
        check(functions, "start NCCL", status)?;
        let all = ranks.iter().zip(comms).map(|((gpu, stream), comm)| Nccl {
            functions,
            comm,
            gpu: gpu.clone(),
            stream: stream.clone(),
        });
        Ok(all.collect())
    }

    /// Version number of the library.
    pub fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: the place is ours.
        unsafe { (self.functions.version)(&raw mut version) };
        version
    }

    /// Gathers every rank's `count` elements at `to`, in order. This rank's are there already. Collective.
    ///
    /// # Errors
    /// What the library refuses.
    pub fn all_gather(
        &self,
        own: Address,
        to: Address,
        count: u64,
        dtype: Dtype,
    ) -> Result<(), Error> {
        self.gpu.bind()?;
        // SAFETY: the caller's memory holds `count` elements of each rank, and the stream is of the GPU that the
        // communicator was made for.
        let status = unsafe {
            (self.functions.all_gather)(
                own.get() as *const c_void,
                to.get() as *mut c_void,
                count as usize,
                elements::nccl(dtype),
                self.comm,
                self.stream.cu_stream().cast(),
            )
        };
        check(self.functions, "gather with NCCL", status)
    }

    /// Gathers every rank's part of each of those, in order, as one operation. This rank's are there already. Collective.
    ///
    /// # Errors
    /// What the library refuses.
    pub(crate) fn gather(&self, rank: u32, all: &[Parts]) -> Result<(), Error> {
        self.together("gather with NCCL", || {
            let gather = |parts: &Parts| {
                let own = parts.at.plus(u64::from(rank) * parts.bytes);
                // SAFETY: the caller's memory holds a part of each rank, and the stream is of the GPU that the
                // communicator was made for.
                let status = unsafe {
                    (self.functions.all_gather)(
                        own.get() as *const c_void,
                        parts.at.get() as *mut c_void,
                        parts.bytes as usize,
                        BYTES,
                        self.comm,
                        self.stream.cu_stream().cast(),
                    )
                };
                check(self.functions, "gather with NCCL", status)
            };
            all.iter().map(gather).fold(Ok(()), Result::and)
        })
    }

    /// Makes one operation of the calls that `of` makes.
    fn together(&self, what: &str, of: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.gpu.bind()?;
        let functions = self.functions;
        // SAFETY: it takes nothing.
        check(functions, what, unsafe { (functions.begin)() })?;
        let told = of();
        // SAFETY: it takes nothing. What was begun is ended, whatever came between.
        told.and(check(functions, what, unsafe { (functions.end)() }))
    }

    /// Sums this rank's part of `from`, `count` elements, over ranks. Collective.
    ///
    /// # Errors
    /// What the library refuses.
    pub fn reduce_scatter(
        &self,
        from: Address,
        to: Address,
        count: u64,
        dtype: Dtype,
    ) -> Result<(), Error> {
        self.sum(self.functions.reduce_scatter, from, to, count, dtype)
    }

    /// Sums `count` elements over ranks. Collective.
    ///
    /// # Errors
    /// What the library refuses.
    pub fn all_reduce(
        &self,
        from: Address,
        to: Address,
        count: u64,
        dtype: Dtype,
    ) -> Result<(), Error> {
        self.sum(self.functions.all_reduce, from, to, count, dtype)
    }

    /// Sends each rank its part of `from`, in their order, and receives one from each at `to`: `count` elements each, in one
    /// operation, as newer releases' all-to-all does. Collective over `world` ranks.
    ///
    /// # Errors
    /// What the library refuses.
    pub fn all_to_all(
        &self,
        from: Address,
        to: Address,
        (count, world): (u64, u32),
        dtype: Dtype,
    ) -> Result<(), Error> {
        let part = count * u64::from(dtype.bytes());
        let stream = self.stream.cu_stream().cast();
        self.together("exchange with NCCL", || {
            let mut told = Ok(());
            for peer in 0..world {
                let at = u64::from(peer) * part;
                for (call, address) in [(self.functions.send, from), (self.functions.receive, to)] {
                    // SAFETY: the caller's memory holds `count` elements for each rank, and the stream is of the GPU that the
                    // communicator was made for.
                    let status = unsafe {
                        call(
                            address.plus(at).get() as *mut c_void,
                            count as usize,
                            elements::nccl(dtype),
                            peer as c_int,
                            self.comm,
                            stream,
                        )
                    };
                    told = told.and(check(self.functions, "exchange with NCCL", status));
                }
            }
            told
        })
    }

    fn sum(
        &self,
        how: Reduce,
        from: Address,
        to: Address,
        count: u64,
        dtype: Dtype,
    ) -> Result<(), Error> {
        self.gpu.bind()?;
        // SAFETY: as for `all_gather`.
        let status = unsafe {
            how(
                from.get() as *const c_void,
                to.get() as *mut c_void,
                count as usize,
                elements::nccl(dtype),
                SUM,
                self.comm,
                self.stream.cu_stream().cast(),
            )
        };
        check(self.functions, "sum with NCCL", status)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { (self.functions.destroy)(self.comm) };
    }
}

fn check(functions: Functions, what: &str, status: Status) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: it gives a text of the library's own that ends in zero, for any number.
    let text = unsafe { CStr::from_ptr((functions.text)(status)) };
    Err(Error::Driver {
        what: what.into(),
        code: text.to_string_lossy().into_owned(),
        help: "set NCCL_DEBUG=WARN to see why; NCCL needs a GPU for every rank".into(),
    })
}
