//! Memory that processes share, which a GPU reads and writes: kernels look there whether somebody gave up, and say there
//! why they did.
//!
//! The driver takes such memory back only when nothing runs on the GPU, and would wait for a kernel that waits for us. So
//! it keeps the memory until its context goes. What nobody uses any more serves another communicator, if all who had it
//! are ranks of that.

use super::driver::check;
use super::{Address, Gpu};
use crate::error::Error;
use crate::shared::Segment;
use cudarc::driver::{CudaContext, sys};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that a GPU reaches as long as this is there.
#[derive(Debug)]
pub(crate) struct Registered {
    address: Address,
    #[expect(dead_code, reason = "nobody else gets its place meanwhile")]
    segment: Arc<Segment>,
    #[expect(
        dead_code,
        reason = "the driver knows it as long as the context is there"
    )]
    context: Arc<CudaContext>,
}

/// Memory that the driver knows.
static ALL: Mutex<Places> = Mutex::new(Places(Vec::new()));

#[derive(Debug)]
struct Places(Vec<Place>);

/// Memory that was registered in a context.
#[derive(Clone, Debug)]
struct Place {
    /// The number that it has in all processes.
    number: u64,
    gpu: Where,
    /// Keeps the memory mapped as long as the driver knows it.
    segment: Arc<Segment>,
    address: Address,
}

/// A GPU, and its context: when that is gone, all that it knew is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Where {
    ordinal: u32,
    context: u64,
}

impl Places {
    /// Segments of so many bytes that nobody uses, if the GPU has them in its present context.
    fn unused(&mut self, gpu: Where, bytes: u64) -> Vec<(u64, Arc<Segment>)> {
        let gone = |place: &Place| place.gpu.ordinal == gpu.ordinal && place.gpu != gpu;
        self.0.retain(|place| !gone(place));
        let is = |place: &&Place| {
            place.gpu == gpu
                && place.segment.bytes() == bytes
                && Arc::strong_count(&place.segment) == 1
        };
        let unused = self.0.iter().filter(is);
        unused
            .map(|place| (place.number, place.segment.clone()))
            .collect()
    }

    /// Address on a GPU.
    fn address(&self, gpu: Where, segment: &Arc<Segment>) -> Option<Address> {
        let is = |place: &&Place| place.gpu == gpu && Arc::ptr_eq(&place.segment, segment);
        self.0.iter().find(is).map(|place| place.address)
    }
}

fn all() -> MutexGuard<'static, Places> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place_of(gpu: &Gpu) -> Where {
    Where {
        ordinal: gpu.ordinal(),
        context: gpu.context_number(),
    }
}

impl Registered {
    /// Memory of so many bytes that was registered before and that nobody here uses, by the numbers that it has in all
    /// processes. Nobody else gets it while somebody has what this gives.
    pub(crate) fn unused(gpu: &Gpu, bytes: u64) -> Vec<(u64, Arc<Segment>)> {
        all().unused(place_of(gpu), bytes)
    }

    /// The first bytes of a segment, which has that number in all processes.
    pub(crate) fn new(
        gpu: &Gpu,
        (number, segment): (u64, &Arc<Segment>),
        bytes: u64,
    ) -> Result<Registered, Error> {
        let known = all().address(place_of(gpu), segment);
        Ok(Registered {
            address: match known {
                Some(address) => address,
                None => registered(gpu, (number, segment), bytes)?,
            },
            segment: segment.clone(),
            context: gpu.context().clone(),
        })
    }

    /// Address on the GPU.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

fn registered(
    gpu: &Gpu,
    (number, segment): (u64, &Arc<Segment>),
    bytes: u64,
) -> Result<Address, Error> {
    gpu.bind()?;
    let start = segment.start().as_ptr();
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: so many bytes are mapped there, by whole pages, for as long as there are places of this context.
    let code = unsafe { sys::cuMemHostRegister_v2(start, bytes as usize, flags) };
    check("let the GPU reach memory that processes share", code)?;
    let mut address = Address(0);
    // SAFETY: the memory was just registered so that it has an address on the GPU, whose place is ours.
    let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address.0, start, 0) };
    let known = check("ask where the GPU has memory that processes share", code);
    match known {
        Ok(()) => all().0.push(Place {
            number,
            gpu: place_of(gpu),
            segment: segment.clone(),
            address,
        }),
        // The driver has it, so it stays mapped. Without an address it serves nobody.
        Err(_) => std::mem::forget(segment.clone()),
    }
    known.map(|()| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_serves_again_once_nobody_has_it_and_goes_with_its_context() {
        let segment = |bytes| Arc::new(Segment::create("test", bytes).expect("made").0);
        let gpu = |ordinal, context| Where { ordinal, context };
        let place = |number, gpu, segment: &Arc<Segment>| Place {
            number,
            gpu,
            segment: segment.clone(),
            address: Address(number),
        };
        let (first, second, longer) = (segment(64), segment(64), segment(128));
        let mut places = Places(vec![
            place(1, gpu(0, 7), &first),
            place(2, gpu(0, 7), &second),
            place(3, gpu(0, 7), &longer),
            place(4, gpu(1, 8), &segment(64)),
        ]);
        let numbers = |found: &[(u64, Arc<Segment>)]| -> Vec<u64> {
            found.iter().map(|(number, _)| *number).collect()
        };
        assert!(places.unused(gpu(0, 7), 64).is_empty(), "all are in use");
        assert_eq!(places.address(gpu(0, 7), &second), Some(Address(2)));
        assert_eq!(places.address(gpu(1, 8), &second), None);
        drop((second, longer));
        let found = places.unused(gpu(0, 7), 64);
        assert_eq!(numbers(&found), [2]);
        assert!(places.unused(gpu(0, 7), 64).is_empty(), "somebody has it");
        drop(found);
        assert_eq!(numbers(&places.unused(gpu(0, 7), 128)), [3]);
        assert_eq!(numbers(&places.unused(gpu(1, 8), 64)), [4]);
        assert!(places.unused(gpu(0, 9), 64).is_empty());
        assert_eq!(places.0.len(), 1, "a context took the others with it");
    }
}
