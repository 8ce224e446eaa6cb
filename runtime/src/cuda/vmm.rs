//! One range of addresses for all ranks: slot r is rank r's memory, so a peer's address is a multiple of the stride
//! away. Each process has a range of its own, wherever its driver puts it.
//!
//! The range is fixed. Physical memory is mapped to it piece by piece, on every rank alike, and no address ever moves.

mod adopted;

pub(crate) use adopted::{Lent, not_lendable};

use super::clear::Clearer;
use super::driver::check;
use super::handle::{Handle, noted, unmap};
use super::{Address, Gpu};
use crate::error::Error;
use crate::shared::{Handed, Handles};
use cudarc::driver::sys;
use std::ops::Range;
use std::sync::Arc;

/// Slots side by side, one a rank.
#[derive(Debug)]
pub(crate) struct Slots {
    base: u64,
    stride: u64,
    world: u64,
    granularity: u64,
    /// Bytes of every slot that have memory.
    backed: u64,
    /// Bytes at the end of every slot that are memory of other libraries.
    lent: u64,
    /// The GPU of each rank of this process.
    owners: Vec<Arc<Gpu>>,
    /// Mapped pieces: address and bytes.
    pieces: Vec<(u64, u64)>,
    /// If the ranks are processes.
    apart: Option<Apart>,
}

/// State of one of several processes.
#[derive(Debug)]
struct Apart {
    rank: u64,
    handles: Handles,
    clearer: Arc<Clearer>,
    adding: Option<Adding>,
}

/// Memory that a process offered, until all say whether they keep it.
#[derive(Debug)]
struct Adding {
    own: Handle,
    /// Bytes that every slot is to have.
    wanted: u64,
    /// Number of pieces before.
    pieces: usize,
}

impl Slots {
    /// A range of one slot per owner, `stride` bytes apart, without memory.
    pub(crate) fn new(owners: Vec<Arc<Gpu>>, stride: u64) -> Result<Slots, Error> {
        let mut granularity = 0;
        for one in &owners {
            for other in &owners {
                one.must_reach(other)?;
            }
            granularity = granularity.max(one.page(Handles::Files)?);
        }
        let world = owners.len() as u64;
        Slots::reserved(owners, world, stride, granularity, None)
    }

    /// The range of a rank that is a process, on that GPU: which of how many. Memory comes in multiples of `page`, and goes
    /// to the others by such handles.
    pub(crate) fn apart(
        gpu: &Arc<Gpu>,
        (rank, world): (u32, u32),
        stride: u64,
        (page, handles): (u64, Handles),
    ) -> Result<Slots, Error> {
        let apart = Apart {
            rank: rank.into(),
            handles,
            clearer: Arc::new(Clearer::new(gpu)?),
            adding: None,
        };
        Slots::reserved(vec![gpu.clone()], world.into(), stride, page, Some(apart))
    }

    fn reserved(
        owners: Vec<Arc<Gpu>>,
        world: u64,
        stride: u64,
        granularity: u64,
        apart: Option<Apart>,
    ) -> Result<Slots, Error> {
        let stride = stride
            .checked_next_multiple_of(granularity)
            .filter(|stride| stride.checked_mul(world).is_some())
            .ok_or_else(|| too_large(stride))?;
        let mut base = 0;
        // SAFETY: the address's place is ours; no memory is touched.
        let code = unsafe {
            sys::cuMemAddressReserve(
                &raw mut base,
                (stride * world) as usize,
                granularity as usize,
                0,
                0,
            )
        };
        check(
            format_args!("reserve addresses for {world} slots of {stride} bytes"),
            code,
        )?;
        Ok(Slots {
            base,
            stride,
            world,
            granularity,
            backed: 0,
            lent: 0,
            owners,
            pieces: Vec::new(),
            apart,
        })
    }

    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    pub(crate) fn backed(&self) -> u64 {
        self.backed
    }

    /// Form in which memory goes to ranks that are other processes.
    pub(crate) fn handles(&self) -> Handles {
        let apart = self.apart.as_ref();
        apart.map_or(Handles::Files, |apart| apart.handles)
    }

    /// The mappings of a rank's own memory behind that offset, as offsets.
    pub(crate) fn pieces(&self, rank: u32, from: u64) -> Vec<Range<u64>> {
        let start = self.address(rank, 0).0;
        let pieces = self.pieces.iter().filter_map(|(address, bytes)| {
            let offset = address.checked_sub(start)?;
            (from..self.backed)
                .contains(&offset)
                .then_some(offset..offset + bytes)
        });
        pieces.collect()
    }

    /// The address in a rank's slot.
    pub(crate) fn address(&self, rank: u32, offset: u64) -> Address {
        Address(self.base + u64::from(rank) * self.stride + offset)
    }

    /// Bytes that every slot is to have, if that is more than it has.
    fn wanted(&self, bytes: u64) -> Result<Option<u64>, Error> {
        let wanted = bytes.checked_next_multiple_of(self.granularity);
        let wanted = wanted.unwrap_or(u64::MAX);
        if wanted > self.backed && wanted > self.own_end() {
            return Err(Error::TooLarge {
                what: format!("{bytes} bytes a rank, in slots of {}", self.own_end()),
                help: "make the communicator with larger slots: addresses are cheap, only `reserve` takes memory".into(),
            });
        }
        Ok((wanted > self.backed).then_some(wanted))
    }

