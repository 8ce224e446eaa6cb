//! The heap of ranks on emulated GPUs.

use super::machine::{Gpu, Machine};
use crate::cuda::{Address, not_offered, too_large};
use crate::error::Error;
use crate::shared::{Segment, another};
use counterflow_codegen::interp::open::Memory as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Slots of the heap, side by side.
#[derive(Debug)]
pub(crate) struct Slots {
    machine: Arc<Machine>,
    base: u64,
    stride: u64,
    world: u64,
    backed: u64,
    /// If the ranks are processes: what they share.
    shared: Option<Shared>,
}

/// Memory that processes share. A slot's is all of one piece, of which ever more is used.
#[derive(Debug)]
struct Shared {
    rank: u32,
    slots: Vec<Option<Arc<Segment>>>,
    /// What hands this rank's to its peers.
    own: Option<OwnedFd>,
    /// What `settle` decides about.
    adding: Option<u64>,
}

/// Slots grow by so many bytes.
pub(crate) const PAGE: u64 = 1 << 14;

impl Slots {
    pub fn new(gpus: &[&Gpu], stride: u64) -> Result<Slots, Error> {
        let first = gpus.first().filter(|first| {
            let mut all = gpus.iter();
            all.all(|gpu| Arc::ptr_eq(&gpu.machine, &first.machine))
        });
        let Some(first) = first else {
            return Err(Error::Usage {
                what: "ranks on GPUs of several emulated machines".into(),
                legal: "GPUs of one machine: they reach each other's memory".into(),
            });
        };
        let world = gpus.len() as u64;
        let stride = stride
            .checked_next_multiple_of(PAGE)
            .filter(|stride| stride.checked_mul(world).is_some())
            .ok_or_else(|| too_large(stride))?;
        Ok(Slots {
            machine: first.machine.clone(),
            base: first.machine.lock().memory.reserve(stride * world),
            stride,
            world,
            backed: 0,
            shared: None,
        })
    }

    /// The slots of ranks that are processes, for one of them, without memory.
    pub fn apart(gpu: &Gpu, (rank, world): (u32, u32), stride: u64) -> Result<Slots, Error> {
        let mut slots = Slots::new(&vec![gpu; world as usize], stride)?;
        slots.shared = Some(Shared {
            rank,
            slots: vec![None; world as usize],
            own: None,
            adding: None,
        });
        Ok(slots)
    }

    pub fn stride(&self) -> u64 {
        self.stride
    }

    pub fn backed(&self) -> u64 {
        self.backed
    }

    pub fn address(&self, rank: u32, offset: u64) -> Address {
        Address::of(self.base + u64::from(rank) * self.stride + offset)
    }

    /// Clears a range of a rank's slot, when it is called.
    pub fn clearing(
        &self,
        rank: u32,
        range: &std::ops::Range<u64>,
    ) -> impl FnOnce() -> Result<(), Error> + use<> {
        let start = self.address(rank, range.start).get();
        let (machine, bytes) = (self.machine.clone(), range.end - range.start);
        move || clear(&machine, start..start + bytes)
    }

    /// How many bytes every slot is to have, if that is more than it has.
    fn wanted(&self, bytes: u64) -> Result<Option<u64>, Error> {
        let wanted = bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if wanted > self.stride {
            return Err(Error::TooLarge {
                what: format!("{bytes} bytes a rank, in slots of {}", self.stride),
                help: "make the communicator with larger slots".into(),
            });
        }
        Ok((wanted > self.backed).then_some(wanted))
    }

    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        if let Some(wanted) = self.wanted(bytes)? {
            let mut state = self.machine.lock();
            for rank in 0..self.world {
                state.memory.grow(self.base + rank * self.stride, wanted);
            }
            self.backed = wanted;
        }
        Ok(())
    }

    /// This rank's memory for slots of so many bytes, if that is more than they have: the peers take it.
    pub fn offer(&mut self, bytes: u64) -> Result<Option<OwnedFd>, Error> {
        let (wanted, stride) = (self.wanted(bytes)?, self.stride);
        let (Some(wanted), Some(shared)) = (wanted, &mut self.shared) else {
            return Ok(None);
        };
        let own = match &shared.own {
            Some(own) => own,
            None => {
                let (segment, own) = Segment::create("counterflow heap", stride)?;
                shared.slots[shared.rank as usize] = Some(Arc::new(segment));
                shared.own.insert(own)
            }
        };
        let fd = another(own)?;
        shared.adding = Some(wanted);
        Ok(Some(fd))
    }

    /// Maps what all offered, in the order of the ranks.
    pub fn take(&mut self, offered: Vec<Option<OwnedFd>>) -> Result<(), Error> {
        let stride = self.stride;
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let wanted = shared.adding.unwrap_or(self.backed);
        for ((slot, fd), rank) in shared.slots.iter_mut().zip(offered).zip(0..) {
            if slot.is_none() {
                let fd = fd.ok_or_else(|| not_offered(rank))?;
                *slot = Some(Arc::new(Segment::of(&fd, stride)?));
            }
        }
        self.map(wanted);
        Ok(())
    }

    /// Keeps what was added, or gives it back.
    pub fn settle(&mut self, keep: bool) {
        let added = self.shared.as_mut().and_then(|shared| shared.adding.take());
        match added.filter(|_| keep) {
            Some(added) => self.backed = added,
            None => self.map(self.backed),
        }
    }

    /// Lets every slot that is shared have so many bytes.
    fn map(&self, bytes: u64) {
        let slots = self.shared.iter().flat_map(|shared| &shared.slots);
        let mut state = self.machine.lock();
        for (rank, slot) in (0..).zip(slots) {
            if let Some(segment) = slot {
                let at = self.base + rank * self.stride;
                state.memory.share(at, segment, bytes);
            }
        }
    }
}

fn clear(machine: &Machine, range: std::ops::Range<u64>) -> Result<(), Error> {
    const PIECE: u64 = 1 << 16;
    let zeros = vec![0; PIECE as usize];
    let mut state = machine.lock();
    for at in range.clone().step_by(PIECE as usize) {
        let bytes = PIECE.min(range.end - at) as usize;
        let wrote = state.memory.write(at, &zeros[..bytes]);
        wrote.map_err(|fault| Error::Driver {
            what: "clear memory of an emulated GPU".into(),
            code: fault.to_string(),
            help: "report it".into(),
        })?;
    }
    Ok(())
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut state = self.machine.lock();
        for rank in 0..self.world {
            // Nothing was mapped to a slot that never grew.
            let _ = state.memory.free(self.base + rank * self.stride);
        }
    }
}
