//! NVRTC's ten functions, bound from the files that were found.
//!
//! They are not bound by name through the loader. With several toolkits on a machine the loader might pick another one
//! than the one whose version is in the cache's key, and a missing library must be an error, not a panic.
#![allow(unsafe_code)]

use super::libraries::{self, Libraries};
use super::source::Source;
use crate::error::{CompileError, Error};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

type Program = *mut c_void;
type Status = c_int;
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> Status;
type TextOf = unsafe extern "C" fn(Program, *mut c_char) -> Status;
type Texts = *const *const c_char;

const SUCCESS: Status = 0;
const COMPILATION_FAILED: Status = 6;

/// The loaded compiler. Never unloaded: libraries that start threads must not be.
pub(super) struct Nvrtc {
    from: Libraries,
    version: (c_int, c_int),
    identity: String,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        Texts,
        Texts,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, Texts) -> Status,
    log_size: SizeOf,
    log: TextOf,
    cubin_size: SizeOf,
    cubin: TextOf,
    text_of: unsafe extern "C" fn(Status) -> *const c_char,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Nvrtc {
    /// The process's compiler. It is found and loaded once; a failure is not remembered.
    pub(super) fn shared() -> Result<Arc<Nvrtc>, Error> {
        static SHARED: Mutex<Option<Arc<Nvrtc>>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvrtc) = &*shared {
            return Ok(nvrtc.clone());
        }
        let found = libraries::find(&libraries::of_process, &libraries::program())?;
        let nvrtc = Arc::new(Nvrtc::load(found)?);
        *shared = Some(nvrtc.clone());
        Ok(nvrtc)
    }

    fn load(from: Libraries) -> Result<Nvrtc, Error> {
        // First the builtins: libnvrtc opens them by bare name, and the loader matches what is loaded already.
        keep(&from.builtins)?;
        let library = keep(&from.nvrtc)?;
        let version_of: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
            bind(library, &from, c"nvrtcVersion")?;
        let mut version = (0, 0);
        // SAFETY: both pointers are to integers on this stack.
        unsafe { version_of(&raw mut version.0, &raw mut version.1) };
        // Releases of one minor version differ only in their files.
        let [nvrtc, builtins] = [&from.nvrtc, &from.builtins].map(|path| libraries::contents(path));
        let identity = format!("nvrtc {}.{} {} {}", version.0, version.1, nvrtc?, builtins?);
        Ok(Nvrtc {
            version,
            identity,
            create: bind(library, &from, c"nvrtcCreateProgram")?,
            destroy: bind(library, &from, c"nvrtcDestroyProgram")?,
            compile: bind(library, &from, c"nvrtcCompileProgram")?,
            log_size: bind(library, &from, c"nvrtcGetProgramLogSize")?,
            log: bind(library, &from, c"nvrtcGetProgramLog")?,
            cubin_size: bind(library, &from, c"nvrtcGetCUBINSize")?,
            cubin: bind(library, &from, c"nvrtcGetCUBIN")?,
            text_of: bind(library, &from, c"nvrtcGetErrorString")?,
            from,
        })
    }

    pub(super) fn describe(&self) -> String {
        let (major, minor) = self.version;
        format!("NVRTC {major}.{minor} from {}", self.from.nvrtc.display())
    }

    /// Major and minor version.
    pub(super) fn version(&self) -> (u32, u32) {
        (self.version.0.unsigned_abs(), self.version.1.unsigned_abs())
    }

    /// This compiler's identity, for the cache's key.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Machine code and the log. Any number of threads may compile at once.
    pub(super) fn compile(
        &self,
        source: &Source<'_>,
        options: &[String],
    ) -> Result<(Vec<u8>, String), Error> {
        let text = no_zeros(source.text)?;
        let name = no_zeros(&format!("{}.cu", source.name))?;
        let options: Vec<CString> = options
            .iter()
            .map(|option| no_zeros(option))
            .collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Unit {
            nvrtc: self,
            program: ptr::null_mut(),
        };
        let headers: Vec<(CString, CString)> = source
            .headers
            .iter()
            .map(|(name, text)| Ok((no_zeros(name)?, no_zeros(text)?)))
            .collect::<Result<_, Error>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        // SAFETY: the program's place is ours; all texts end in zero and outlive the call; both lists of headers have
        // as many entries as is said.
        let made = unsafe {
            (self.create)(
                &raw mut program.program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", made)?;
        // SAFETY: the program is alive, and the list has as many zero-ended texts as is said.
        let compiled =
            unsafe { (self.compile)(program.program, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.bytes("nvrtcGetProgramLog", self.log_size, self.log)?;
        let log = String::from_utf8_lossy(&log)
            .trim_end_matches('\0')
            .to_owned();
        if compiled == COMPILATION_FAILED {
            return Err(Error::Compile(Box::new(CompileError::new(source, log))));
        }
        self.check("nvrtcCompileProgram", compiled)?;
        Ok((
            program.bytes("nvrtcGetCUBIN", self.cubin_size, self.cubin)?,
            log,
        ))
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function gives a static text for every number.
        let text = unsafe { CStr::from_ptr((self.text_of)(status)) };
        Err(Error::Toolkit {
            what: format!("{call}: {} ({})", text.to_string_lossy(), self.describe()),
            help: "the library is there but does not work: `.ci/cuda.sh` fetches a fresh one into .cuda/".into(),
        })
    }
}

/// A program being compiled; destroyed on every way out.
struct Unit<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Unit<'_> {
    fn bytes(&self, call: &'static str, size: SizeOf, get: TextOf) -> Result<Vec<u8>, Error> {
        let mut bytes = 0;
        // SAFETY: the program is alive and the size's place is ours.
        let sized = unsafe { size(self.program, &raw mut bytes) };
        self.nvrtc.check(call, sized)?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer is as large as the call before said.
        let got = unsafe { get(self.program, buffer.as_mut_ptr().cast()) };
        self.nvrtc.check(call, got)?;
        Ok(buffer)
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: it was created, and nobody uses it after this.
            unsafe { (self.nvrtc.destroy)(&raw mut self.program) };
        }
    }
}

/// A function of the library.
fn bind<F: Copy>(library: &'static Library, from: &Libraries, name: &CStr) -> Result<F, Error> {
    // SAFETY: nvrtc.h declares the function of that name with the type of the place it goes to; the library stays.
    let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    symbol
        .map(|symbol| *symbol)
        .map_err(|error| Error::Toolkit {
            what: format!("{}: {error}", from.nvrtc.display()),
            help: "NVRTC 13.0 or later is needed: `.ci/cuda.sh` fetches one".into(),
        })
}

/// Loads a library for the rest of the process.
fn keep(path: &Path) -> Result<&'static Library, Error> {
    // SAFETY: NVIDIA's libraries run no code at loading that depends on anything of ours.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    match library {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(Error::Toolkit {
            what: format!("{} does not load: {error}", path.display()),
            help: "it is incomplete, or for another system: `.ci/cuda.sh` fetches one into .cuda/"
                .into(),
        }),
    }
}

/// Loads another of NVIDIA's libraries by its path, from where NVRTC is searched for or a Python package beside it. The
/// loader then finds it by its bare name. Gives whether this machine has it.
///
/// ```
/// use counterflow::jit::preload;
///
/// assert!(preload("/lib/libcublasLt.so.13").is_err(), "a name, not a path");
/// ```
///
/// # Errors
/// [`Error::Toolkit`] if it exists but does not load, or others may write it; [`Error::Usage`] for a path in place of a name.
pub fn preload(name: &str) -> Result<bool, Error> {
    if Path::new(name).file_name() != Some(name.as_ref()) {
        return Err(Error::Usage {
            what: format!("a library named {name:?}"),
            legal: "the name of a file, without folders".into(),
        });
    }
    match libraries::other(&libraries::of_process, &libraries::program(), name)? {
        Some(path) => keep(&path).map(|_| true),
        None => Ok(false),
    }
}

fn no_zeros(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Usage {
        what: "the source has a zero byte".into(),
        legal: "text".into(),
    })
}
