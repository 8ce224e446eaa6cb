//! Buffers that NCCL's collectives use in place.

use super::UserBuffer;
use crate::cuda::{self, Window};
use crate::driver::Element;
use crate::error::Error;
use crate::multicast;
use std::ffi::c_void;

impl<T: Element> UserBuffer<T> {
    /// Registers this rank's part with a communicator of NCCL's: its collectives use the memory in place. Give NCCL the
    /// addresses that [`UserBuffer::address`] says. NCCL 2.29 or later, which the program has loaded; no call here starts
    /// it, and `NCCL_NVLS_ENABLE=0` must forbid NCCL multicast.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<f32>("x", [64])?;
    /// # let communicator = std::ptr::null_mut();
    /// // SAFETY: `communicator` is NCCL's of this rank's GPU, lives longer, and every rank of it makes this call.
    /// let refused = unsafe { x.window(communicator) };
    /// assert!(refused.is_err()); // an emulated GPU has no NCCL
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Safety
    /// `communicator` is an `ncclComm_t` of the NCCL that this process has loaded, with one rank on this rank's GPU for
    /// each rank here, in the same order. It blocks (`ncclConfig_t::blocking`), and lives for as long as the result. Every
    /// rank makes this call, none is in another call of NCCL's meanwhile, and this thread has no group of NCCL's open. The
    /// window is dropped by every rank, when NCCL's work with it is done.
    ///
    /// # Errors
    /// Before NCCL is called: [`Error::Usage`] for an emulated GPU, where multicast is not forbidden, and for a buffer that
    /// was reserved in several parts; [`Error::Toolkit`] without NCCL, or with an older one. What NCCL refuses.
    /// [`Error::Usage`] where the communicator does not block: then the memory stays for as long as the process. It also
    /// does where NCCL refuses to let go of a window that is dropped.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn window(&self, communicator: *mut c_void) -> Result<Window, Error> {
        let gpu = self.own.gpu().cuda()?;
        multicast::must_be_off("NCCL")?;
        let (address, bytes) = (self.address().get(), (self.len * size_of::<T>()) as u64);
        let before = address % cuda::NCCL_ALIGN;
        let start = self.allocation.offset() + self.first - before;
        if !self.allocation.is_one_piece(start..start + before + bytes) {
            return Err(Error::Usage {
                what: format!(
                    "{} lies in memory that was reserved in several calls",
                    self.name
                ),
                legal: "reserve all of it at once, or adopt memory".into(),
            });
        }
        // SAFETY: the caller's promise. The range is all in the slot, whose start is aligned further.
        unsafe {
            cuda::register_with_nccl(
                gpu,
                communicator,
                address - before,
                before + bytes,
                self.allocation.clone(),
            )
        }
    }
}
