//! Sums of gradients over replicas by NCCL. It is bound at run time, and never with multicast.
#![allow(unsafe_code)]

use crate::average::Sums;
use crate::wait::until;
use counterflow::driver::{Event, Stream};
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

/// NCCL's `ncclConfig_t` of the first version that limits CTAs. What newer ones have beside it takes its default.
#[repr(C)]
struct Settings {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster: c_int,
    least_ctas: c_int,
    most_ctas: c_int,
    network: *const c_char,
    split_share: c_int,
}

/// 2.17.
const LIMITS_CTAS: c_int = 21_700;
/// `NCCL_CONFIG_UNDEF_INT`: what is not said takes its default.
const DEFAULT: c_int = c_int::MIN;
/// Variables that NCCL takes before its settings.
const CTAS: [&str; 2] = ["NCCL_MIN_CTAS", "NCCL_MAX_CTAS"];

impl Settings {
    /// No call waits for a replica on the host: such a wait could not be ended. CTAs come one by one, to whatever SMs are free.
    fn of(most_ctas: u32) -> Settings {
        Settings {
            size: size_of::<Settings>(),
            magic: 0xcafe_beef,
            version: LIMITS_CTAS as u32,
            blocking: 0,
            cluster: 0,
            least_ctas: 1,
            most_ctas: most_ctas as c_int,
            network: ptr::null(),
            split_share: DEFAULT,
        }
    }
}

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
    version: unsafe extern "C" fn(*mut c_int) -> Status,
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
    /// Where sums run, beside what the rank goes on to do in its own stream.
    beside: Stream,
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
        help: "install NCCL 2.17 or later, or `pip install nvidia-nccl-cu13`; or leave out --nccl"
            .into(),
    }
}

/// Whether NCCL may be loaded for these ranks, with so many CTAs: for whoever asks before a model is built.
///
/// # Errors
/// [`Error::Usage`] unless every variable that keeps libraries off multicast is set, on emulated ranks, without CTAs, and with a variable
/// that gives NCCL more.
pub fn may_be_loaded(group: &Communicator, most_ctas: u32) -> Result<(), Error> {
    // NCCL may bring others with it: all are forbidden multicast, before anything is loaded.
    multicast::must_be_off("NCCL with all that it loads")?;
    if !(1..=32).contains(&most_ctas) {
        return Err(Error::Usage {
            what: format!("{most_ctas} SMs for NCCL"),
            legal: "give --nccl-sms from 1 to 32".into(),
        });
    }
    if let Some(set) = CTAS.iter().find(|name| std::env::var_os(name).is_some()) {
        return Err(Error::Usage {
            what: format!("{set}, which NCCL takes before --nccl-sms"),
            legal: format!("unset {set}: both sides must leave each other SMs"),
        });
    }
    if group.gpu().is_emulated() {
        return Err(Error::Usage {
            what: "--nccl on emulated ranks".into(),
            legal: "leave it out: without it the library's own sums average".into(),
        });
    }
    Ok(())
}

