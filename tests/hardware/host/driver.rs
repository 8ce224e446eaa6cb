//! The driver's calls as they are made.
//!
//! cudarc and our own code look up each function of the driver by `dlsym`. This program has a `dlsym` of its own, which gives
//! out a door for each: it calls the function, and if the thread wants to know, it writes down the call with what it was
//! given. So what a launch asks of the driver is seen whoever asks it.

use cudarc::driver::sys;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A call of the driver.
#[derive(Clone)]
pub struct Call {
    pub name: String,
    /// Its first arguments, or what lies where they would be. What they point to may be gone.
    pub given: [usize; 8],
    pub read: Read,
}

/// What a call's arguments pointed to.
#[derive(Clone)]
pub enum Read {
    Nothing,
    /// How, and each of the kernel's parameters in words.
    Launch(
        sys::CUlaunchConfig,
        Vec<sys::CUlaunchAttribute>,
        Vec<Vec<u64>>,
    ),
    Operations(Vec<sys::CUstreamBatchMemOpParams>),
    /// To, from, bytes, and the way.
    Copy([u64; 3], sys::CUmemcpyAttributes),
    Lines(sys::CUDA_MEMCPY3D_BATCH_OP),
}

impl Call {
    /// Its name, and how much it does.
    pub fn told(&self) -> String {
        let Call { name, read, .. } = self;
        match read {
            Read::Nothing | Read::Lines(_) => name.clone(),
            Read::Launch(config, attributes, _) => match attributes.is_empty() {
                true => format!("{name} of {} CTAs", config.gridDimX),
                false => format!("{name} of {} CTAs, early", config.gridDimX),
            },
            Read::Operations(operations) => format!("{name} of {}", operations.len()),
            Read::Copy([.., bytes], _) => format!("{name} of {bytes} bytes"),
        }
    }
}

thread_local! {
    static SEEN: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
}

/// How many threads want to know: mostly none, and then a door costs next to nothing.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// The calls that this thread makes in `work`.
pub fn asked<T>(work: impl FnOnce() -> T) -> (T, Vec<Call>) {
    ASKING.fetch_add(1, Ordering::Relaxed);
    SEEN.set(Some(Vec::new()));
    let done = work();
    let seen = SEEN.take().unwrap_or_default();
    ASKING.fetch_sub(1, Ordering::Relaxed);
    (done, seen)
}

/// A call and when it began and ended, or a mark.
#[derive(Clone, Copy)]
pub struct Stamp {
    /// The function's number. None: a mark.
    call: Option<usize>,
    pub from: Instant,
    pub to: Instant,
}

impl Stamp {
    pub fn is_mark(&self) -> bool {
        self.call.is_none()
    }

    /// The function's name, or nothing for a mark.
    pub fn name(&self) -> Option<String> {
        self.call.map(|number| names()[number].clone())
    }
}

thread_local! {
    static STAMPS: RefCell<Vec<Stamp>> = const { RefCell::new(Vec::new()) };
}

/// How many threads want to know when.
static STAMPING: AtomicUsize = AtomicUsize::new(0);

/// When this thread's calls and marks in `work` are, `most` at most. A stamp costs little: nothing is looked up.
pub fn stamped<T>(most: usize, work: impl FnOnce() -> T) -> (T, Vec<Stamp>) {
    STAMPS.set(Vec::with_capacity(most));
    STAMPING.fetch_add(1, Ordering::Relaxed);
    let done = work();
    STAMPING.fetch_sub(1, Ordering::Relaxed);
    let stamps = STAMPS.take();
    assert!(stamps.len() < most, "more stamps than were expected");
    (done, stamps)
}

/// Marks now.
pub fn mark() {
    stamp(None, Instant::now());
}

fn stamp(call: Option<usize>, from: Instant) {
    let to = Instant::now();
    // A thread that ends may call the driver once more.
    let _ = STAMPS.try_with(|stamps| {
        let mut stamps = stamps.borrow_mut();
        // Threads that do not ask have no room.
        if stamps.len() < stamps.capacity() {
            stamps.push(Stamp { call, from, to });
        }
    });
}

/// The names of calls, each with how often it comes in a row.
pub fn told(calls: &[Call]) -> String {
    let names: Vec<String> = calls.iter().map(Call::told).collect();
    let rows = names.chunk_by(|one, next| one == next);
    let told = rows.map(|row| match row.len() {
        1 => row[0].clone(),
        many => format!("{many} {}", row[0]),
    });
    told.collect::<Vec<_>>().join(", ")
}

/// As many words as any function of the driver takes. A function that takes fewer leaves the rest alone.
type Function = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> sys::CUresult;

const ROW: usize = 16;
const ROWS: usize = 10;

/// The functions behind the doors.
static BEHIND: [AtomicUsize; ROW * ROWS] = [const { AtomicUsize::new(0) }; ROW * ROWS];
/// Their names, by the same numbers.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn names() -> std::sync::MutexGuard<'static, Vec<String>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the driver's functions have them"
)]
unsafe extern "C" fn door<const AT: usize, const IN: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
) -> sys::CUresult {
    let number = AT * ROW + IN;
    if ASKING.load(Ordering::Relaxed) > 0 {
        let given = [a, b, c, d, e, f, g, h];
        // SAFETY: these are the arguments of that function.
        unsafe { see(number, given) };
    }
    let behind = BEHIND[number].load(Ordering::Acquire);
    let from = (STAMPING.load(Ordering::Relaxed) > 0).then(Instant::now);
    // SAFETY: it is the function that was looked up, and it takes the first of these words.
    let code = unsafe {
        let behind: Function = std::mem::transmute(behind);
        behind(a, b, c, d, e, f, g, h, i, j, k, l)
    };
    if let Some(from) = from {
        stamp(Some(number), from);
    }
    code
}

