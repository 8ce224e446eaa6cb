//! Kernels that measure memory and links, and how many clusters a GPU places.

use super::{Address, Arguments, Function, Gpu, LaunchConfig, Module};
use crate::error::Error;
use crate::jit::{Compiled, Compiler, Source, Target};
use counterflow_emitter as text;
use cudarc::driver::CudaStream;
use std::sync::Arc;

const TEXT: &str = include_str!("probes.cu");
/// Bytes of one bulk copy.
pub(crate) const CHUNK: u64 = 16 << 10;
/// Dynamic shared memory of the kernels that read and copy.
const SLOTS: u32 = 8 * CHUNK as u32;
/// Dynamic shared memory of a kernel that has an SM alone.
const WHOLE_SM: u32 = 200 << 10;
/// Threads of a CTA: one of them works.
const THREADS: u32 = 32;

/// Kernels of the probes, loaded on a GPU.
#[derive(Debug)]
pub(crate) struct Probes {
    gpu: Arc<Gpu>,
    read: Function,
    moves: Function,
    signal: Function,
    whole: Function,
}

/// Reads of CTAs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    pub from: Address,
    /// Chunks there.
    pub chunks: u64,
    /// Chunks that each CTA reads.
    pub each: u64,
    /// Chunks from the first one of a CTA to the first one of the next.
    pub first: u64,
    /// Chunks from one to the next of the same CTA.
    pub step: u64,
    /// CTAs that read the same chunks.
    pub alike: u32,
}

/// Copies of CTAs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moves {
    pub from: Address,
    pub to: Address,
    pub chunks: u64,
    /// True to add to what is there.
    pub add: bool,
    /// A `u32` that is 0.
    pub ticket: Address,
}

/// Signals that two sides give each other in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    /// A `u64` that is 0, where this side is signalled.
    pub own: Address,
    /// The other side's.
    pub other: Address,
    /// True for the side that signals first.
    pub begins: bool,
    /// Signals of each side.
    pub rounds: u64,
    /// Number of the first ones that are not timed.
    pub warm: u64,
    /// A `u64` that becomes the nanoseconds.
    pub told: Address,
}

/// Compiles the kernels.
///
/// # Errors
/// As [`Compiler::compile`].
pub(crate) fn compile(compiler: &Compiler) -> Result<Compiled, Error> {
    let prelude = text::prelude();
    let headers = [(text::PRELUDE, prelude.as_str())];
    compiler.compile(&Source::new("probes", TEXT).with(&headers), Target::Sm90a)
}

impl Probes {
    /// Loads what [`compile`] compiled.
    ///
    /// # Errors
    /// As [`Module::load`] and [`Module::function`].
    pub fn load(gpu: &Arc<Gpu>, compiled: &Compiled) -> Result<Probes, Error> {
        let module = Module::load(gpu, compiled)?;
        Ok(Probes {
            read: module.function("probe_read", SLOTS)?,
            moves: module.function("probe_move", SLOTS)?,
            signal: module.function("probe_signal", 0)?,
            whole: module.function("probe_whole_sm", WHOLE_SM)?,
            gpu: gpu.clone(),
        })
    }

    /// Enqueues reads by so many CTAs.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn read(&self, stream: &CudaStream, ctas: u32, reads: Reads) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.address(reads.from);
        for number in [reads.chunks, reads.each, reads.first, reads.step] {
            arguments.bytes(&number.to_le_bytes());
        }
        arguments.number(reads.alike);
        let grid = LaunchConfig::of(ctas, THREADS);
        // SAFETY: it reads `chunks` chunks, which the caller's memory holds, and waits for its own copies.
        unsafe { self.read.launch(stream, grid, &arguments) }
    }

    /// Enqueues copies by so many CTAs.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn moves(&self, stream: &CudaStream, ctas: u32, moves: Moves) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.address(moves.from);
        arguments.address(moves.to);
        arguments.bytes(&moves.chunks.to_le_bytes());
        arguments.number(moves.add.into());
        arguments.address(moves.ticket);
        let grid = LaunchConfig::of(ctas, THREADS);
        // SAFETY: it reads and writes `chunks` chunks of memory that the caller holds, and waits for its own copies.
        unsafe { self.moves.launch(stream, grid, &arguments) }
    }

    /// Enqueues one side of signals, or both sides, each in a CTA, on one GPU. It waits for the other side for two seconds at most.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn signal(&self, stream: &CudaStream, sides: u32, signals: Signals) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.address(signals.own);
        arguments.address(signals.other);
        arguments.number(signals.begins.into());
        arguments.bytes(&signals.rounds.to_le_bytes());
        arguments.bytes(&signals.warm.to_le_bytes());
        arguments.address(signals.told);
        let grid = LaunchConfig::of(sides, THREADS);
        // SAFETY: it writes three cells that the caller holds, and gives up after two seconds.
        unsafe { self.signal.launch(stream, grid, &arguments) }
    }

    /// Clusters of so many CTAs, each with an SM alone, that this GPU runs at once.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn clusters(&self, ctas: u32) -> Result<u32, Error> {
        if ctas == 1 {
            return Ok(self.gpu.sms());
        }
        let grid = LaunchConfig {
            cluster: ctas,
            ..LaunchConfig::of(self.gpu.sms().next_multiple_of(ctas), THREADS)
        };
        self.whole.clusters(grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_has_the_hosts_numbers() {
        let slots = u64::from(SLOTS) / CHUNK;
        assert!(TEXT.contains(&format!("constexpr u32 CHUNK = {} << 10;", CHUNK >> 10)));
        assert!(TEXT.contains(&format!("constexpr u32 SLOTS = {slots};")));
    }
}
