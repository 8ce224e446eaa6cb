//! Events that nobody has, for those who need one next.

use cudarc::driver::CudaEvent;
use std::sync::{Mutex, PoisonError};

/// A GPU's events that keep no time, and that nobody has.
#[derive(Default, Debug)]
pub(super) struct Unused(Mutex<Vec<CudaEvent>>);

impl Unused {
    pub fn take(&self) -> Option<CudaEvent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub fn put(&self, event: CudaEvent) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(event);
    }
}
