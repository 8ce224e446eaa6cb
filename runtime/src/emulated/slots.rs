//! The heap of ranks on emulated GPUs.

use super::machine::{Gpu, Machine};
use crate::cuda::{Address, too_large};
use crate::error::Error;
use crate::shared::Segment;
use counterflow_codegen::interp::open::Memory as _;
use std::sync::Arc;

/// Slots of the heap, side by side.
#[derive(Debug)]
pub(crate) struct Slots {
    machine: Arc<Machine>,
    base: u64,
    stride: u64,
    world: u64,
    backed: u64,
    /// If the ranks are processes: what they share, slot by slot.
    shared: Option<Vec<Arc<Segment>>>,
}

/// Slots grow by so many bytes.
const PAGE: u64 = 1 << 14;

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

    /// Slots in memory that processes share.
    pub fn apart(gpu: &Gpu, slots: Vec<Arc<Segment>>, stride: u64) -> Result<Slots, Error> {
        let world = slots.len() as u64;
        let all = stride
            .checked_mul(world)
            .filter(|_| stride.is_multiple_of(PAGE));
        let all = all.ok_or_else(|| too_large(stride))?;
        Ok(Slots {
            machine: gpu.machine.clone(),
            base: gpu.machine.lock().memory.reserve(all),
            stride,
            world,
            backed: 0,
            shared: Some(slots),
        })
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

    /// Clears a range of a rank's slot.
    pub fn clear(&self, rank: u32, range: &std::ops::Range<u64>) -> Result<(), Error> {
        const PIECE: u64 = 1 << 16;
        let zeros = vec![0; PIECE as usize];
        let mut state = self.machine.lock();
        for from in range.clone().step_by(PIECE as usize) {
            let bytes = PIECE.min(range.end - from) as usize;
            let at = self.address(rank, from).get();
            let wrote = state.memory.write(at, &zeros[..bytes]);
            wrote.map_err(|fault| Error::Driver {
                what: "clear memory of an emulated GPU".into(),
                code: fault.to_string(),
                help: "report it".into(),
            })?;
        }
        Ok(())
    }

    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let wanted = bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        if wanted > self.stride {
            return Err(Error::TooLarge {
                what: format!("{bytes} bytes a rank, in slots of {}", self.stride),
                help: "make the communicator with larger slots".into(),
            });
        }
        if wanted > self.backed {
            let mut state = self.machine.lock();
            for rank in 0..self.world {
                let at = self.base + rank * self.stride;
                match &self.shared {
                    None => state.memory.grow(at, wanted),
                    Some(slots) => state.memory.share(at, &slots[rank as usize], wanted),
                }
            }
            self.backed = wanted;
        }
        Ok(())
    }
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
