//! Buffers in memory that another library allocated.

use super::{UserBuffer, sizes};
use crate::communicator::{Communicator, misled};
use crate::driver::Element;
use crate::error::Error;
use crate::group::{Granted, Wanted};
use std::sync::Arc;
use tracing::debug;

impl Communicator {
    /// A buffer of the heap in memory that another library allocated on this rank's GPU, such as NCCL by `ncclMemAlloc`:
    /// the raw door for buffers that kernels of both use without a copy. Collective: every rank gives memory of its own,
    /// and the same name, shape and type. It holds what it held.
    ///
    /// The memory must be all of one allocation that `cuMemCreate` made, with a POSIX file descriptor as the type of its
    /// handle. It has further addresses in the heap then, on every rank, until the communicator is gone, and lives for as
    /// long: the other library may free it, and dropping the buffer does not.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let theirs = rank.zeros::<f32>([4, 8])?; // not made by `cuMemCreate`
    /// // SAFETY: nobody else uses it.
    /// let adopted = unsafe { rank.adopt::<f32>("x", theirs.address().get(), [4, 8]) };
    /// assert_eq!(adopted.unwrap_err().kind(), "usage");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Safety
    /// From `address` on there are as many elements as the shape has, and nobody unmaps them during this call. It is
    /// lent once: only ranks of one process that lend it in one call are seen and refused. Whoever else uses the
    /// memory, by any address, does so before a launch that is given it on any rank, in the order of streams, or after
    /// it: no kernel may use it by its old address while another one uses it by the heap's.
    ///
    /// # Errors
    /// On every rank, with the rank whose memory it is: [`Error::Usage`] where it was allocated in another way, or without
    /// a file descriptor, or is not all of one allocation of the rank's GPU, or two ranks of one process lend the same;
    /// [`Error::TooLarge`] where the slots have no room for its addresses, which stay taken until the communicator is
    /// gone; [`Error::Mismatch`], [`Error::Stalled`]; what the driver refuses.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn adopt<T: Element>(
        &self,
        name: &str,
        address: u64,
        shape: impl AsRef<[usize]>,
    ) -> Result<UserBuffer<T>, Error> {
        let shape: Arc<[usize]> = shape.as_ref().into();
        let (len, bytes) = sizes(name, &shape, size_of::<T>())?;
        let element = std::any::type_name::<T>();
        let wanted = Wanted {
            name: name.into(),
            shape: shape.clone(),
            element: element.rsplit("::").next().unwrap_or(element),
            bytes,
        };
        let name = wanted.name.clone();
        match self.lend(wanted, address)? {
            Granted::Memory(allocation) => {
                let offset = allocation.offset();
                debug!(rank = self.rank(), %name, ?shape, bytes, offset, "buffer of another library");
                let owners = (self.own().clone(), self.ends().clone());
                let named = (name, shape);
                Ok(UserBuffer::new(allocation, named, len, self.rank(), owners))
            }
            other @ (Granted::Done | Granted::Kernel(_) | Granted::Split(_) | Granted::Told(_)) => {
                Err(misled(&other))
            }
        }
    }
}
