//! CUDA text to machine code, with or without a GPU: NVRTC, a disk cache, and facts about the result.
//!
//! ```no_run
//! use counterflow_runtime::jit::{Compiler, Source, Target};
//!
//! let compiler = Compiler::find()?;
//! let kernel = compiler.compile(&Source::new("nothing", "extern \"C\" __global__ void nothing() {}"), Target::Sm90a)?;
//! println!("{} bytes, {} registers", kernel.cubin().len(), kernel.facts[0].registers);
//! # Ok::<(), counterflow_runtime::Error>(())
//! ```
//!
//! NVRTC is found, loaded and called here and nowhere else. The same text, options and compiler give the same bytes.

mod cache;
mod excerpt;
mod facts;
mod fill;
mod libraries;
mod nvrtc;
mod once;
mod options;
mod room;
pub mod sass;
pub mod sass_checks;
mod source;

pub use crate::error::{CompileError, Excerpt};
pub use cache::{Cache, Cached};
pub use facts::Facts;
pub(crate) use facts::defines;
pub(crate) use fill::{filling, gpu_that_is_filled_for, ranks_that_fill};
pub use nvrtc::preload;
pub use options::{Probes, Target};
pub use source::Source;

use crate::error::Error;
use nvrtc::Nvrtc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Machine code and what is known about it.
///
/// ```
/// use counterflow::jit::Compiled;
///
/// fn save(kernel: &Compiled, path: &str) -> std::io::Result<()> {
///     println!("{} kernels in {:?}", kernel.facts.len(), kernel.took);
///     std::fs::write(path, kernel.cubin()) // for NVIDIA's tools
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The cubin that the driver loads. The driver trusts it, so only the compiler and its cache make one.
    pub(crate) cubin: Arc<[u8]>,
    /// The compiler's log, also without errors: register counts, warnings.
    pub log: String,
    /// Resources of each kernel, by name.
    pub facts: Vec<Facts>,
    /// Origin of the machine code: the cache, or the compiler.
    pub cached: Cached,
    /// The time from text to machine code.
    pub took: Duration,
}

impl Compiled {
    /// The cubin that the driver loads.
    pub fn cubin(&self) -> &[u8] {
        &self.cubin
    }
}

/// NVRTC and a cache, or a cache alone that another machine filled.
///
/// ```no_run
/// use counterflow::jit::{Cache, Cached, Compiled, Compiler, Probes, Source, Target};
///
/// const TEXT: &str = "extern \"C\" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }";
///
/// let compiler = Compiler::find()?.with_cache(Cache::at("kernels"));
/// println!("{}: {:?}", compiler.describe(), compiler.version());
/// let scale: Compiled = compiler.compile(&Source::new("scale", TEXT), Target::Sm90a)?;
/// println!("{} bytes in {:?}; {}", scale.cubin().len(), scale.took, scale.log);
/// let again = compiler.compile_all(&[(Source::new("scale", TEXT), Target::Sm90a)]);
/// assert!(again.into_iter().all(|one| one.is_ok_and(|one| one.cached == Cached::Hit)));
/// compiler.seal()?; // the folder now serves machines with `COUNTERFLOW_NVRTC=off`
///
/// let traced = compiler.with_probes(Probes { trace: true, ..Probes::default() });
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    with: With,
    cache: Cache,
    probes: Probes,
    optimises: bool,
}

#[derive(Clone, Debug)]
enum With {
    Nvrtc(Arc<Nvrtc>),
    /// No compiler here: only the cache's entries from the compiler of that name.
    Sealed(String),
}

impl Compiler {
    /// This machine's compiler, with the user's cache. `COUNTERFLOW_NVRTC=off` uses no compiler: the cache must then
    /// hold everything, sealed where it was filled.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if there is none, with the folders searched and how to get it.
    pub fn find() -> Result<Compiler, Error> {
        let cache = Cache::of_user();
        let with = if std::env::var_os(libraries::NVRTC).is_some_and(|value| value == "off") {
            With::Sealed(cache.sealed_by()?)
        } else {
            With::Nvrtc(Nvrtc::shared()?)
        };
        Ok(Compiler {
            with,
            cache,
            probes: Probes::default(),
            optimises: true,
        })
    }

