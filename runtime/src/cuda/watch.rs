//! Messages between kernels and the host when somebody gives up: a record for each rank, which its kernel writes,
//! and a word for all, which the host writes. Both are host memory that outlives the kernel and its context.

use super::driver::check;
use super::relaxed::relaxed;
use super::{Address, Gpu};
use crate::error::Error;
use counterflow_emitter::WATCH_BYTES;
use counterflow_emulator::open::{self, GaveUp};
use cudarc::driver::{CudaContext, sys};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

/// As the prelude's `Stall`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Told {
    written: u32,
    cause: u32,
    pub rank: u32,
    pub kernel: u32,
    pub role: u32,
    pub block: u32,
    pub what: u32,
    pub index: u32,
    pub time: u64,
    pub seen: u64,
    pub wanted: u64,
}

/// Reason that a kernel's wait gave up, as the prelude's `Cause`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Cause {
    TimeLimit = 1,
    ToldByPeer = 2,
    ToldByHost = 3,
    Barrier = 4,
    /// A peer launches something else, as `agree.cu` says: `what` is the peer, `index` the launch's place, `seen` and
    /// `wanted` are what both launch.
    Differs = 5,
}

impl Told {
    /// Number of bytes.
    pub(crate) const BYTES: usize = size_of::<Told>();

    fn halves(&self) -> [u32; 8] {
        [
            self.written,
            self.cause,
            self.rank,
            self.kernel,
            self.role,
            self.block,
            self.what,
            self.index,
        ]
    }

    /// Record of an emulated kernel.
    pub(crate) fn emulated(told: &GaveUp) -> Told {
        let cause = match told.cause {
            open::Cause::Limit => Cause::TimeLimit,
            open::Cause::Peer => Cause::ToldByPeer,
            open::Cause::Host => Cause::ToldByHost,
            open::Cause::Differs => Cause::Differs,
        };
        Told {
            written: 1,
            cause: cause as u32,
            rank: told.rank,
            kernel: told.kernel,
            role: told.role,
            block: 0,
            what: told.counter,
            index: told.cell,
            time: told.time,
            seen: told.seen,
            wanted: told.wanted,
        }
    }

    /// From its bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Told {
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at * 4 + i]));
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at * 8 + i]));
        Told {
            written: half(0),
            cause: half(1),
            rank: half(2),
            kernel: half(3),
            role: half(4),
            block: half(5),
            what: half(6),
            index: half(7),
            time: word(4),
            seen: word(5),
            wanted: word(6),
        }
    }

    /// To its bytes, unless there is a record already.
    pub(crate) fn record(&self, bytes: &mut [u8]) {
        if bytes[..4].iter().any(|byte| *byte != 0) {
            return;
        }
        let halves = self.halves().into_iter().flat_map(u32::to_le_bytes);
        let words = [self.time, self.seen, self.wanted].into_iter();
        let all = halves.chain(words.flat_map(u64::to_le_bytes));
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
    }

    /// Bytes at the start of a record that say whether it is complete.
    pub(crate) const WRITTEN: usize = size_of::<u32>();

    /// True if a record that begins so is complete: a kernel sets `written` last.
    pub(crate) fn is_written(first: [u8; Told::WRITTEN]) -> bool {
        first != [0; Told::WRITTEN]
    }

    /// Reason that it gave up. A number that no kernel writes counts as the time limit.
    pub(crate) fn cause(&self) -> Cause {
        match self.cause {
            2 => Cause::ToldByPeer,
            3 => Cause::ToldByHost,
            4 => Cause::Barrier,
            5 => Cause::Differs,
            _ => Cause::TimeLimit,
        }
    }

    /// True if it gave up because somebody else had.
    pub(crate) fn was_told(&self) -> bool {
        matches!(self.cause(), Cause::ToldByPeer | Cause::ToldByHost)
    }

    /// Record as a kernel would write it.
    #[cfg(test)]
    pub(crate) fn of(cause: Cause, rank: u32, time: u64) -> Told {
        Told {
            written: 1,
            cause: cause as u32,
            rank,
            time,
            ..Told::default()
        }
    }

    /// Record before it is complete.
    #[cfg(test)]
    pub(crate) fn unwritten(self) -> Told {
        Told { written: 0, ..self }
    }
}

/// A value in host memory that GPUs reach.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    host: NonNull<T>,
    device: Address,
    /// Context that keeps the memory alive, with its number. None where no driver has it.
    context: Option<(Arc<CudaContext>, u64)>,
}

/// Memory that is not used now. The driver frees it only when nothing runs on the GPU, and would wait for a kernel that
/// waits for us. So it is not freed, but used again for a value of the same size; it goes with its context.
static UNUSED: Mutex<Vec<Piece>> = Mutex::new(Vec::new());

struct Piece {
    bytes: usize,
    host: NonNull<u8>,
    device: Address,
    /// The GPU, and the number of the context.
    context: (u32, u64),
}

// SAFETY: nobody uses the memory, and any thread may.
unsafe impl Send for Piece {}

impl Piece {
    /// Memory for so many bytes, of the GPU's context.
    fn unused(gpu: &Gpu, bytes: usize) -> Option<Piece> {
        let mut all = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        let (on, context) = (gpu.ordinal(), gpu.context_number());
        // What was a context's before this one went with it.
        all.retain(|piece| piece.context.0 != on || piece.context.1 == context);
        let fits = |piece: &Piece| piece.bytes == bytes && piece.context == (on, context);
        let at = all.iter().position(fits)?;
        Some(all.swap_remove(at))
    }

