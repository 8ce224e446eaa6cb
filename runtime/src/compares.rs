//! Launches that are compared with the peers' on the GPUs: those of graphs that the program captured, whose replays call
//! nobody, and from the first capture on a rank's other launches, so that their places among these are compared, too.

use crate::cuda::{Agree, Boards, Watch};
use crate::driver::{Gpu, Stream, write};
use crate::error::Error;
use crate::group::Entry;
use crate::jit::{Compiled, Compiler, Probes, Source, Target};
use counterflow_emitter as text;
use counterflow_emulator::open::{self, Compare};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of that kernel in records. No other has it.
pub(crate) const NUMBER: u32 = u32::MAX;

/// Comparison of a rank's launches with its peers'.
#[derive(Debug)]
pub(crate) struct Compares {
    /// None on an emulated GPU.
    code: Option<Agree>,
    watch: Watch,
    places: Boards,
    /// True if something was captured.
    started: AtomicBool,
}

/// Compiles the kernel that compares launches, or takes it from the cache.
///
/// # Errors
/// As [`Compiler::compile`].
pub fn compile_agree(compiler: &Compiler) -> Result<Compiled, Error> {
    let prelude = text::prelude();
    let headers = [(text::PRELUDE, prelude.as_str())];
    let source = Source::new("agree", text::AGREE).with(&headers);
    let compiler = compiler.clone().with_probes(Probes::default());
    compiler.compile(&source, Target::Sm90a)
}

impl Compares {
    /// For the rank of that watch, on that GPU, whose launches were compiled by that compiler.
    pub fn new(
        gpu: &Gpu,
        compiler: Option<&Compiler>,
        places: Boards,
        watch: Watch,
    ) -> Result<Compares, Error> {
        let code = match gpu.is_emulated() {
            true => None,
            false => {
                let found;
                let compiler = match compiler {
                    Some(compiler) => compiler,
                    None => {
                        found = Compiler::find()?;
                        &found
                    }
                };
                Some(Agree::load(gpu.cuda()?, &compile_agree(compiler)?)?)
            }
        };
        Ok(Compares {
            code,
            watch,
            places,
            started: AtomicBool::new(false),
        })
    }

    /// True if something was captured.
    pub fn has_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// From now on launches are compared, after what is in the rank's own stream. The host has made so many. The caller has
    /// the rank's turn.
    pub fn start(&self, own_stream: &Stream, launches: u64) -> Result<(), Error> {
        if !self.has_started() {
            let Boards { boards, stride, .. } = self.places;
            let own = boards.plus(u64::from(self.watch.rank) * stride);
            write(own_stream, own, &[launches])?;
            self.started.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Enqueues the comparison of a launch that follows in the stream. `launch`: which of the rank's host it is; none of a
    /// launch that is captured. The GPU is current.
    pub fn enqueue(
        &self,
        stream: &Stream,
        entry: &Entry,
        launch: Option<u64>,
    ) -> Result<(), Error> {
        let (watch, places, tag) = (&self.watch, &self.places, entry.tag());
        match &self.code {
            Some(code) => code.enqueue(stream.cuda()?, watch, places, (tag, launch)),
            None => stream.compare(Compare {
                rank: watch.rank,
                world: watch.world,
                boards: places.boards.get(),
                stride: places.stride,
                far: places.far.get(),
                tag,
                launched: launch,
                watch: open::Watch {
                    id: watch.record.get(),
                    kernel: watch.kernel,
                    abort: watch.abort.get(),
                    host: Some(watch.host.get()),
                    limit: watch.timeout_ns,
                },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The emulator and the kernel write into the same memory.
    #[test]
    fn slots_are_as_many_as_the_kernel_has() {
        assert!(text::AGREE.contains(&format!("constexpr u32 AHEAD = {};", open::AHEAD)));
        assert_eq!(Compare::bytes(2), 128 + 2 * open::AHEAD * 16);
    }
}
