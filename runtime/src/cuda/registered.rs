//! Memory that processes share, which a GPU reads and writes: kernels look there whether somebody gave up, and say there
//! why they did.

use super::driver::check;
use super::{Address, Gpu};
use crate::error::Error;
use crate::shared::Segment;
use cudarc::driver::{CudaContext, sys};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that a GPU reaches as long as this is there.
#[derive(Debug)]
pub(crate) struct Registered {
    address: Address,
    number: u64,
    /// Its GPU, and the number of the context.
    context: (Arc<CudaContext>, u64),
}

/// The driver takes memory back only when nothing runs on the GPU, and would wait for a kernel that waits for us. So
/// that is done once nobody of a context has any.
static ALL: Mutex<All> = Mutex::new(All {
    made: 0,
    places: Vec::new(),
});

struct All {
    made: u64,
    places: Vec<Place>,
}

struct Place {
    number: u64,
    context: u64,
    used: bool,
    /// It stays mapped as long as the driver knows it.
    segment: Arc<Segment>,
}

impl Registered {
    /// The first bytes of a segment.
    pub(crate) fn new(gpu: &Gpu, segment: &Arc<Segment>, bytes: u64) -> Result<Registered, Error> {
        gpu.bind()?;
        let start = segment.start().as_ptr();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: so many bytes are mapped there, by whole pages, until they are taken back below.
        let code = unsafe { sys::cuMemHostRegister_v2(start, bytes as usize, flags) };
        check("let the GPU reach memory that processes share", code)?;
        let number = {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.made += 1;
            let number = all.made;
            all.places.push(Place {
                number,
                context: gpu.context_number(),
                used: true,
                segment: segment.clone(),
            });
            number
        };
        let mut registered = Registered {
            address: Address(0),
            number,
            context: (gpu.context().clone(), gpu.context_number()),
        };
        // SAFETY: the memory was just registered so that it has an address on the GPU, whose place is ours.
        let code =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut registered.address.0, start, 0) };
        check("ask where the GPU has memory that processes share", code)?;
        Ok(registered)
    }

    /// Where the GPU has it.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (context, number) = &self.context;
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &mut all.places {
            place.used &= place.number != self.number;
        }
        let of = |place: &Place| place.context == *number;
        if all.places.iter().any(|place| of(place) && place.used) {
            return;
        }
        let unused: Vec<Place> = all.places.extract_if(.., |place| of(place)).collect();
        drop(all);
        // A context that is dead reaches nothing any more, and takes with it what it had.
        let _ = context.bind_to_thread();
        for place in unused {
            // SAFETY: it was registered in this context, and nobody of it uses it any more.
            unsafe { sys::cuMemHostUnregister(place.segment.start().as_ptr()) };
        }
    }
}