    fn allocate(gpu: &Gpu, bytes: usize) -> Result<Piece, Error> {
        gpu.bind()?;
        let mut host = ptr::null_mut();
        // Portable, mapped: every context may use it, and it has an address on the GPU.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer's place is ours.
        let code = relaxed(|| unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, flags) });
        check("allocate host memory that GPUs write", code)?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(super::driver::none(
                "host memory at address zero",
                "restart the process",
            ));
        };
        let mut device = 0;
        // SAFETY: the memory was allocated mapped.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host.as_ptr().cast(), 0) };
        check("map host memory that GPUs write", code)?;
        Ok(Piece {
            bytes,
            host,
            device: Address(device),
            context: (gpu.ordinal(), gpu.context_number()),
        })
    }
}

// SAFETY: the host reads and writes it whole and volatile; the driver frees it from any thread.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Copy + Default> Pinned<T> {
    pub(crate) fn new(gpu: &Gpu) -> Result<Pinned<T>, Error> {
        let bytes = size_of::<T>();
        let piece = match Piece::unused(gpu, bytes) {
            Some(piece) => piece,
            None => Piece::allocate(gpu, bytes)?,
        };
        let host = piece.host.cast::<T>();
        // SAFETY: the memory has this size, nobody else uses it, and it is aligned for anything.
        unsafe { host.write_volatile(T::default()) };
        Ok(Pinned {
            host,
            device: piece.device,
            context: Some((gpu.context().clone(), gpu.context_number())),
        })
    }

    /// Memory without a GPU, which is never freed.
    #[cfg(test)]
    pub(crate) fn plain() -> Pinned<T> {
        Pinned {
            host: NonNull::from(Box::leak(Box::default())),
            device: Address(0),
            context: None,
        }
    }

    /// Address at which GPUs reach it.
    pub(crate) fn address(&self) -> Address {
        self.device
    }

    /// Pointer of the host.
    pub(super) fn host(&self) -> *const T {
        self.host.as_ptr()
    }

    /// The current value. GPUs write whole words.
    pub(crate) fn get(&self) -> T {
        // SAFETY: the memory lives as long as this.
        unsafe { self.host.read_volatile() }
    }

    /// Stores a value. GPUs see it soon.
    pub(crate) fn set(&self, value: T) {
        // SAFETY: the memory lives as long as this. Who shares it with a writer on a GPU stores nothing.
        unsafe { self.host.write_volatile(value) };
    }
}

impl Pinned<Told> {
    /// True if a record is complete, without the rest of it.
    pub(crate) fn is_written(&self) -> bool {
        // SAFETY: the memory lives as long as this, and a record begins with these bytes.
        let first = unsafe { self.host.cast::<u32>().read_volatile() };
        Told::is_written(first.to_ne_bytes())
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if let Some((context, number)) = self.context.take() {
            let mut all = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Piece {
                bytes: size_of::<T>(),
                host: self.host.cast(),
                device: self.device,
                context: (context.ordinal() as u32, number),
            });
        }
    }
}

/// As the prelude's `Watch`: what a kernel needs to give up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub record: Address,
    pub claim: Address,
    pub abort: Address,
    pub abort_stride: u64,
    pub host: Address,
    pub timeout_ns: u64,
    pub barrier_ns: u64,
    pub rank: u32,
    pub world: u32,
    pub kernel: u32,
}

impl Watch {
    /// As the kernel takes it.
    pub(crate) fn bytes(&self) -> [u8; WATCH_BYTES] {
        let mut bytes = [0; WATCH_BYTES];
        let words = [
            self.record.0,
            self.claim.0,
            self.abort.0,
            self.abort_stride,
            self.host.0,
            self.timeout_ns,
            self.barrier_ns,
        ];
        let halves = [self.rank, self.world, self.kernel];
        let all = words.iter().flat_map(|word| word.to_le_bytes());
        let all = all.chain(halves.iter().flat_map(|half| half.to_le_bytes()));
        for (place, byte) in bytes.iter_mut().zip(all) {
            *place = byte;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_laid_out_as_in_the_prelude() {
        let watch = Watch {
            record: Address(1),
            claim: Address(2),
            abort: Address(3),
            abort_stride: 4,
            host: Address(5),
            timeout_ns: 6,
            barrier_ns: 7,
            rank: 8,
            world: 9,
            kernel: 10,
        };
        let bytes = watch.bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at * 8 + i]));
        let told: Vec<u64> = (0..WATCH_BYTES / 8).map(word).collect();
        assert_eq!(told, [1, 2, 3, 4, 5, 6, 7, 8 | 9 << 32, 10]);
        assert_eq!(size_of::<Told>(), 56);
    }

    #[test]
    fn a_record_is_read_as_it_is_written_and_the_first_stays() {
        let mut bytes = [0; Told::BYTES];
        let first = Told::of(Cause::TimeLimit, 1, 7);
        first.record(&mut bytes);
        Told::of(Cause::ToldByPeer, 0, 8).record(&mut bytes);
        assert_eq!(Told::parse(&bytes), first);
    }
}
