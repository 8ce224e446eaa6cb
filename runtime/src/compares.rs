//! Launches that are compared with the peers' on the GPUs: those of graphs that the program captured, whose replays call
//! nobody, and from the first capture on a rank's other launches, so that their places among these are compared, too.

use crate::communicator::Communicator;
use crate::cuda::{Arguments, Function, LaunchConfig, Module, Watch};
use crate::driver::{Address, Stream, write};
use crate::error::Error;
use crate::group::Entry;
use crate::jit::{Compiled, Compiler, Probes, Source, Target};
use counterflow_codegen::cuda as text;
use counterflow_codegen::interp::open::{self, Compare};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of that kernel in records. No other has it.
const NUMBER: u32 = u32::MAX;
/// The launch of no host.
const REPLAY: u64 = u64::MAX;

/// What compares a rank's launches.
#[derive(Debug)]
pub(crate) struct Compares {
    /// None on an emulated GPU.
    code: Option<Function>,
    watch: Watch,
    /// Rank 0's part of the heap where launches are written.
    boards: Address,
    stride: u64,
    /// Where the host sees how far the rank is.
    far: Address,
    /// Whether something was captured.
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
    /// For that rank, whose launches were compiled by that compiler.
    pub fn new(
        rank: &Communicator,
        compiler: Option<&Compiler>,
        (boards, watch): (Address, fn(&Communicator, u32) -> Watch),
    ) -> Result<Compares, Error> {
        let code = match rank.gpu().is_emulated() {
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
                let module = Module::load(rank.gpu().cuda()?, &compile_agree(compiler)?)?;
                Some(module.function("agree", 0)?)
            }
        };
        Ok(Compares {
            code,
            watch: watch(rank, NUMBER),
            boards,
            stride: rank.stride(),
            far: rank.ends().far(rank.rank()),
            started: AtomicBool::new(false),
        })
    }

    /// Whether something was captured.
    pub fn has_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// From now on launches are compared. The host has made so many. The caller has the rank's turn.
    pub fn start(&self, rank: &Communicator, launches: u64) -> Result<(), Error> {
        if !self.has_started() {
            let own = self.boards.plus(u64::from(rank.rank()) * self.stride);
            write(rank.own_stream(), own, &[launches])?;
            self.started.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Enqueues the comparison of a launch that follows in the stream. `launch`: which of the rank's host it is; none of a
    /// launch that is captured. The GPU is current.
    #[allow(unsafe_code, reason = "the door to the GPU")]
    pub fn enqueue(
        &self,
        stream: &Stream,
        entry: &Entry,
        launch: Option<u64>,
    ) -> Result<(), Error> {
        let (watch, tag) = (&self.watch, entry.tag());
        let Some(code) = &self.code else {
            return stream.compare(Compare {
                rank: watch.rank,
                world: watch.world,
                boards: self.boards.get(),
                stride: self.stride,
                far: self.far.get(),
                tag,
                launched: launch,
                watch: open::Watch {
                    id: watch.record.get(),
                    kernel: watch.kernel,
                    abort: watch.abort.get(),
                    host: Some(watch.host.get()),
                    limit: watch.timeout_ns,
                },
            });
        };
        let mut arguments = Arguments::new();
        arguments.bytes(&watch.bytes());
        arguments.address(self.boards);
        arguments.bytes(&self.stride.to_le_bytes());
        arguments.address(self.far);
        for number in [tag, launch.unwrap_or(REPLAY)] {
            arguments.bytes(&number.to_le_bytes());
        }
        let grid = LaunchConfig::of(1, watch.world.next_multiple_of(32));
        // SAFETY: the kernel writes its rank's part of the heap and what each peer has there for it, the rank's record
        // and the flags that tell all to give up, which live as long as the communicator; it waits for nobody.
        unsafe { code.enqueue(stream.cuda()?, grid, &arguments) }
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
