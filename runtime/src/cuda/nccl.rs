//! NCCL's windows: memory that NCCL's collectives use in place. NCCL is the one that the program has loaded; nothing
//! here starts it.

use super::Gpu;
use super::driver::on;
use crate::error::Error;
use libloading::os::unix::{Library, RTLD_NOW};
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use tracing::warn;

const NAME: &str = "libnccl.so.2";
/// The first version whose windows take memory that others map, too.
const LEAST: c_int = 22_900;
/// As NCCL's header has it: windows start at multiples of this.
pub(crate) const ALIGN: u64 = 4096;
/// As NCCL's header has it: every rank registers the same offset.
const SYMMETRIC: c_int = 1;
/// NCCL goes on with a call that it has answered: its communicator does not block.
const IN_PROGRESS: c_int = 7;
/// The loader finds what is loaded, and loads nothing.
const RTLD_NOLOAD: c_int = 4;

type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
type Register =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut *mut c_void, c_int) -> c_int;
type Deregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Told = unsafe extern "C" fn(c_int) -> *const c_char;

/// The calls that are needed.
#[derive(Clone, Copy)]
struct Calls {
    register: Register,
    deregister: Deregister,
    told: Told,
}

/// A buffer that is registered with a communicator of NCCL's, until this is dropped: NCCL's collectives on that memory
/// copy it to no buffer of their own.
///
/// [`UserBuffer::window`](crate::UserBuffer::window) has an example.
pub struct Window {
    calls: Calls,
    comm: *mut c_void,
    window: *mut c_void,
    /// NCCL's code.
    _library: Option<Library>,
    /// The memory.
    memory: Arc<dyn Any + Send + Sync>,
    /// The GPU that is selected while NCCL is called.
    gpu: Option<Arc<Gpu>>,
}

// SAFETY: NCCL's calls may come from any thread, and nothing here changes.
unsafe impl Send for Window {}
// SAFETY: the same.
unsafe impl Sync for Window {}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Window(..)")
    }
}

impl Window {
    /// NCCL's own handle of it, an `ncclWindow_t`.
    ///
    /// ```no_run
    /// fn told(window: &counterflow::cuda::Window) {
    ///     println!("{:?}", window.raw());
    /// }
    /// ```
    pub fn raw(&self) -> *mut c_void {
        self.window
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let deregister = || {
            // SAFETY: it was registered with that communicator, which lives as the caller promised.
            let code = unsafe { (self.calls.deregister)(self.comm, self.window) };
            self.calls.answered("deregister memory with NCCL", code)
        };
        let done = match &self.gpu {
            Some(gpu) => on(gpu.context(), deregister).flatten(),
            None => deregister(),
        };
        if let Err(error) = done {
            warn!(%error, "NCCL may still use memory, so it stays for as long as the process");
            std::mem::forget(self.memory.clone());
        }
    }
}

fn lacking(what: impl Into<String>) -> Error {
    Error::Toolkit {
        what: what.into(),
        help: "load NCCL 2.29 or later (pip install 'nvidia-nccl-cu13>=2.29') and make its communicator before".into(),
    }
}

/// Calls of the NCCL that the program has loaded.
fn loaded() -> Result<(Library, Version, Calls), Error> {
    // SAFETY: no code runs, since nothing is loaded that was not.
    let named = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_NOLOAD) };
    // A program may have it within itself.
    let library = named.unwrap_or_else(|_| Library::this());
    let function = |name: &str| lacking(format!("NCCL of this process has no {name}"));
    // SAFETY: the types are those of NCCL's manual.
    let found = unsafe {
        let version = library.get::<Version>(b"ncclGetVersion\0");
        let version = version.map_err(|_| lacking("NCCL is not loaded in this process"))?;
        let register = library.get::<Register>(b"ncclCommWindowRegister\0");
        let deregister = library.get::<Deregister>(b"ncclCommWindowDeregister\0");
        let told = library.get::<Told>(b"ncclGetErrorString\0");
        let calls = Calls {
            register: *register.map_err(|_| function("ncclCommWindowRegister"))?,
            deregister: *deregister.map_err(|_| function("ncclCommWindowDeregister"))?,
            told: *told.map_err(|_| function("ncclGetErrorString"))?,
        };
        (*version, calls)
    };
    Ok((library, found.0, found.1))
}