/// Writes a call down, if this thread wants to know.
///
/// # Safety
/// That is what the function with this number is given.
unsafe fn see(number: usize, given: [usize; 8]) {
    // A thread that ends may call the driver once more.
    let _ = SEEN.try_with(|seen| {
        if let Ok(mut seen) = seen.try_borrow_mut()
            && let Some(seen) = seen.as_mut()
        {
            let name = names()[number].clone();
            // SAFETY: the caller's promise.
            let read = unsafe { read(&name, given) };
            seen.push(Call { name, given, read });
        }
    });
}

/// What the arguments of the function with that name point to.
///
/// # Safety
/// They are its arguments.
unsafe fn read(name: &str, [a, b, c, _, e, ..]: [usize; 8]) -> Read {
    // SAFETY: as the driver's header declares them.
    unsafe {
        match name {
            "cuLaunchKernelEx" => {
                let config = *(a as *const sys::CUlaunchConfig);
                let count = config.numAttrs as usize;
                let attributes = std::slice::from_raw_parts(config.attrs, count);
                let parameters = parameters(b as sys::CUfunction, c as *const *const u8);
                Read::Launch(config, attributes.to_vec(), parameters)
            }
            "cuStreamBatchMemOp_v2" => {
                let operations = c as *const sys::CUstreamBatchMemOpParams;
                Read::Operations(std::slice::from_raw_parts(operations, b as u32 as usize).to_vec())
            }
            "cuMemcpyBatchAsync_v2" => {
                let way = *(e as *const sys::CUmemcpyAttributes);
                Read::Copy([a, b, c].map(|place| *(place as *const u64)), way)
            }
            "cuMemcpy3DBatchAsync_v2" => Read::Lines(*(b as *const sys::CUDA_MEMCPY3D_BATCH_OP)),
            _ => Read::Nothing,
        }
    }
}

/// Each of a launch's parameters.
///
/// # Safety
/// The function is loaded, and the places hold as many parameters as it takes.
unsafe fn parameters(function: sys::CUfunction, places: *const *const u8) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: the caller's promise; both places are ours, and the driver refuses a parameter that is not there.
    unsafe {
        let next = |at: usize, offset: &mut usize, bytes: &mut usize| {
            sys::cuFuncGetParamInfo(function, at, offset, bytes) == sys::CUresult::CUDA_SUCCESS
        };
        while next(all.len(), &mut offset, &mut bytes) {
            let mut words = vec![0u64; bytes.div_ceil(8)];
            std::ptr::copy_nonoverlapping(*places.add(all.len()), words.as_mut_ptr().cast(), bytes);
            all.push(words);
        }
    }
    all
}

const fn row<const AT: usize>() -> [Function; ROW] {
    [
        door::<AT, 0>,
        door::<AT, 1>,
        door::<AT, 2>,
        door::<AT, 3>,
        door::<AT, 4>,
        door::<AT, 5>,
        door::<AT, 6>,
        door::<AT, 7>,
        door::<AT, 8>,
        door::<AT, 9>,
        door::<AT, 10>,
        door::<AT, 11>,
        door::<AT, 12>,
        door::<AT, 13>,
        door::<AT, 14>,
        door::<AT, 15>,
    ]
}

static DOORS: [[Function; ROW]; ROWS] = [
    row::<0>(),
    row::<1>(),
    row::<2>(),
    row::<3>(),
    row::<4>(),
    row::<5>(),
    row::<6>(),
    row::<7>(),
    row::<8>(),
    row::<9>(),
];

/// The door before a function: always the same one.
fn door_of(name: &str, behind: *mut c_void) -> *mut c_void {
    let mut names = names();
    let at = match names.iter().position(|known| known == name) {
        Some(at) => at,
        None => {
            assert!(names.len() < ROW * ROWS, "more doors are needed");
            names.push(name.into());
            names.len() - 1
        }
    };
    BEHIND[at].store(behind as usize, Ordering::Release);
    DOORS[at / ROW][at % ROW] as *mut c_void
}

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// The system's `dlsym`.
fn system() -> Lookup {
    static SYSTEM: OnceLock<Lookup> = OnceLock::new();
    *SYSTEM.get_or_init(|| {
        let next = usize::MAX as *mut c_void;
        let versions = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"];
        let found = versions.iter().find_map(|version| {
            // SAFETY: both names end in zero, and -1 asks for the next definition after this program's.
            let found = unsafe { dlvsym(next, c"dlsym".as_ptr(), version.as_ptr()) };
            (!found.is_null()).then_some(found)
        });
        let found = found.expect("glibc has dlsym");
        // SAFETY: it is that function.
        unsafe { std::mem::transmute::<*mut c_void, Lookup>(found) }
    })
}

/// What this program's crates call instead of the system's.
///
/// # Safety
/// As the system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let (found, name) = unsafe { (system()(library, name), CStr::from_ptr(name)) };
    match name.to_str() {
        Ok(name) if !found.is_null() && is_driver(name) => door_of(name, found),
        _ => found,
    }
}

/// Whether that is a function of the driver: other libraries of NVIDIA's have a longer prefix in small letters.
fn is_driver(name: &str) -> bool {
    let rest = name.strip_prefix("cu");
    rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}
