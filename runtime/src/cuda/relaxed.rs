//! Calls beside a capture of this thread in one of the strict modes.

use cudarc::driver::sys;

/// Lets this thread make calls that a capture in the strict modes forbids, until it is dropped: questions of how far a GPU
/// is, among others. They enqueue nothing there. Such a capture of another thread would end with them.
#[derive(Debug)]
pub(crate) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub fn now() -> Relaxed {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the place is ours. It fails only where there is no driver, and then nothing captures.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Relaxed(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}

/// Acts with calls that a capture forbids in its strict modes.
pub(super) fn relaxed<T>(act: impl FnOnce() -> T) -> T {
    let _mode = Relaxed::now();
    act()
}