fn must_be_new(version: Version) -> Result<(), Error> {
    let mut number = 0;
    // SAFETY: the place is ours.
    let code = unsafe { version(&raw mut number) };
    if code == 0 && number >= LEAST {
        return Ok(());
    }
    let [major, minor, patch] = [number / 10_000, number / 100 % 100, number % 100];
    Err(lacking(format!(
        "NCCL {major}.{minor}.{patch} is older than 2.29"
    )))
}

impl Calls {
    /// Registers so many bytes from an address on.
    ///
    /// # Safety
    /// As [`register`].
    unsafe fn register(
        self,
        comm: *mut c_void,
        address: u64,
        bytes: u64,
        memory: &Arc<dyn Any + Send + Sync>,
    ) -> Result<*mut c_void, Error> {
        let what = format!("register {bytes} bytes with NCCL");
        // NCCL may write here after it has answered.
        let place: *mut *mut c_void = Box::into_raw(Box::new(ptr::null_mut()));
        let start = address as *mut c_void;
        // SAFETY: the caller's promise; the place is ours.
        let code = unsafe { (self.register)(comm, start, bytes as usize, place, SYMMETRIC) };
        if code == IN_PROGRESS {
            // NCCL may use the memory and the place at any time from now on.
            std::mem::forget(memory.clone());
            return self.answered(&what, code).map(|()| ptr::null_mut());
        }
        // SAFETY: it came from a box, and NCCL is done with it.
        let window = *unsafe { Box::from_raw(place) };
        self.answered(&what, code)?;
        match window.is_null() {
            true => Err(refused(&what, "NCCL makes no window here".into())),
            false => Ok(window),
        }
    }

    /// Turns NCCL's answer into a result.
    fn answered(self, what: &str, code: c_int) -> Result<(), Error> {
        match code {
            0 => Ok(()),
            IN_PROGRESS => Err(Error::Usage {
                what: format!("{what}: the communicator does not block, or a group is open"),
                legal: "a communicator of NCCL's that blocks, outside of ncclGroupStart and ncclGroupEnd".into(),
            }),
            _ => {
                // SAFETY: it is a string that stays.
                let text = unsafe { CStr::from_ptr((self.told)(code)) };
                Err(refused(what, text.to_string_lossy().into_owned()))
            }
        }
    }
}

fn refused(what: &str, why: String) -> Error {
    Error::Driver {
        what: what.into(),
        code: why,
        help: "NCCL_DEBUG=WARN says more; every rank registers the same buffer at the same time"
            .into(),
    }
}

/// Registers memory of a GPU with a communicator of NCCL's.
///
/// # Safety
/// `comm` is an `ncclComm_t` of the NCCL that this process has loaded, of this GPU, that blocks, and lives for as long as
/// the result. This thread has no group of NCCL's open. Every rank of it makes this call. `memory` keeps so many bytes from
/// `address` on.
pub(crate) unsafe fn register(
    gpu: &Arc<Gpu>,
    comm: *mut c_void,
    address: u64,
    bytes: u64,
    memory: Arc<dyn Any + Send + Sync>,
) -> Result<Window, Error> {
    must_be_some(comm)?;
    let (library, version, calls) = loaded()?;
    must_be_new(version)?;
    // SAFETY: the caller's promise.
    let register = || unsafe { calls.register(comm, address, bytes, &memory) };
    let window = on(gpu.context(), register)??;
    Ok(Window {
        calls,
        comm,
        window,
        _library: Some(library),
        memory,
        gpu: Some(gpu.clone()),
    })
}

