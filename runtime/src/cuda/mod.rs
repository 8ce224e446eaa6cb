//! NVIDIA GPUs: the driver, memory that all GPUs of a process can address, tensor maps, modules, launches, stall
//! records.
//!
//! Device addresses are numbers here and [`Address`]es everywhere else. Only this module makes one; [`Address::get`] is
//! for calls of other libraries. Every call's result is checked, and nothing here panics without a driver.
#![allow(unsafe_code)]

mod agree;
mod aside;
mod capture;
mod clear;
mod dlpack;
mod driver;
mod enqueue;
mod event;
mod foreign;
mod gpu;
mod graph;
mod handle;
mod later;
mod map;
mod memory;
mod module;
#[cfg(feature = "multicast")]
mod multicast;
mod nccl;
mod nvtx;
mod probes;
mod queues;
mod registered;
mod relaxed;
mod start;
mod survey;
mod trace;
mod unused;
mod vmm;
mod watch;

pub use cudarc::driver::{CudaSlice, CudaStream};
pub(crate) use dlpack::Contents;
pub use dlpack::{Managed, ManagedTensor};
pub use gpu::Gpu;
pub use map::{MapSpec, TensorMap};
pub use memory::{Element, Kind, address_of};
pub use module::{Arguments, Function, LaunchConfig, Module};
#[cfg(feature = "multicast")]
pub(crate) use multicast::MulticastCalls;
pub use nccl::Window;
pub use survey::{ComputeMode, Pci, Reach, Survey, Surveyed};
pub use trace::{Enqueued, Sighting, Sightings, enqueued};

pub(crate) use agree::{Agree, Boards};
pub(crate) use aside::Aside;
pub(crate) use capture::{Capture, capture_of, come_after};
pub(crate) use dlpack::Home;
pub(crate) use driver::{aside, is_dead};
pub(crate) use enqueue::{Lines2d, MemoryOp, copy_lines, memory_ops};
pub(crate) use event::Event;
pub(crate) use foreign::{Foreign, Opened};
pub(crate) use graph::{Graph, record, recorded};
pub(crate) use memory::{
    Freed, bind, copy, fill, is_capturing, is_done, priority, read, synchronize, unwritten, write,
    zeros,
};
pub(crate) use nccl::{ALIGN as NCCL_ALIGN, register as register_with_nccl};
pub(crate) use nvtx::range;
pub(crate) use probes::{CHUNK, Moves, Probes, Reads, Signals, compile as compile_probes};
pub(crate) use queues::{BLOCKING, MOST as MOST_QUEUES, QUEUES, blocking, queues};
pub(crate) use registered::Registered;
pub(crate) use relaxed::Relaxed;
pub(crate) use vmm::{Lent, Slots, not_lendable, not_offered, too_large};
pub(crate) use watch::{Cause, Pinned, Told, Watch};

/// An address in a GPU's memory.
///
/// ```
/// use counterflow::{Communicator, driver::Address};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let tensor = rank.zeros::<u32>([2, 8])?;
/// let (first, second): (Address, Address) = (tensor.address(), tensor.rows(1..2)?.address());
/// assert_eq!(second, first.plus(32));
/// assert_eq!(second.get() - first.get(), 32); // numbers, for other libraries
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(u64);

impl Address {
    /// Address of that number.
    pub(crate) const fn of(number: u64) -> Address {
        Address(number)
    }

    /// The address `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }

    /// The address `bytes` below, if there is one.
    pub(crate) fn minus(self, bytes: u64) -> Option<Address> {
        self.0.checked_sub(bytes).map(Address)
    }

    /// Bytes from an address below it.
    pub(crate) const fn since(self, start: Address) -> u64 {
        self.0 - start.0
    }

    /// Address as a number, to hand to another library on the same GPU.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address(..)")
    }
}
