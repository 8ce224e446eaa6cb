//! Sums of gradients over replicas by NCCL. It is bound at run time, and never with multicast.
#![allow(unsafe_code)]

use counterflow::cuda::{CudaStream, Gpu};
use counterflow::{Communicator, Error, Tensor, jit, multicast};
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

const FILE: &str = "libnccl.so.2";
const F32: c_int = 7;
const SUM: c_int = 0;

/// NCCL's `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

type Status = c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
) -> Status;

#[derive(Clone, Copy)]
struct Functions {
    id: unsafe extern "C" fn(*mut Id) -> Status,
    init: unsafe extern "C" fn(*mut *mut c_void, c_int, Id, c_int) -> Status,
    all_reduce: AllReduce,
    destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    text: unsafe extern "C" fn(Status) -> *const c_char,
}

/// This rank's end of NCCL's communicator over the replicas, in the order of a tensor-parallel rank.
pub struct Replicas {
    functions: Functions,
    comm: *mut c_void,
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
}

fn bind<T: Copy>(library: &Library, name: &CStr) -> Result<T, Error> {
    // SAFETY: the type is that of NCCL's manual, the same since its second version, and the library is never unloaded.
    let symbol = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    symbol
        .map(|symbol| *symbol)
        .map_err(|error| missing(&error.to_string()))
}

fn missing(why: &str) -> Error {
    Error::Toolkit {
        what: format!("no NCCL to average with: {why}"),
        help: "install it, or `pip install nvidia-nccl-cu13`; or leave out --nccl".into(),
    }
}

impl Replicas {
    /// Over the ranks of `data`, for tensors of `group`. Collective: every rank of both makes its own.
    ///
    /// # Errors
    /// [`Error::Usage`] unless every variable that keeps libraries off multicast is set, and on emulated ranks; [`Error::Toolkit`] without
    /// NCCL; what it refuses.
    pub fn new(data: &Communicator, group: &Communicator) -> Result<Replicas, Error> {
        // NCCL may bring others with it: all are forbidden multicast, before anything is loaded.
        multicast::must_be_off("NCCL with all that it loads")?;
        if group.gpu().is_emulated() {
            return Err(Error::Usage {
                what: "--nccl on emulated ranks".into(),
                legal: "leave it out: without it the library's own sums average".into(),
            });
        }
        if !jit::preload(FILE)? {
            return Err(missing(FILE));
        }
        // SAFETY: it is loaded already, and NVIDIA's libraries run no code at loading that depends on anything of ours.
        let library = unsafe { Library::open(Some(FILE), RTLD_NOW) };
        // Never unloaded: its functions are kept as plain pointers.
        let library = ManuallyDrop::new(library.map_err(|error| missing(&error.to_string()))?);
        let functions = Functions {
            id: bind(&library, c"ncclGetUniqueId")?,
            init: bind(&library, c"ncclCommInitRank")?,
            all_reduce: bind(&library, c"ncclAllReduce")?,
            destroy: bind(&library, c"ncclCommDestroy")?,
            text: bind(&library, c"ncclGetErrorString")?,
        };
        let gpu = group.gpu().cuda()?.clone();
        gpu.bind()?;
        let shared = data.allocate::<u8>("NCCL's id", [128])?;
        if data.rank() == 0 {
            let mut id = Id([0; 128]);
            // SAFETY: the place is ours.
            functions.fine("make an id", unsafe { (functions.id)(&raw mut id) })?;
            shared.write(&id.0)?;
        }
        data.synchronize()?;
        data.barrier()?;
        let mut id = Id([0; 128]);
        id.0.copy_from_slice(&shared.read_on(0)?);
        let (world, rank) = (data.world() as c_int, data.rank() as c_int);
        let mut comm = std::ptr::null_mut();
        // SAFETY: the place is ours, and every rank of `data` calls this with the id of its first one.
        let status = unsafe { (functions.init)(&raw mut comm, world, id, rank) };
        functions.fine("start", status)?;
        Ok(Replicas {
            functions,
            comm,
            gpu,
            stream: group.stream().cuda()?.clone(),
        })
    }

    /// Enqueues the sum over the replicas, in place, in the order of the rank's own launches: so on every GPU it comes after the same
    /// kernels, and none of those that wait for peers runs beside it.
    ///
    /// # Errors
    /// What NCCL refuses.
    pub fn sum(&self, gradient: &mut Tensor<f32>) -> Result<(), Error> {
        self.gpu.bind()?;
        let at = gradient.address().get();
        // SAFETY: the tensor has so many numbers, and lives until the stream has come past this: it is freed in its order. Nobody else
        // uses the communicator.
        let status = unsafe {
            (self.functions.all_reduce)(
                at as *const c_void,
                at as *mut c_void,
                gradient.len(),
                F32,
                SUM,
                self.comm,
                self.stream.cu_stream().cast(),
            )
        };
        self.functions.fine("sum", status)
    }
}

impl Functions {
    fn fine(&self, what: &str, status: Status) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it gives a text of the library's own that ends in zero, for any number.
        let text = unsafe { CStr::from_ptr((self.text)(status)) };
        Err(Error::Driver {
            what: format!("{what} with NCCL"),
            code: text.to_string_lossy().into_owned(),
            help: "set NCCL_DEBUG=WARN to see why; NCCL needs a GPU for every rank".into(),
        })
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // What was enqueued is done before it is gone; an error was told where the results were read.
        let _ = self.stream.synchronize();
        // SAFETY: nobody else has it, and its work is done.
        unsafe { (self.functions.destroy)(self.comm) };
    }
}
