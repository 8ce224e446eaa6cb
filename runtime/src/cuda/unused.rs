//! Events that nobody has, for those who need one next.

use super::driver::aside;
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

/// To destroy events selects their GPU.
impl Drop for Unused {
    fn drop(&mut self) {
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            aside(|| all.clear());
        }
    }
}
