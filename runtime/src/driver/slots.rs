//! The ranks' slots of the heap: one range of addresses.

use super::gpu::{Gpu, Kind as GpuKind};
use crate::cuda::{self, Address};
use crate::emulated;
use crate::error::Error;
use crate::shared::{Handed, Handles};
use std::ops::Range;

/// Slots side by side, one a rank.
#[derive(Debug)]
pub(crate) enum Slots {
    Cuda(cuda::Slots),
    Emulated(emulated::Slots),
}

impl Gpu {
    /// Memory at an address of the GPU, for the slots of its rank and its peers.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why peers cannot have it.
    pub(crate) fn lent(&self, address: u64, bytes: u64) -> Result<cuda::Lent, Error> {
        match &self.0 {
            GpuKind::Cuda(gpu) => cuda::Lent::of(gpu, address, bytes),
            GpuKind::Emulated(_) => Err(cuda::not_lendable("memory of an emulated GPU")),
        }
    }
}

impl Slots {
    /// A slot of each GPU, `stride` bytes apart, without memory.
    pub fn new(gpus: &[Gpu], stride: u64) -> Result<Slots, Error> {
        let emulated = gpus.iter().map(|gpu| match &gpu.0 {
            GpuKind::Emulated(gpu) => Some(gpu),
            GpuKind::Cuda(_) => None,
        });
        if let Some(gpus) = emulated.collect::<Option<Vec<_>>>() {
            return emulated::Slots::new(&gpus, stride).map(Slots::Emulated);
        }
        let gpus = gpus.iter().map(|gpu| gpu.cuda().cloned());
        let gpus = gpus.collect::<Result<_, _>>()?;
        cuda::Slots::new(gpus, stride).map(Slots::Cuda)
    }

    /// The slots of ranks that are processes, for one of so many, without memory. It will come in multiples of a page, and
    /// go to the others by such handles.
    pub fn apart(
        gpu: &Gpu,
        rank: (u32, u32),
        stride: u64,
        (page, handles): (u64, Handles),
    ) -> Result<Slots, Error> {
        match &gpu.0 {
            GpuKind::Emulated(gpu) => {
                emulated::Slots::apart(gpu, rank, stride, handles).map(Slots::Emulated)
            }
            GpuKind::Cuda(gpu) => {
                cuda::Slots::apart(gpu, rank, stride, (page, handles)).map(Slots::Cuda)
            }
        }
    }

    /// Bytes from a slot to the next.
    pub fn stride(&self) -> u64 {
        match self {
            Slots::Cuda(slots) => slots.stride(),
            Slots::Emulated(slots) => slots.stride(),
        }
    }

    /// Bytes of every slot that have memory.
    pub fn backed(&self) -> u64 {
        match self {
            Slots::Cuda(slots) => slots.backed(),
            Slots::Emulated(slots) => slots.backed(),
        }
    }

    /// The address in a rank's slot.
    pub fn address(&self, rank: u32, offset: u64) -> Address {
        match self {
            Slots::Cuda(slots) => slots.address(rank, offset),
            Slots::Emulated(slots) => slots.address(rank, offset),
        }
    }

    /// Clears a range of a rank's slot that nobody uses, if the ranks are processes that share it: when it is called.
    pub fn clearing(
        &self,
        rank: u32,
        range: &Range<u64>,
    ) -> Box<dyn FnOnce() -> Result<(), Error>> {
        match self {
            Slots::Emulated(slots) => Box::new(slots.clearing(rank, range)),
            Slots::Cuda(slots) => Box::new(slots.clearing(rank, range)),
        }
    }

    /// This rank's memory for slots of so many bytes, if that is more than they have, for its peers, which are processes.
    /// All of them offer, then all take, and then all settle.
    pub fn offer(&mut self, bytes: u64) -> Result<Option<Handed>, Error> {
        match self {
            Slots::Emulated(slots) => slots.offer(bytes),
            Slots::Cuda(slots) => slots.offer(bytes),
        }
    }

    /// Maps what all offered, in the order of the ranks.
    pub fn take(&mut self, offered: Vec<Option<Handed>>) -> Result<(), Error> {
        match self {
            Slots::Emulated(slots) => slots.take(offered),
            Slots::Cuda(slots) => slots.take(offered),
        }
    }

    /// Keeps what was added, or gives it back.
    pub fn settle(&mut self, keep: bool) {
        match self {
            Slots::Emulated(slots) => slots.settle(keep),
            Slots::Cuda(slots) => slots.settle(keep),
        }
    }

    /// End of the part of every slot that is not memory of other libraries, in bytes.
    pub fn own_end(&self) -> u64 {
        match self {
            Slots::Cuda(slots) => slots.own_end(),
            Slots::Emulated(slots) => slots.stride(),
        }
    }

    /// Form in which memory goes to ranks that are other processes.
    pub fn handles(&self) -> Handles {
        match self {
            Slots::Cuda(slots) => slots.handles(),
            Slots::Emulated(slots) => slots.handles(),
        }
    }

    /// The mappings of a rank's own memory behind that offset, as offsets. Adopted memory is not among them.
    pub fn pieces(&self, rank: u32, from: u64) -> Vec<Range<u64>> {
        match self {
            Slots::Cuda(slots) => slots.pieces(rank, from),
            Slots::Emulated(slots) => {
                let all = from..slots.backed();
                Some(all)
                    .filter(|all| !all.is_empty())
                    .into_iter()
                    .collect()
            }
        }
    }

    /// True if one mapping is behind that part of every slot.
    pub fn is_one_piece(&self, range: &Range<u64>) -> bool {
        match self {
            Slots::Cuda(slots) => slots.is_one_piece(range),
            Slots::Emulated(_) => true,
        }
    }

    /// Maps what each rank of this process lends for that many bytes, to the ends of their slots. Where the other ranks
    /// are processes, `peers` has what they handed over. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Usage`] where not every rank lends as much, or two lend the same.
    pub fn adopt(
        &mut self,
        wanted: u64,
        lent: Vec<cuda::Lent>,
        peers: Option<Vec<Option<Handed>>>,
    ) -> Result<Range<u64>, Error> {
        match self {
            Slots::Cuda(slots) => slots.adopt(wanted, lent, peers),
            Slots::Emulated(_) => Err(cuda::not_lendable("memory of an emulated GPU")),
        }
    }

    /// Takes the last that was adopted from the slots again.
    pub fn abandon(&mut self, range: &Range<u64>) {
        match self {
            Slots::Cuda(slots) => slots.abandon(range),
            Slots::Emulated(_) => {}
        }
    }

    /// Maps memory to the first `bytes` of every slot. On an error nothing has changed.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        match self {
            Slots::Cuda(slots) => slots.grow(bytes),
            Slots::Emulated(slots) => slots.grow(bytes),
        }
    }
}
