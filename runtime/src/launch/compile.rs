//! Compiles kernels, or takes them from the cache.

use crate::error::Error;
use crate::jit::{Compiled, Compiler, Source, Target};
use counterflow_emitter::{self as text, CudaSource};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Compiles a checked pipeline's text, or takes it from the cache.
///
/// # Errors
/// [`Error::Compile`], with the text around each error.
pub fn compile(compiler: &Compiler, source: &CudaSource) -> Result<Compiled, Error> {
    let target = Target::from_name(source.arch).ok_or_else(|| Error::Usage {
        what: format!("machine code for {:?}", source.arch),
        legal: "sm90: the emulator's kernels have none".into(),
    })?;
    let headers = text::headers(source);
    let headers: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, text)| (*name, &**text))
        .collect();
    compiler.compile(
        &Source::new(&source.entry, &source.with_lines()).with(&headers),
        target,
    )
}

/// For tests that ask whether a text is right, and not what it becomes: half the time, and kernels that nobody should run. What the
/// same process compiles as always may then be other machine code, too: it must be all that the process compiles.
#[must_use]
pub fn unoptimised(compiler: Compiler) -> Compiler {
    compiler.unoptimised()
}

/// Compiles many, as many at a time as there are cores, and all of them whatever is refused. Gives the first error, if any.
///
/// # Errors
/// As [`compile`].
pub fn compile_all(compiler: &Compiler, sources: &[CudaSource]) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Ok(());
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            done = done.and(compile(compiler, source).map(drop));
        }
        done
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.min(sources.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.fold(Ok(()), Result::and)
    })
}