impl<'w> Replicas<'w> {
    /// Over the ranks of `data`, for tensors of `group`, with so many CTAs at most. Collective: every rank of both makes its own.
    ///
    /// Kernels of `group` that wait for peers must leave as many SMs to these, or each side may keep the SMs that the other waits for: a
    /// sum waits for a replica, whose kernel waits for a rank of its group, which waits for the SMs of a sum.
    ///
    /// # Errors
    /// As [`may_be_loaded`]; [`Error::Toolkit`] without NCCL; what it refuses; as [`Sums::end`].
    pub fn new(
        world: &'w Communicator,
        data: &Communicator,
        group: &Arc<Communicator>,
        most_ctas: u32,
    ) -> Result<Replicas<'w>, Error> {
        may_be_loaded(group, most_ctas)?;
        if !jit::preload(FILE)? {
            return Err(missing(FILE));
        }
        // SAFETY: it is loaded already, and NVIDIA's libraries run no code at loading that depends on anything of ours.
        let library = unsafe { Library::open(Some(FILE), RTLD_NOW) };
        // Never unloaded: its functions are kept as plain pointers.
        let library = ManuallyDrop::new(library.map_err(|error| missing(&error.to_string()))?);
        let functions = Functions {
            version: bind(&library, c"ncclGetVersion")?,
            id: bind(&library, c"ncclGetUniqueId")?,
            init: bind(&library, c"ncclCommInitRankConfig")?,
            all_reduce: bind(&library, c"ncclAllReduce")?,
            state: bind(&library, c"ncclCommGetAsyncError")?,
            abort: bind(&library, c"ncclCommAbort")?,
            text: bind(&library, c"ncclGetErrorString")?,
        };
        let mut version = 0;
        // SAFETY: the place is ours.
        functions.fine("ask", unsafe { (functions.version)(&raw mut version) })?;
        if version < LIMITS_CTAS {
            return Err(missing(&format!("{version} cannot limit its CTAs")));
        }
        let beside = group.gpu().stream()?;
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
        let settings = Settings::of(most_ctas);
        // SAFETY: the places are ours, NCCL copies the settings, and every rank of `data` calls this with the id of its first one.
        let status =
            unsafe { (functions.init)(&raw mut comm, count, id, rank, &raw const settings) };
        let replicas = Replicas {
            functions,
            comm: Cell::new(comm),
            world,
            group: group.clone(),
            beside,
        };
        replicas.or_abort(|| {
            functions.fine("start", status)?;
            replicas.until("the start of NCCL", || replicas.is_idle("start"))
        })?;
        Ok(replicas)
    }

    fn is_alive(&self) -> Result<(), Error> {
        match self.comm.get().is_null() {
            false => Ok(()),
            true => Err(Error::Aborted {
                what: "NCCL's communicator was ended by an earlier error".into(),
                help: "start the replicas again".into(),
            }),
        }
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
            let status = unsafe { (self.functions.abort)(comm) };
            if let Err(error) = self.functions.fine("end", status) {
                let help = error.help().unwrap_or("none");
                eprintln!("warning: {error}\nhelp: {help}");
            }
        }
    }
}

impl Sums for Replicas<'_> {
    /// In place, behind what is in the rank's own stream by now, in a stream beside it.
    ///
    /// # Errors
    /// What NCCL refuses; how the communicator of all ranks ended; [`Error::Aborted`] after the time limit, and after an earlier error.
    fn begin(&self, gradient: &Tensor<f32>) -> Result<(), Error> {
        self.is_alive()?;
        self.beside.wait(&Event::record(self.group.stream())?)?;
        self.group.gpu().cuda()?.bind()?;
        self.or_abort(|| {
            let at = gradient.address().get();
            // SAFETY: the tensor has so many numbers, and the caller keeps it until the sum is done or was aborted. Nobody else uses the
            // communicator, which is none that was aborted.
            let status = unsafe {
                (self.functions.all_reduce)(
                    at as *const c_void,
                    at as *mut c_void,
                    gradient.len(),
                    F32,
                    SUM,
                    self.comm.get(),
                    self.beside.cuda()?.cu_stream().cast(),
                )
            };
            self.functions.fine("sum", status)?;
            // The kernel is in the stream once nothing goes on in the background.
            self.until("a sum by NCCL", || self.is_idle("sum"))
        })
    }

    /// On the host, and before what comes later in the rank's own stream.
    ///
    /// # Errors
    /// As [`Sums::begin`]. Sums that have not ended by the time limit are ended, and all later ones are refused.
    fn end(&self) -> Result<(), Error> {
        self.is_alive()?;
        self.or_abort(|| {
            let summed = Event::record(&self.beside)?;
            self.until("sums by NCCL", || {
                self.is_idle("sum")?;
                summed.is_done()
            })?;
            self.group.stream().wait(&summed)
        })
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