    /// Records in the cache which compiler filled it, so that a machine without one can use it.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if the cache is off or cannot be written.
    pub fn seal(&self) -> Result<(), Error> {
        self.cache.seal(self.identity())
    }

    /// Adds test code to the kernels that are compiled from here on.
    #[must_use]
    pub fn with_probes(mut self, probes: Probes) -> Compiler {
        self.probes = probes;
        self
    }

    /// As [`crate::launch::unoptimised`], which users of the stable interface do not see.
    pub(crate) fn unoptimised(mut self) -> Compiler {
        self.optimises = false;
        self
    }

    /// Replaces the cache.
    #[must_use]
    pub fn with_cache(mut self, cache: Cache) -> Compiler {
        self.cache = cache;
        self
    }

    /// The compiler's version, and where it was found.
    pub fn describe(&self) -> String {
        match &self.with {
            With::Nvrtc(nvrtc) => nvrtc.describe(),
            With::Sealed(by) => format!("a cache that {by} filled"),
        }
    }

    /// NVRTC's version, major and minor. None where a cache stands in for the compiler.
    pub fn version(&self) -> Option<(u32, u32)> {
        match &self.with {
            With::Nvrtc(nvrtc) => Some(nvrtc.version()),
            With::Sealed(_) => None,
        }
    }

    /// True if what it compiles stays for others.
    pub(crate) fn keeps(&self) -> bool {
        self.cache.dir().is_some()
    }

    pub(crate) const fn probes(&self) -> Probes {
        self.probes
    }

    fn identity(&self) -> &str {
        match &self.with {
            With::Nvrtc(nvrtc) => nvrtc.identity(),
            With::Sealed(by) => by,
        }
    }

    /// Compiles a source, or takes its machine code from the cache.
    ///
    /// # Errors
    /// [`Error::Compile`] with the schedule's line, the generated lines around it and the log.
    pub fn compile(&self, source: &Source<'_>, target: Target) -> Result<Compiled, Error> {
        let start = Instant::now();
        let options = options::options(target, self.probes, self.optimises);
        let key = cache::key(source, &options, self.identity());
        let cached = || {
            let (cubin, log) = self.cache.get(&key)?;
            let facts = facts::read(&cubin).ok()?;
            Some(Compiled {
                cubin: cubin.into(),
                log,
                facts,
                cached: Cached::Hit,
                took: start.elapsed(),
            })
        };
        if let Some(compiled) = cached() {
            return Ok(compiled);
        }
        let With::Nvrtc(nvrtc) = &self.with else {
            return Err(self.cache.lacks(&key, source.name));
        };
        // Ranks are threads that want the same kernels at the same time.
        let _turn = self.keeps().then(|| once::Turn::of(key));
        if let Some(compiled) = cached() {
            return Ok(compiled);
        }
        let (cubin, log) = nvrtc.compile(source, &options)?;
        let facts = facts::read(&cubin)?;
        let cached = self.cache.put(&key, &cubin, &log);
        Ok(Compiled {
            cubin: cubin.into(),
            log,
            facts,
            cached,
            took: start.elapsed(),
        })
    }

    /// Compiles all of them, as many at a time as there are cores; the answers are in the order of the sources.
    pub fn compile_all(&self, sources: &[(Source<'_>, Target)]) -> Vec<Result<Compiled, Error>> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some((source, target)) = sources.get(index) else {
                    return done;
                };
                done.push((index, self.compile(source, *target)));
            }
        };
        let mut done: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers.min(sources.len()))
                .map(|_| scope.spawn(work))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| match thread.join() {
                    Ok(done) => done,
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect()
        });
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, compiled)| compiled).collect()
    }
}
