//! Ranges of NVIDIA's profilers: what a rank's thread does on the host, with the schedule, the rank and M. NVTX has no
//! library to link: a profiler names its own in a variable, and takes functions of a table that the program offers.
//! Without that variable a range is one load.

use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CString, OsString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::{self, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use tracing::debug;

/// The variable that names the profiler's library.
const LIBRARY: &str = "NVTX_INJECTION64_PATH";
/// As NVTX's header numbers them: the table of tables, the one with the version, and the functions that are used here.
const CALLBACKS: u32 = 1;
const VERSION: u32 = 3;
const CORE: usize = 1;
const PUSH: usize = 9;
const POP: usize = 11;
/// Each module has at most so many functions, counted from 1. Profilers ask for more modules than are used here.
const FUNCTIONS: usize = 16;
const MODULES: usize = 6;

type Function = AtomicPtr<c_void>;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type Export = unsafe extern "C" fn(u32) -> *const c_void;
type Attach = unsafe extern "C" fn(Export) -> c_int;

/// Functions that a profiler puts in: one list for each module.
type Table = [[Function; FUNCTIONS + 1]; MODULES + 1];

const fn empty() -> Table {
    [const { [const { AtomicPtr::new(null_mut()) }; FUNCTIONS + 1] }; MODULES + 1]
}

/// The one that the profiler of this process gets.
static LISTENS: Table = empty();

/// Places of the functions, as profilers want them.
#[repr(transparent)]
struct Places([[*const Function; FUNCTIONS + 1]; MODULES + 1]);

// SAFETY: they are the addresses of a static.
unsafe impl Sync for Places {}

static PLACES: Places = {
    let mut places = [[null::<Function>(); FUNCTIONS + 1]; MODULES + 1];
    let mut module = 1;
    while module <= MODULES {
        let mut at = 1;
        while at <= FUNCTIONS {
            places[module][at] = &raw const LISTENS[module][at];
            at += 1;
        }
        module += 1;
    }
    Places(places)
};

/// NVTX's table of tables.
#[repr(C)]
struct Callbacks {
    size: usize,
    functions: unsafe extern "C" fn(c_int, *mut *const *const Function, *mut c_uint) -> c_int,
}

/// NVTX's table with the version of the interface.
#[repr(C)]
struct Version {
    size: usize,
    version: u32,
    reserved: u32,
    set: unsafe extern "C" fn(u32),
}

static TABLES: Callbacks = Callbacks {
    size: size_of::<Callbacks>(),
    functions,
};

static INTERFACE: Version = Version {
    size: size_of::<Version>(),
    version: 3,
    reserved: 0,
    set: ignored,
};

unsafe extern "C" fn ignored(_: u32) {}

unsafe extern "C" fn functions(
    module: c_int,
    table: *mut *const *const Function,
    last: *mut c_uint,
) -> c_int {
    let module = usize::try_from(module).unwrap_or(0);
    if !(1..=MODULES).contains(&module) {
        return 0;
    }
    // SAFETY: the caller's places, where it wants them.
    unsafe {
        if !table.is_null() {
            *table = PLACES.0[module].as_ptr();
        }
        if !last.is_null() {
            *last = FUNCTIONS as c_uint;
        }
    }
    1
}

unsafe extern "C" fn export(table: u32) -> *const c_void {
    match table {
        CALLBACKS => (&raw const TABLES).cast(),
        VERSION => (&raw const INTERFACE).cast(),
        _ => null(),
    }
}

/// Loads what the variable names, once. Who profiles is told by its absence if that does not work: the program goes on.
fn listens() -> Option<&'static Table> {
    #[cfg(test)]
    if let Some(own) = tests::HEARS.get() {
        return Some(own);
    }
    static ONCE: OnceLock<bool> = OnceLock::new();
    let once = ONCE.get_or_init(|| std::env::var_os(LIBRARY).is_some_and(|path| attached(&path)));
    once.then_some(&LISTENS)
}

fn attached(path: &OsString) -> bool {
    // SAFETY: whoever set the variable wants its code to run in this process.
    let library = unsafe { Library::open(Some(path), RTLD_NOW) };
    let attached = library.and_then(|library| {
        // SAFETY: the type is that of NVTX's header, and so are the tables that it asks for.
        let attached = unsafe {
            let attach = library.get::<Attach>(b"InitializeInjectionNvtx2\0")?;
            attach(export) != 0
        };
        // Its functions are called from now on.
        std::mem::forget(library);
        Ok(attached)
    });
    attached.unwrap_or_else(|error| {
        debug!(%error, "no profiler for ranges");
        false
    })
}

fn function(of: &Table, at: usize) -> Option<*mut c_void> {
    let found = of[CORE][at].load(Ordering::Acquire);
    (!found.is_null()).then_some(found)
}

/// Range of a thread until this is dropped there.
#[must_use = "the range ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Range {
    listens: Option<&'static Table>,
    /// A thread's ranges are its own.
    _thread: ptr::NonNull<()>,
}

