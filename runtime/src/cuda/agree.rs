//! The kernel by which a rank's launch is compared with its peers'.

use super::{Address, Arguments, Function, Gpu, LaunchConfig, Module, Watch};
use crate::error::Error;
use crate::jit::Compiled;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// The launch of no host.
const REPLAY: u64 = u64::MAX;

/// Memory into which ranks write their launches, for as long as the communicator lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boards {
    /// Rank 0's part of the heap where launches are written.
    pub boards: Address,
    /// Bytes to the next rank's.
    pub stride: u64,
    /// Address at which the host sees how far the rank is.
    pub far: Address,
}

/// Kernel that compares launches, loaded on a GPU.
#[derive(Debug)]
pub(crate) struct Agree(Function);

impl Agree {
    /// Loads what [`compile_agree`](crate::launch::compile_agree) compiled.
    ///
    /// # Errors
    /// As [`Module::load`] and [`Module::function`].
    pub fn load(gpu: &Arc<Gpu>, compiled: &Compiled) -> Result<Agree, Error> {
        Module::load(gpu, compiled)?.function("agree", 0).map(Agree)
    }

    /// Enqueues the comparison of what is launched, and which launch of the rank's host it is. The stream's context is
    /// current.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn enqueue(
        &self,
        stream: &CudaStream,
        watch: &Watch,
        places: &Boards,
        (tag, launch): (u64, Option<u64>),
    ) -> Result<(), Error> {
        let mut arguments = Arguments::new();
        arguments.bytes(&watch.bytes());
        arguments.address(places.boards);
        arguments.bytes(&places.stride.to_le_bytes());
        arguments.address(places.far);
        for number in [tag, launch.unwrap_or(REPLAY)] {
            arguments.bytes(&number.to_le_bytes());
        }
        let grid = LaunchConfig::of(1, watch.world.next_multiple_of(32));
        // SAFETY: the kernel writes its rank's part of the heap and what each peer has there for it, the rank's record
        // and the flags that tell all to give up, which live as long as the communicator; it waits for nobody.
        unsafe { self.0.enqueue(stream, grid, &arguments) }
    }
}