fn must_be_some(comm: *mut c_void) -> Result<(), Error> {
    if comm.is_null() {
        return Err(Error::Usage {
            what: "no communicator of NCCL's".into(),
            legal: "give an `ncclComm_t` that NCCL made".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static GONE: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn old(place: *mut c_int) -> c_int {
        // SAFETY: as NCCL does.
        unsafe { *place = 22_809 };
        0
    }

    unsafe extern "C" fn new(place: *mut c_int) -> c_int {
        // SAFETY: as NCCL does.
        unsafe { *place = 23_203 };
        0
    }

    unsafe extern "C" fn registers(
        _: *mut c_void,
        start: *mut c_void,
        bytes: usize,
        window: *mut *mut c_void,
        flags: c_int,
    ) -> c_int {
        assert_eq!((bytes, flags), (64, SYMMETRIC));
        // SAFETY: as NCCL does.
        unsafe { *window = start };
        0
    }

    unsafe extern "C" fn makes_none(
        _: *mut c_void,
        _: *mut c_void,
        _: usize,
        _: *mut *mut c_void,
        _: c_int,
    ) -> c_int {
        0
    }

    unsafe extern "C" fn refuses(
        _: *mut c_void,
        _: *mut c_void,
        _: usize,
        _: *mut *mut c_void,
        _: c_int,
    ) -> c_int {
        4
    }

    unsafe extern "C" fn goes_on(
        _: *mut c_void,
        _: *mut c_void,
        _: usize,
        _: *mut *mut c_void,
        _: c_int,
    ) -> c_int {
        IN_PROGRESS
    }

    unsafe extern "C" fn stays(_: *mut c_void, _: *mut c_void) -> c_int {
        4
    }

    unsafe extern "C" fn goes(_: *mut c_void, _: *mut c_void) -> c_int {
        GONE.fetch_add(1, Ordering::Relaxed);
        0
    }

    unsafe extern "C" fn told(code: c_int) -> *const c_char {
        assert_eq!(code, 4);
        c"invalid argument".as_ptr()
    }

    fn calls(register: Register) -> Calls {
        Calls {
            register,
            deregister: goes,
            told,
        }
    }

    #[test]
    fn an_nccl_without_such_windows_is_refused_by_its_version() {
        let told = must_be_new(old).expect_err("too old");
        assert_eq!(told.to_string(), "NCCL 2.28.9 is older than 2.29");
        assert_eq!(told.kind(), "toolkit");
        must_be_new(new).expect("new enough");
    }

    #[test]
    fn what_nccl_refuses_is_told_and_a_window_goes_when_it_is_dropped() {
        let comm = ptr::dangling_mut();
        let memory = Arc::new(());
        let held: Arc<dyn Any + Send + Sync> = memory.clone();
        let register = |by| {
            // SAFETY: nothing here follows an address.
            unsafe { calls(by).register(comm, 4096, 64, &held) }
        };
        let error = register(refuses).expect_err("refused");
        assert!(error.to_string().contains("invalid argument"), "{error}");
        let error = register(makes_none).expect_err("none");
        assert!(error.to_string().contains("makes no window"), "{error}");
        let window = |calls| Window {
            calls,
            comm,
            window: register(registers).expect("registered"),
            _library: None,
            memory: memory.clone(),
            gpu: None,
        };
        let holds = || Arc::strong_count(&memory);
        let before = holds();
        let registered = window(calls(registers));
        assert_eq!((registered.raw() as usize, holds()), (4096, before + 1));
        drop(registered);
        assert_eq!((GONE.load(Ordering::Relaxed), holds()), (1, before));
        // What NCCL may still use is kept.
        let refused = Calls {
            deregister: stays,
            ..calls(registers)
        };
        drop(window(refused));
        assert_eq!(holds(), before + 1);
        let error = register(goes_on).expect_err("nobody knows");
        assert_eq!((error.kind(), holds()), ("usage", before + 2));
    }

    #[test]
    fn a_process_without_nccl_and_no_communicator_are_refused() {
        let error = loaded().err().expect("none here");
        assert_eq!(error.to_string(), "NCCL is not loaded in this process");
        let error = must_be_some(ptr::null_mut()).expect_err("none");
        assert_eq!(error.kind(), "usage");
        must_be_some(ptr::dangling_mut()).expect("some");
    }
}
