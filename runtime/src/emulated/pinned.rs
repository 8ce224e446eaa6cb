//! Host memory that kernels reach.

use super::machine::{Gpu, Machine};
use crate::cuda::{Address, Told};
use crate::error::Error;
use counterflow_emulator::open::Memory as _;
use std::marker::PhantomData;
use std::sync::Arc;

/// A value of known bytes.
pub(crate) trait Plain: Copy + Default {
    /// Number of bytes.
    const BYTES: usize;
    /// From its bytes.
    fn parse(bytes: &[u8]) -> Self;
    /// To its bytes.
    fn record(&self, bytes: &mut [u8]);
}

macro_rules! plain {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            const BYTES: usize = size_of::<$number>();
            fn parse(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(bytes);
                <$number>::from_le_bytes(own)
            }
            fn record(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
plain!(u32, u64);

impl Plain for Told {
    const BYTES: usize = Told::BYTES;
    fn parse(bytes: &[u8]) -> Told {
        Told::parse(bytes)
    }
    fn record(&self, bytes: &mut [u8]) {
        Told::record(self, bytes);
    }
}

/// A value that hosts and kernels reach.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    machine: Arc<Machine>,
    at: u64,
    value: PhantomData<fn() -> T>,
}

impl<T: Plain> Pinned<T> {
    pub fn new(gpu: &Gpu) -> Result<Pinned<T>, Error> {
        Ok(Pinned {
            machine: gpu.machine.clone(),
            at: gpu.machine.lock().memory.allocate(T::BYTES as u64)?,
            value: PhantomData,
        })
    }

    pub fn address(&self) -> Address {
        Address::of(self.at)
    }

    /// The current value, once the machine went as far as it gets.
    pub fn get(&self) -> T {
        let mut state = self.machine.lock();
        // A dead machine's memory is still there.
        let _ = self.machine.ask(&mut state);
        let bytes = state.memory.bytes(self.at, T::BYTES as u64);
        bytes.map_or_else(|_| T::default(), |bytes| T::parse(&bytes))
    }

    pub fn set(&self, value: T) {
        let mut state = self.machine.lock();
        let bytes = state.memory.bytes(self.at, T::BYTES as u64);
        if let Ok(mut bytes) = bytes.map(std::borrow::Cow::into_owned) {
            value.record(&mut bytes);
            // It was read there.
            let _ = state.memory.write(self.at, &bytes);
        }
        drop(state);
        self.machine.turn.notify_all();
    }
}

impl Pinned<Told> {
    /// True if a record is complete, once the machine went as far as it gets.
    pub fn is_written(&self) -> bool {
        let mut state = self.machine.lock();
        // As above.
        let _ = self.machine.ask(&mut state);
        let bytes = state.memory.bytes(self.at, Told::WRITTEN as u64);
        let first = bytes.map(|bytes| std::array::from_fn(|at| bytes[at]));
        first.is_ok_and(Told::is_written)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        let mut state = self.machine.lock();
        let _ = state.memory.free(self.at);
    }
}
