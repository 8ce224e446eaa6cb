//! The heap of ranks on emulated GPUs.

use super::machine::{Gpu, Machine};
use crate::cuda::{Address, not_offered, too_large};
use crate::error::Error;
use crate::shared::{FABRIC, Handed, Handles, Segment, another, no_fabric};
use counterflow_emulator::open::Memory as _;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
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
    handles: Handles,
    slots: Vec<Option<Arc<Segment>>>,
    /// Descriptor that hands this rank's memory to its peers.
    own: Option<OwnedFd>,
    /// Size that `settle` decides about, in bytes.
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
    pub fn apart(
        gpu: &Gpu,
        (rank, world): (u32, u32),
        stride: u64,
        handles: Handles,
    ) -> Result<Slots, Error> {
        let mut slots = Slots::new(&vec![gpu; world as usize], stride)?;
        slots.shared = Some(Shared {
            rank,
            handles,
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

    /// Form in which memory goes to ranks that are other processes.
    pub fn handles(&self) -> Handles {
        let shared = self.shared.as_ref();
        shared.map_or(Handles::Files, |shared| shared.handles)
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

    /// Bytes that every slot is to have, if that is more than it has.
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
                state.memory.grow(self.base + rank * self.stride, wanted)?;
            }
            self.backed = wanted;
        }
        Ok(())
    }

    /// This rank's memory for slots of so many bytes, if that is more than they have: the peers take it.
    pub fn offer(&mut self, bytes: u64) -> Result<Option<Handed>, Error> {
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
        let handed = match shared.handles {
            Handles::Files => another(own)?.into(),
            Handles::Fabric => Handed::Fabric(name(own)?),
        };
        shared.adding = Some(wanted);
        Ok(Some(handed))
    }

    /// Maps what all offered, in the order of the ranks.
    pub fn take(&mut self, offered: Vec<Option<Handed>>) -> Result<(), Error> {
        let stride = self.stride;
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let wanted = shared.adding.unwrap_or(self.backed);
        for ((slot, handed), rank) in shared.slots.iter_mut().zip(offered).zip(0..) {
            if slot.is_none() {
                let fd = match handed.ok_or_else(|| not_offered(rank))? {
                    Handed::File(fd) => fd,
                    Handed::Fabric(name) => named("take memory of another process", &name)?,
                };
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

/// A fabric handle of an emulated GPU's memory: where the system has the file descriptor of the process that owns it.
fn name(own: &OwnedFd) -> Result<[u8; FABRIC], Error> {
    let path = format!("/proc/{}/fd/{}", std::process::id(), own.as_raw_fd());
    let mut name = [0; FABRIC];
    name[..path.len()].copy_from_slice(path.as_bytes());
    // As a driver does, it says here whether this process may hand it over.
    named("hand memory to other processes", &name)?;
    Ok(name)
}

/// The memory of that handle.
fn named(what: &str, name: &[u8; FABRIC]) -> Result<OwnedFd, Error> {
    let what = format!("{what}, by a fabric handle");
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(FABRIC);
    let path = std::str::from_utf8(&name[..end]).unwrap_or_default();
    if !path.starts_with("/proc/") {
        return Err(no_fabric(what, "it is none"));
    }
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| no_fabric(what, error.to_string()))?;
    Ok(file.into())
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = PAGE;

    /// A rank of two on a machine of its own, as processes have them.
    fn rank(number: u32, handles: Handles) -> (Slots, Option<Handed>) {
        let gpu = Gpu::of(&Machine::new(1, 0, u64::MAX), 0);
        let slots = Slots::apart(&gpu, (number, 2), 1 << 20, handles);
        let mut slots = slots.expect("slots");
        let offered = slots.offer(BYTES).expect("offered");
        (slots, offered)
    }

    fn wrote(slots: &Slots, rank: u32, value: u8) {
        let at = slots.address(rank, 8).get();
        let written = slots.machine.lock().memory.write(at, &[value]);
        written.expect("mapped");
    }

    fn reads(slots: &Slots, rank: u32) -> u8 {
        let at = slots.address(rank, 8).get();
        slots.machine.lock().memory.bytes(at, 1).expect("mapped")[0]
    }

    #[test]
    fn ranks_reach_each_others_memory_by_either_handle() {
        for handles in [Handles::Files, Handles::Fabric] {
            let ((mut one, of_one), (mut other, of_other)) = (rank(0, handles), rank(1, handles));
            assert!(matches!(of_one, Some(Handed::Fabric(_))) == (handles == Handles::Fabric));
            one.take(vec![None, of_other]).expect("taken");
            other.take(vec![of_one, None]).expect("taken");
            one.settle(true);
            other.settle(true);
            wrote(&one, 0, 3);
            wrote(&one, 1, 4);
            assert_eq!(
                [0, 1].map(|rank| reads(&other, rank)),
                [3, 4],
                "{handles:?}"
            );
        }
    }

    /// The attribute of a platform proves nothing: what is refused is told, with what to do instead.
    #[test]
    fn a_fabric_handle_that_is_refused_is_an_error_of_the_driver() {
        let (mut one, _) = rank(0, Handles::Fabric);
        let (other, gone) = rank(1, Handles::Fabric);
        drop(other);
        let none = Some(Handed::Fabric([7; FABRIC]));
        for (handed, code) in [(gone, "No such file"), (none, "it is none")] {
            let refused = one.take(vec![None, handed]).expect_err("refused");
            let text = refused.to_string();
            assert_eq!(refused.kind(), "driver", "{text}");
            assert!(
                text.contains("by a fabric handle") && text.contains(code),
                "{text}"
            );
            let help = refused.help().expect("what to do");
            assert!(help.contains("unset COUNTERFLOW_HANDLES"), "{help}");
        }
    }
}
