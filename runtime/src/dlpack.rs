//! Tensors that are handed to other libraries, and taken from them, by DLPack: its versioned struct, of version 1.
//!
//! DLPack has no streams. Whoever gives a tensor and whoever takes it agree on one, as Python's `__dlpack__(stream=..)`
//! does: the taker uses the memory in the order of that stream.

use crate::communicator::Communicator;
use crate::driver::{Element, Event, Home, Stream};
use crate::error::Error;
use crate::tensor::Tensor;
use crate::user_buffer::UserBuffer;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

pub use crate::driver::{Managed, ManagedTensor};

/// Tensor that another library has until it calls the deleter.
struct Given {
    memory: Option<Arc<dyn Any + Send + Sync>>,
    /// In whose order it uses the memory, and in whose order the memory is freed.
    streams: [Stream; 2],
}

/// Orders the rank's later work, the free among it, behind what the other library has enqueued.
impl Drop for Given {
    fn drop(&mut self) {
        let [theirs, own] = &self.streams;
        // A context that refuses this is dead.
        let _ = Event::record(theirs).and_then(|used| own.wait(&used));
        drop(self.memory.take());
    }
}

fn device(rank: &Communicator) -> Home {
    Home::gpu(rank.gpu().is_emulated(), rank.gpu().ordinal())
}

/// Rejects a stream of another GPU.
fn of(rank: &Communicator, stream: &Stream) -> Result<(), Error> {
    if rank.gpu().has(stream) {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("a stream of another GPU than rank {}'s", rank.rank()),
        legal: format!("give a stream of GPU {}", rank.gpu().ordinal()),
    })
}

impl<T: Element> Tensor<T> {
    /// Hands it to another library, which uses it in the order of `on`: after what this rank has enqueued so far. The
    /// memory stays until the deleter is called, and until what that stream has by then is done. An emulated GPU's
    /// memory has DLPack's "extension" device: no other library takes it for addresses.
    ///
    /// Launches that use it later are in no order with the other library's work but that of their streams.
    ///
    /// ```
    /// # fn main() -> Result<(), counterflow_runtime::Error> {
    /// let ranks = counterflow_runtime::Communicator::emulated(1)?;
    /// let (tensor, stream) = (ranks[0].zeros::<f32>([4, 8])?, ranks[0].gpu().stream()?);
    /// let given = tensor.to_dlpack(&stream)?;
    /// // Elsewhere: `given.into_raw()` is the pointer that other libraries take. Here it comes back.
    /// // SAFETY: it was just made, and nobody else has it.
    /// let same = unsafe { ranks[0].tensor_from_dlpack::<f32>(given.into_raw(), &stream)? };
    /// assert_eq!((same.shape(), same.address()), (tensor.shape(), tensor.address()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for a stream of another GPU; what the driver refuses.
    pub fn to_dlpack(&self, on: &Stream) -> Result<Managed, Error> {
        let rank = self.rank();
        of(rank, on)?;
        // Once it is given back, the rank's stream waits for `on`.
        rank.own().joins()?;
        on.wait(&Event::record(rank.own_stream())?)?;
        let given = Given {
            memory: Some(self.kept()),
            streams: [on.clone(), rank.own_stream().clone()],
        };
        let shape = self.shape();
        Ok(Managed::pack::<T>(
            given,
            self.address(),
            device(rank),
            (&shape, self.is_read_only()),
        ))
    }
}

impl Communicator {
    /// This rank's part of a buffer in the heap, handed to another library: as [`Tensor::to_dlpack`].
    ///
    /// ```
    /// use counterflow::{Communicator, Error, UserBuffer};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     rank.reserve(2 << 20)?;
    ///     let buffer: UserBuffer<f32> = rank.allocate("x", [4, 8])?;
    ///     let given = rank.to_dlpack(&buffer, &rank.gpu().stream()?)?;
    ///     drop(given); // or `given.into_raw()`, for another library
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for a buffer of another communicator or rank, and as there.
    pub fn to_dlpack<T: Element>(
        &self,
        buffer: &UserBuffer<T>,
        on: &Stream,
    ) -> Result<Managed, Error> {
        of(self, on)?;
        if !self.owns(buffer.allocation()) || buffer.rank() != self.rank() {
            return Err(Error::Usage {
                what: format!("{} of another rank or communicator", buffer.name()),
                legal: "each rank gives its own part".into(),
            });
        }
        self.own().joins()?;
        on.wait(&Event::record(self.own_stream())?)?;
        let given = Given {
            memory: Some(buffer.allocation().clone()),
            streams: [on.clone(), self.own_stream().clone()],
        };
        let at = buffer.address();
        let shaped = (buffer.shape(), false);
        Ok(Managed::pack::<T>(given, at, device(self), shaped))
    }

    /// A tensor that another library made, on this rank's GPU. What this rank enqueues from now on comes after what is in
    /// `on`, the stream in whose order the other library used it. The deleter is called once every handle is dropped, and
    /// every launch and graph that was given one is done; also if the tensor is refused. One that may only be read is an
    /// input: no launch and no call writes it, and it is handed on as such.
    ///
    /// [`Tensor::to_dlpack`] has an example of both ways. A tensor of other elements is refused, and deleted:
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let raw = rank.zeros::<f32>([4, 8])?.to_dlpack(rank.stream())?.into_raw();
    /// // SAFETY: it was just made, and nobody else has it.
    /// let error = unsafe { rank.tensor_from_dlpack::<u8>(raw, rank.stream()) }.unwrap_err();
    /// assert_eq!(error.kind(), "usage");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Safety
    /// `tensor` is a whole struct of DLPack's version 1, which nobody else deletes, and whose deleter may be called from
    /// any thread. Its memory is there until then. Whoever else uses it meanwhile does so before a launch in the order of
    /// the stream that the launch is on, or after it there.
    ///
    /// # Errors
    /// [`Error::Usage`] for another version, device or element, for elements that do not lie one row after another,
    /// and for a stream of another GPU; what the driver refuses.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn tensor_from_dlpack<T: Element>(
        &self,
        tensor: NonNull<ManagedTensor>,
        on: &Stream,
    ) -> Result<Tensor<T>, Error> {
        let managed = {
            // SAFETY: the caller's promise.
            unsafe { Managed::from_raw(tensor) }
        };
        let contents = managed.contents::<T>(device(self))?;
        of(self, on)?;
        self.own().joins()?;
        self.own_stream().wait(&Event::record(on)?)?;
        Tensor::lent(self, managed, contents)
    }
}