/// Begins a range of this thread. `name` is asked for only where a profiler listens.
pub(crate) fn range(name: impl FnOnce() -> String) -> Range {
    range_for(listens(), name)
}

fn range_for(listens: Option<&'static Table>, name: impl FnOnce() -> String) -> Range {
    Range {
        listens: listens.filter(|table| pushed(table, name)),
        _thread: ptr::NonNull::dangling(),
    }
}

fn pushed(to: &Table, name: impl FnOnce() -> String) -> bool {
    let Some(push) = function(to, PUSH) else {
        return false;
    };
    let Ok(name) = CString::new(name()) else {
        return false;
    };
    // SAFETY: a profiler put a function of that type there; it reads the string during the call.
    unsafe { transmute::<*mut c_void, Push>(push)(name.as_ptr()) };
    true
}

impl Drop for Range {
    fn drop(&mut self) {
        let Some(pop) = self.listens.and_then(|table| function(table, POP)) else {
            return;
        };
        // SAFETY: a profiler put a function of that type there.
        unsafe { transmute::<*mut c_void, Pop>(pop)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use crate::schedules::{Sender, gather};
    use half::bf16;
    use std::cell::{Cell, RefCell};
    use std::ffi::CStr;

    thread_local! {
        /// The table of a profiler that listens to this thread alone.
        pub(super) static HEARS: Cell<Option<&'static Table>> = const { Cell::new(None) };
        static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: it is a string, as NVTX says.
        let name = unsafe { CStr::from_ptr(name) };
        SAID.with_borrow_mut(|said| said.push(name.to_string_lossy().into_owned()));
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        SAID.with_borrow_mut(|said| said.push("end".into()));
        0
    }

    /// A table that a profiler has put its functions in.
    fn heard() -> &'static Table {
        let table: &'static Table = Box::leak(Box::new(empty()));
        for (at, function) in [(PUSH, push as Push as *mut c_void), (POP, pop as Pop as _)] {
            table[CORE][at].store(function, Ordering::Release);
        }
        table
    }

    #[test]
    fn a_profiler_is_shown_the_places_of_its_functions() {
        // SAFETY: each table is the one that NVTX's header says.
        unsafe {
            assert!(export(7).is_null());
            let version = &*export(VERSION).cast::<Version>();
            assert_eq!((version.size, version.version), (24, 3));
            (version.set)(3);
            let tables = &*export(CALLBACKS).cast::<Callbacks>();
            assert_eq!(tables.size, 16);
            let (mut table, mut last) = (null(), 0);
            assert_eq!((tables.functions)(0, &raw mut table, &raw mut last), 0);
            assert_eq!((tables.functions)(7, &raw mut table, &raw mut last), 0);
            for (module, places) in LISTENS.iter().enumerate().skip(1) {
                let asked = (tables.functions)(module as c_int, &raw mut table, &raw mut last);
                assert_eq!((asked, last), (1, 16));
                assert!((*table).is_null(), "counted from 1");
                for (at, place) in places.iter().enumerate().skip(1) {
                    assert!(ptr::eq(*table.add(at), &raw const *place));
                }
            }
        }
        assert!(!attached(&"/no/such/profiler.so".into()));
    }

    #[test]
    fn a_profiler_that_listens_gets_ranges_in_their_order_and_nobody_else_is_asked_for_names() {
        SAID.take();
        let heard = Some(heard());
        static DEAF: Table = empty();
        for nobody in [None, Some(&DEAF)] {
            drop(range_for(nobody, || panic!("nobody listens")));
        }
        let outer = range_for(heard, || "outer".into());
        drop(range_for(heard, || "inner".into()));
        drop(outer);
        drop(range_for(heard, || "a\0b".into()));
        assert_eq!(SAID.take(), ["outer", "inner", "end", "end"]);
    }

    #[test]
    fn what_a_rank_does_has_a_range_each() {
        HEARS.set(Some(heard()));
        SAID.take();
        let ranks = Communicator::emulated(1).expect("a rank");
        let rank = &ranks[0];
        rank.reserve(8 << 20).expect("memory");
        let program = gather(Sender::Ctas(4));
        let builder = rank.op(&program).up_to(256, 64, 64).first_options();
        let op = builder.build().expect("an op");
        let x = rank.allocate::<bf16>("x", [256, 64]).expect("memory");
        let w = rank.zeros::<bf16>([64, 64]).expect("memory");
        let mut y = rank.zeros::<bf16>([256, 64]).expect("memory");
        let mut launch = |rows: usize| {
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).rows(rows).launch().map(drop)
        };
        launch(7).expect("launched");
        launch(257).expect_err("too many rows");
        let name = &program.name;
        let wanted = [
            "reserve 8388608 bytes, rank 0".to_owned(),
            "end".into(),
            format!("build {name}, rank 0, M up to 256"),
            "end".into(),
            format!("launch {name}, rank 0, M = 7, N = 64, K = 64"),
            "end".into(),
            format!("launch {name}, rank 0, M = 257, N = 64, K = 64"),
            "end".into(),
        ];
        assert_eq!(SAID.take(), wanted);
        HEARS.set(None);
    }
}
