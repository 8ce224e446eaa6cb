//! The heap of ranks on emulated GPUs.

use super::machine::{Gpu, Machine};
use crate::cuda::{Address, too_large};
use crate::error::Error;
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
                state.memory.grow(self.base + rank * self.stride, wanted);
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
