//! Memory that belongs to cudarc, for one launch.

use super::Address;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};
use std::fmt;
use std::sync::Arc;

/// A slice or view of cudarc's, borrowed as a launch needs it.
pub(crate) struct Foreign<'a>(Box<dyn Memory + 'a>);

/// Memory of cudarc while a launch is enqueued. When this is dropped, cudarc knows that the stream used it until
/// then.
pub(crate) struct Opened<'a> {
    /// Address of the memory.
    pub address: Address,
    _used: SyncOnDrop<'a>,
}

trait Memory {
    fn elements(&self) -> usize;
    fn stream(&self) -> &Arc<CudaStream>;
    fn open<'b>(&'b mut self, on: &'b CudaStream) -> Opened<'b>;
}

/// To be read.
struct Read<'a, S>(&'a S);
/// To be written.
struct Written<'a, S>(&'a mut S);

macro_rules! memory {
    ($way:ident, $slice:ty, $open:ident) => {
        impl<T> Memory for $way<'_, $slice> {
            fn elements(&self) -> usize {
                DeviceSlice::<T>::len(&*self.0)
            }

            fn stream(&self) -> &Arc<CudaStream> {
                DeviceSlice::<T>::stream(&*self.0)
            }

            fn open<'b>(&'b mut self, on: &'b CudaStream) -> Opened<'b> {
                let (address, used) = self.0.$open(on);
                Opened {
                    address: Address(address),
                    _used: used,
                }
            }
        }
    };
}
memory!(Read, CudaSlice<T>, device_ptr);
memory!(Read, CudaView<'_, T>, device_ptr);
memory!(Written, CudaSlice<T>, device_ptr_mut);
memory!(Written, CudaViewMut<'_, T>, device_ptr_mut);

impl<'a> Foreign<'a> {
    /// A slice that is read.
    pub(crate) fn slice<T>(slice: &'a CudaSlice<T>) -> Self {
        Foreign(Box::new(Read(slice)))
    }

    /// A view that is read.
    pub(crate) fn view<T>(view: &'a CudaView<'_, T>) -> Self {
        Foreign(Box::new(Read(view)))
    }

    /// A slice that is written.
    pub(crate) fn slice_mut<T>(slice: &'a mut CudaSlice<T>) -> Self {
        Foreign(Box::new(Written(slice)))
    }

    /// A view that is written.
    pub(crate) fn view_mut<T>(view: &'a mut CudaViewMut<'_, T>) -> Self {
        Foreign(Box::new(Written(view)))
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.0.elements()
    }

    /// The stream in whose order it is freed, and used where cudarc tracks no events.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        self.0.stream()
    }

    /// Lets `on` wait for those that used it before.
    pub(crate) fn open<'b>(&'b mut self, on: &'b CudaStream) -> Opened<'b> {
        self.0.open(on)
    }
}

impl fmt::Debug for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({} elements)", self.elements())
    }
}