    /// Maps memory to the first `bytes` of every slot. It holds anything: whoever gives it out clears it in the order of
    /// a stream, since nothing here may wait for a GPU. On an error nothing has changed.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(wanted) = self.wanted(bytes)? else {
            return Ok(());
        };
        let before = self.pieces.len();
        let added = (0..self.world).try_for_each(|rank| {
            let gpu = &self.owners[rank as usize];
            let memory = Handle::create(gpu, wanted - self.backed, Handles::Files)?;
            self.map(rank, &memory)
        });
        match added {
            Ok(()) => self.backed = wanted,
            Err(_) => drop(self.take_back(before)),
        }
        added
    }

    /// This process's memory for slots of so many bytes, if that is more than they have: its peers take it.
    pub(crate) fn offer(&mut self, bytes: u64) -> Result<Option<Handed>, Error> {
        let wanted = self.wanted(bytes)?;
        let (Some(wanted), Some(apart)) = (wanted, &mut self.apart) else {
            return Ok(None);
        };
        let own = Handle::create(&self.owners[0], wanted - self.backed, apart.handles)?;
        let handed = own.export()?;
        apart.adding = Some(Adding {
            own,
            wanted,
            pieces: self.pieces.len(),
        });
        Ok(Some(handed))
    }

    /// Maps what all offered, in the order of the ranks.
    pub(crate) fn take(&mut self, offered: Vec<Option<Handed>>) -> Result<(), Error> {
        let Some(apart) = self.apart.take() else {
            return Ok(());
        };
        let taken = self.take_from(&apart, offered);
        self.apart = Some(apart);
        taken
    }

    fn take_from(&mut self, apart: &Apart, offered: Vec<Option<Handed>>) -> Result<(), Error> {
        let Some(Adding { own, wanted, .. }) = &apart.adding else {
            return Ok(());
        };
        let bytes = wanted - self.backed;
        for (rank, handed) in (0..).zip(offered) {
            if rank == apart.rank {
                self.map(rank, own)?;
                continue;
            }
            let handed = handed.ok_or_else(|| not_offered(rank))?;
            self.map(rank, &Handle::import(&self.owners[0], &handed, bytes)?)?;
        }
        Ok(())
    }

    /// Keeps what was added, or gives it back.
    pub(crate) fn settle(&mut self, keep: bool) {
        let adding = self.apart.as_mut().and_then(|apart| apart.adding.take());
        match adding {
            Some(Adding { wanted, .. }) if keep => self.backed = wanted,
            Some(Adding { pieces, .. }) => drop(self.take_back(pieces)),
            None => {}
        }
    }

    /// Clears a range of a rank's slot that nobody uses, and waits for that, when it is called. No kernel can hold it up.
    pub(crate) fn clearing(
        &self,
        rank: u32,
        range: &Range<u64>,
    ) -> impl FnOnce() -> Result<(), Error> + use<> {
        let (address, bytes) = (self.address(rank, range.start), range.end - range.start);
        let clearer = self.apart.as_ref().map(|apart| apart.clearer.clone());
        move || clearer.map_or(Ok(()), |clearer| clearer.clear(address, bytes))
    }

    /// Puts memory behind what a slot has.
    fn map(&mut self, rank: u64, memory: &Handle) -> Result<(), Error> {
        self.map_at(rank, self.backed, memory)
    }

    fn map_at(&mut self, rank: u64, offset: u64, memory: &Handle) -> Result<(), Error> {
        let address = self.base + rank * self.stride + offset;
        memory.map(address, &devices(&self.owners))?;
        self.pieces.push((address, memory.bytes()));
        Ok(())
    }

    /// True if all was taken back.
    fn take_back(&mut self, from: usize) -> bool {
        let pieces = self.pieces.drain(from..);
        let taken = pieces.filter(|(address, bytes)| !unmap(*address, *bytes));
        taken.count() == 0
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if !self.take_back(0) {
            // Nobody else may get addresses that still have memory.
            return;
        }
        // SAFETY: nothing is mapped in the range any more, and it is ours.
        let code = unsafe { sys::cuMemAddressFree(self.base, (self.stride * self.world) as usize) };
        noted(check("give addresses back", code));
    }
}

/// The error of slots beyond all addresses.
pub(crate) fn too_large(slot: u64) -> Error {
    Error::TooLarge {
        what: format!("slots of {slot} bytes"),
        help: "give each rank fewer bytes of addresses: all slots lie one after another".into(),
    }
}

/// The error of memory that was offered and did not come: the system drops what a process has no room for.
pub(crate) fn not_offered(rank: u64) -> Error {
    Error::TooLarge {
        what: format!("no file descriptor for the memory of rank {rank}"),
        help: "allow more of them: `ulimit -n` says how many there may be".into(),
    }
}

/// Each GPU once: in a loopback several ranks share one.
fn devices(owners: &[Arc<Gpu>]) -> Vec<i32> {
    let mut ids: Vec<i32> = owners.iter().map(|gpu| gpu.ordinal() as i32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
