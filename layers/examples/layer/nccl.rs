//! Sums of gradients over replicas by NCCL. It is bound at run time, and never with multicast.
#![allow(unsafe_code)]

use crate::wait::until;
use counterflow::driver::Event;
use counterflow::{Communicator, Error, Tensor, jit, multicast};
use libloading::os::unix::{Library, RTLD_NOW};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

const FILE: &str = "libnccl.so.2";
const F32: c_int = 7;
const SUM: c_int = 0;
/// `ncclInProgress`: a call goes on in the background.
const IN_PROGRESS: Status = 7;

/// NCCL's `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

/// NCCL's `ncclConfig_t` of the first version that has one. What newer ones have beside it takes its default.
#[repr(C)]
struct Settings {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// No call waits for a replica on the host: such a wait could not be ended.
static WITHOUT_WAITING: Settings = Settings {
    size: size_of::<Settings>(),
    magic: 0xcafe_beef,
    version: 21_400,
    blocking: 0,
};

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
    init: unsafe extern "C" fn(*mut *mut c_void, c_int, Id, c_int, *const Settings) -> Status,
    all_reduce: AllReduce,
    state: unsafe extern "C" fn(*mut c_void, *mut Status) -> Status,
    abort: unsafe extern "C" fn(*mut c_void) -> Status,
    text: unsafe extern "C" fn(Status) -> *const c_char,
}

/// This rank's end of NCCL's communicator over the replicas, in the order of a tensor-parallel rank.
pub struct Replicas<'w> {
    functions: Functions,
    /// Null once it was aborted.
    comm: Cell<*mut c_void>,
    /// All ranks: whichever is gone, no sum is whole.
    world: &'w Communicator,
    group: Arc<Communicator>,
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
        help: "install NCCL 2.14 or later, or `pip install nvidia-nccl-cu13`; or leave out --nccl"
            .into(),
    }
}

impl<'w> Replicas<'w> {
    /// Over the ranks of `data`, for tensors of `group`. Collective: every rank of both makes its own.
    ///
    /// # Errors
    /// [`Error::Usage`] unless every variable that keeps libraries off multicast is set, and on emulated ranks; [`Error::Toolkit`] without
    /// NCCL; what it refuses; as [`Replicas::sum`].
    pub fn new(
        world: &'w Communicator,
        data: &Communicator,
        group: &Arc<Communicator>,
    ) -> Result<Replicas<'w>, Error> {
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
            init: bind(&library, c"ncclCommInitRankConfig")?,
            all_reduce: bind(&library, c"ncclAllReduce")?,
            state: bind(&library, c"ncclCommGetAsyncError")?,
            abort: bind(&library, c"ncclCommAbort")?,
            text: bind(&library, c"ncclGetErrorString")?,
        };
        group.gpu().cuda()?.bind()?;
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
        let (count, rank) = (data.world() as c_int, data.rank() as c_int);
        let mut comm = ptr::null_mut();
        // SAFETY: the places are ours, and every rank of `data` calls this with the id of its first one.
        let status =
            unsafe { (functions.init)(&raw mut comm, count, id, rank, &raw const WITHOUT_WAITING) };
        let replicas = Replicas {
            functions,
            comm: Cell::new(comm),
            world,
            group: group.clone(),
        };
        replicas.or_abort(|| {
            functions.fine("start", status)?;
            replicas.until("the start of NCCL", || replicas.is_idle("start"))
        })?;
        Ok(replicas)
    }

    /// The sum over the replicas, in place, behind the rank's own launches: so on every GPU it comes after the same kernels, and none
    /// of those that wait for peers runs beside it. Waits for it.
    ///
    /// # Errors
    /// What NCCL refuses; how the communicator of all ranks ended; [`Error::Aborted`] after the time limit. The sum is ended then, and
    /// all later ones are refused.
    pub fn sum(&self, gradient: &mut Tensor<f32>) -> Result<(), Error> {
        if self.comm.get().is_null() {
            return Err(Error::Aborted {
                what: "NCCL's communicator was ended by an earlier error".into(),
                help: "start the replicas again".into(),
            });
        }
        // The launches before have a time limit of their own.
        self.group.synchronize()?;
        self.group.gpu().cuda()?.bind()?;
        self.or_abort(|| {
            let (at, stream) = (gradient.address().get(), self.group.stream());
            // SAFETY: the tensor has so many numbers, and lives until the sum is done or was aborted. Nobody else uses the communicator,
            // which is none that was aborted.
            let status = unsafe {
                (self.functions.all_reduce)(
                    at as *const c_void,
                    at as *mut c_void,
                    gradient.len(),
                    F32,
                    SUM,
                    self.comm.get(),
                    stream.cuda()?.cu_stream().cast(),
                )
            };
            self.functions.fine("sum", status)?;
            // The kernel is in the stream once nothing goes on in the background.
            self.until("a sum by NCCL", || self.is_idle("sum"))?;
            let summed = Event::record(stream)?;
            self.until("a sum by NCCL", || {
                self.is_idle("sum")?;
                summed.is_done()
            })
        })
    }

    /// Does it, and where that fails, aborts the communicator, which ends its kernels, and tells all ranks.
    fn or_abort(&self, run: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        run().inspect_err(|error| {
            self.abort();
            self.world.abort(error);
        })
    }

    fn until(&self, what: &str, done: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
        // Nothing is launched on the communicator of all ranks: this tells how it ended, if it did.
        let alive = || self.world.synchronize();
        until(what, self.world.timeout(), done, alive)
    }

    /// True if no call goes on in the background.
    ///
    /// # Errors
    /// What a call, or a kernel of the communicator's, ended with.
    fn is_idle(&self, what: &str) -> Result<bool, Error> {
        let mut state = 0;
        // SAFETY: the communicator is alive, and the place is ours.
        let status = unsafe { (self.functions.state)(self.comm.get(), &raw mut state) };
        self.functions.fine(what, status)?;
        self.functions.fine(what, state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Ends what the communicator does, and frees it. It waits for no replica.
    fn abort(&self) {
        let comm = self.comm.replace(ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: nobody has it any more.
            unsafe { (self.functions.abort)(comm) };
        }
    }
}

impl Functions {
    fn fine(&self, what: &str, status: Status) -> Result<(), Error> {
        if status == 0 || status == IN_PROGRESS {
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

impl Drop for Replicas<'_> {
    fn drop(&mut self) {
        // Every sum was waited for, or is to be ended: to destroy it might wait for a replica that is gone.
        self.abort();
    }
}
