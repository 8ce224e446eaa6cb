//! Memory of the symmetric heap: the same offset on every rank, addressed by every GPU.

mod adopted;
mod window;

use crate::communicator::{Communicator, misled};
use crate::driver::{self, Address, Element};
use crate::error::Error;
use crate::group::{Allocation, End, Granted, Request, Wanted};
use crate::own::Own;
use crate::tensor::{Tensor, begins_at_multiple, elements_within, no_such_rows, rows_and_columns};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use tracing::debug;

/// A tensor on each rank, at one offset of the heap. The memory is freed when every rank has dropped its handles and the
/// work that was enqueued until then is done: a handle may be dropped under a running kernel.
///
/// ```
/// use counterflow::Communicator;
///
/// Communicator::each(&Communicator::emulated(2)?, |rank| {
///     rank.reserve(2 << 20)?;
///     let buffer = rank.allocate::<f32>("activations", [2, 3])?;
///     assert_eq!((buffer.name(), buffer.shape()), ("activations", &[2, 3][..]));
///     assert_eq!((buffer.len(), buffer.is_empty()), (6, false));
///     buffer.write(&[1.0; 6])?; // this rank's elements
///     rank.synchronize()?;
///     rank.barrier()?;
///     let peer = 1 - rank.rank();
///     assert_eq!(buffer.read_on(peer)?, [1.0; 6]);
///     assert!(buffer.read_on(2).is_err_and(|error| error.to_string() == "rank 2 of 2"));
///     rank.barrier() // a rank that ends early ends its peers' waits
/// })?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UserBuffer<T> {
    allocation: Arc<Allocation>,
    /// Bytes before its first element.
    first: u64,
    name: Arc<str>,
    shape: Arc<[usize]>,
    len: usize,
    rank: u32,
    own: Arc<Own>,
    end: Arc<End>,
    elements: PhantomData<T>,
}

impl Communicator {
    /// Heap memory for a tensor of that shape, zeroed, at the same offset on every rank. Collective: every rank gives the
    /// same name, shape and type, and one call of a rank runs at a time. It waits for the other ranks' calls, not for
    /// their GPUs.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(2)?;
    /// let ended = Communicator::each(&ranks, |rank| {
    ///     rank.reserve(2 << 20)?;
    ///     let name = ["x", "y"][rank.rank() as usize]; // every rank must give the same
    ///     rank.allocate::<f32>(name, [4]).map(drop)
    /// });
    /// assert_eq!(ended.unwrap_err().kind(), "mismatch");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more bytes than there are addresses; too little is reserved; [`Error::Mismatch`] if a rank
    /// asks for another name, shape or type; [`Error::Stalled`].
    pub fn allocate<T: Element>(
        &self,
        name: &str,
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
        match self.meet(&Request::Allocate(wanted))? {
            Granted::Memory(allocation) => {
                let offset = allocation.offset();
                debug!(rank = self.rank(), %name, ?shape, bytes, offset, "buffer");
                Ok(UserBuffer::new(
                    allocation,
                    (name, shape),
                    len,
                    self.rank(),
                    (self.own().clone(), self.ends().clone()),
                ))
            }
            other @ (Granted::Done | Granted::Kernel(_) | Granted::Split(_) | Granted::Told(_)) => {
                Err(misled(&other))
            }
        }
    }

    /// This rank's elements of memory in the heap as a tensor: another handle of the same memory. So what takes a tensor, such as the
    /// result of a layer, is written where peers address it, and nothing copies it there.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(2 << 20)?;
    /// let buffer = rank.allocate::<f32>("x", [4, 2])?;
    /// let rows = rank.tensor_of(&buffer.rows(1..3)?)?;
    /// rows.write(&[1.0; 4])?;
    /// assert_eq!(buffer.read()?, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for memory of another rank or communicator.
    pub fn tensor_of<T: Element>(&self, buffer: &UserBuffer<T>) -> Result<Tensor<T>, Error> {
        if !self.owns(buffer.allocation()) || buffer.rank() != self.rank() {
            return Err(Error::Usage {
                what: format!("a tensor of `{}`, which is another rank's", buffer.name()),
                legal: "give memory of this rank and its communicator".into(),
            });
        }
        let shape = rows_and_columns(buffer.shape());
        let keeps = buffer.allocation().clone();
        Ok(Tensor::seen(self, buffer.address(), shape, keeps))
    }
}

impl<T: Element> UserBuffer<T> {
    fn new(
        allocation: Arc<Allocation>,
        (name, shape): (Arc<str>, Arc<[usize]>),
        len: usize,
        rank: u32,
        (own, end): (Arc<Own>, Arc<End>),
    ) -> Self {
        UserBuffer {
            allocation,
            first: 0,
            name,
            shape,
            len,
            rank,
            own,
            end,
            elements: PhantomData,
        }
    }

    /// Range of the heap.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// The name that it was allocated under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions on each rank.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The rank whose handle this is.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Elements on each rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the start of a rank's slot: the same on every rank.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # rank.reserve(2 << 20)?;
    /// let (x, y) = (rank.allocate::<f32>("x", [4])?, rank.allocate::<f32>("y", [4])?);
    /// assert_eq!(y.address(), x.address().plus(y.offset() - x.offset()));
    /// assert_eq!(x.address(), x.on(rank.rank()));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn offset(&self) -> u64 {
        self.allocation.offset() + self.first
    }

    /// Address on rank `rank`. Every GPU of the group can use it.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn on(&self, rank: u32) -> Address {
        self.allocation.on(rank).plus(self.first)
    }

    /// The address by which one store reaches it on every rank, for kernels of your own: by `multimem` instructions alone, since
    /// anything else there is undefined. Elements as [`UserBuffer::on`] has them.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<f32>("x", [4])?;
    /// let refused = x.everywhere().unwrap_err(); // nobody asked for multicast
    /// assert_eq!(refused.kind(), "usage");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason why no multicast reaches it: see [`Communicator::multicast`].
    pub fn everywhere(&self) -> Result<Address, Error> {
        Ok(self.allocation.everywhere()?.plus(self.first))
    }

    /// Address on this rank.
    pub fn address(&self) -> Address {
        self.on(self.rank)
    }

    /// Writes this rank's elements from the front, in stream order.
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has; what the driver rejects.
    pub fn write(&self, values: &[T]) -> Result<(), Error> {
        self.write_on(self.rank, values)
    }

    /// Writes a peer's elements, in the order of this rank's stream. That also comes after what the peer had enqueued when
    /// the buffer was allocated, since the peer clears it after that.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let ranks = Communicator::emulated(2)?;
    /// # Communicator::each(&ranks, |rank| {
    /// #     rank.reserve(2 << 20)?;
    /// let buffer = rank.allocate::<u32>("from", [1])?;
    /// buffer.write_on(1 - rank.rank(), &[rank.rank()])?;
    /// rank.synchronize()?;
    /// rank.barrier()?;
    /// assert_eq!(buffer.read()?, [1 - rank.rank()]);
    /// #     rank.barrier()
    /// # })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`UserBuffer::write`]; [`Error::Usage`] if there is no such rank.
    pub fn write_on(&self, rank: u32, values: &[T]) -> Result<(), Error> {
        self.fits(values.len(), "written to")?;
        self.reach(rank)?;
        self.own.must_not_record("a write by the host")?;
        let to = self.on(rank);
        self.own
            .enqueues(|stream| driver::write(stream, to, values))
    }

    /// Copies a tensor's elements to the front of this rank's, in the order of the rank's launches.
    ///
    /// # Errors
    /// As [`UserBuffer::write`]; [`Error::Usage`] for a tensor of another rank.
    pub fn copy_from(&self, from: &Tensor<T>) -> Result<(), Error> {
        self.in_order(from)?;
        self.fits(from.len(), "copied to")?;
        let bytes = (from.len() * size_of::<T>()) as u64;
        let both = [self.address(), from.address()];
        self.own
            .copies(both, bytes, [self.allocation.clone(), from.kept()])
    }

    /// Copies as many elements from the front of this rank's as `to` has, in the order of the rank's launches.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// # rank.reserve(2 << 20)?;
    /// let buffer = rank.allocate::<f32>("x", [4, 2])?;
    /// let (from, to) = (rank.zeros::<f32>([4, 2])?, rank.zeros::<f32>([1, 2])?);
    /// buffer.fill(0xff)?;
    /// buffer.copy_from(&from)?;
    /// buffer.copy_to(&to)?; // as many as `to` has
    /// assert_eq!(to.read()?, [0.0; 2]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`UserBuffer::copy_from`].
    pub fn copy_to(&self, to: &Tensor<T>) -> Result<(), Error> {
        self.in_order(to)?;
        self.fits(to.len(), "copied from")?;
        let bytes = (to.len() * size_of::<T>()) as u64;
        let both = [to.address(), self.address()];
        self.own
            .copies(both, bytes, [to.kept(), self.allocation.clone()])
    }

    /// Some of its rows on every rank: another handle of the same memory. A vector is one row.
    ///
    /// ```
    /// # let ranks = counterflow::Communicator::emulated(1)?;
    /// # let rank = &ranks[0];
    /// # rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<f32>("x", [4, 2])?;
    /// let mine = x.rows(2..4)?; // this rank's part
    /// mine.write(&[1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.read()?, [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that it does not have.
    pub fn rows(&self, rows: Range<usize>) -> Result<UserBuffer<T>, Error> {
        let [held, columns] = rows_and_columns(&self.shape);
        if rows.start > rows.end || rows.end > held {
            return Err(no_such_rows(&rows, held));
        }
        let before = (rows.start * columns * size_of::<T>()) as u64;
        Ok(UserBuffer {
            first: self.first + before,
            shape: [rows.len(), columns].into(),
            len: rows.len() * columns,
            ..self.clone()
        })
    }

    /// Views the first elements of every rank with another number of rows and columns: another handle of the same memory.
    ///
    /// ```
    /// # let ranks = counterflow::Communicator::emulated(1)?;
    /// # let rank = &ranks[0];
    /// # rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<f32>("x", [4, 2])?;
    /// let longer = x.shaped([2, 3])?;
    /// longer.rows(1..2)?.write(&[1.0, 2.0, 3.0])?;
    /// assert_eq!(x.read()?, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    /// assert_eq!(x.shaped([3, 3]).unwrap_err().kind(), "usage");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has.
    pub fn shaped(&self, shape: [usize; 2]) -> Result<UserBuffer<T>, Error> {
        let len = elements_within(shape, self.len, &self.name)?;
        Ok(UserBuffer {
            shape: shape.into(),
            len,
            ..self.clone()
        })
    }

    /// Its first bytes on every rank as elements of another type: another handle of the same memory.
    ///
    /// ```
    /// # use counterflow::prelude::{bf16, e4m3};
    /// # let ranks = counterflow::Communicator::emulated(1)?;
    /// # let rank = &ranks[0];
    /// # rank.reserve(2 << 20)?;
    /// let x = rank.allocate::<bf16>("x", [4, 16])?;
    /// let codes = x.reinterpret::<e4m3>([4, 32])?;
    /// codes.rows(1..2)?.write(&[e4m3::ONE; 32])?;
    /// assert_eq!(x.read()?[16..32], [bf16::from_bits(0x3838); 16]); // two codes each
    /// assert_eq!(x.reinterpret::<e4m3>([4, 33]).unwrap_err().kind(), "usage");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more bytes than it has, and where it does not begin at a multiple of the type's size.
    pub fn reinterpret<U: Element>(&self, shape: [usize; 2]) -> Result<UserBuffer<U>, Error> {
        let held = self.len * size_of::<T>() / size_of::<U>();
        let len = elements_within(shape, held, &self.name)?;
        begins_at_multiple::<U>(self.offset())?;
        Ok(UserBuffer {
            allocation: self.allocation.clone(),
            first: self.first,
            name: self.name.clone(),
            shape: shape.into(),
            len,
            rank: self.rank,
            own: self.own.clone(),
            end: self.end.clone(),
            elements: PhantomData,
        })
    }

    /// Lets the stream come after a rank's memory was cleared. That is behind what the rank had enqueued, which may wait
    /// for others. This rank's own was cleared in the same stream.
    fn reach(&self, rank: u32) -> Result<(), Error> {
        let world = self.allocation.world();
        if rank >= world {
            return Err(Error::Usage {
                what: format!("rank {rank} of {world}"),
                legal: format!("0 to {}", world - 1),
            });
        }
        if rank == self.rank || self.allocation.is_ready(self.rank) {
            return Ok(());
        }
        let _turn = self.own.settled()?;
        self.allocation.ready(self.rank)
    }

    /// A tensor is freed in the order of its rank's stream: a copy in another one may come after that.
    fn in_order(&self, tensor: &Tensor<T>) -> Result<(), Error> {
        if !tensor.rank().own_stream().is(self.own.stream()) {
            return Err(Error::Usage {
                what: "a copy between a buffer and a tensor of another rank".into(),
                legal: "copy between memory of one rank".into(),
            });
        }
        Ok(())
    }

    fn fits(&self, len: usize, done: &str) -> Result<(), Error> {
        if len > self.len {
            return Err(Error::Usage {
                what: format!("{len} elements {done} a buffer of {}", self.len),
                legal: "give at most as many as it has".into(),
            });
        }
        Ok(())
    }

    /// Sets all of this rank's bytes, in stream order.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        let bytes = (self.len * size_of::<T>()) as u64;
        self.own
            .fills(self.address(), byte, bytes, self.allocation.clone())
    }

    /// This rank's elements, once its stream is done.
    ///
    /// # Errors
    /// What the kernels before ended with; why the communicator has ended, if it has.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        self.read_on(self.rank)
    }

    /// A peer's elements, in the order of this rank's stream.
    ///
    /// # Errors
    /// As [`UserBuffer::read`]; [`Error::Usage`] if there is no such rank.
    pub fn read_on(&self, rank: u32) -> Result<Vec<T>, Error> {
        self.reach(rank)?;
        self.own.waits()?;
        let values = driver::read(self.own.stream(), self.on(rank), self.len)?;
        // Once the communicator has ended, they may be anything.
        self.end.alive().map(|()| values)
    }
}

/// Numbers of elements and bytes of a tensor of that shape.
fn sizes(name: &str, shape: &[usize], element: usize) -> Result<(usize, u64), Error> {
    let elements = shape
        .iter()
        .try_fold(1usize, |all, size| all.checked_mul(*size));
    let bytes = elements.and_then(|elements| elements.checked_mul(element));
    elements
        .zip(bytes.filter(|bytes| isize::try_from(*bytes).is_ok()))
        .map(|(elements, bytes)| (elements, bytes as u64))
        .ok_or_else(|| Error::Usage {
            what: format!("{name} of {shape:?} elements of {element} bytes"),
            legal: "a tensor has less than 2^63 bytes".into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_as_many_bytes_as_its_shape_says_or_is_refused() {
        assert_eq!(sizes("x", &[3, 5], 2).ok(), Some((15, 30)));
        assert_eq!(sizes("x", &[], 4).ok(), Some((1, 4)));
        assert_eq!(sizes("x", &[0, usize::MAX], 4).ok(), Some((0, 0)));
        // The product is 0, and 2, in 64 bits.
        for shape in [[1 << 32, 1 << 32], [1 << 62, 4], [(1 << 63) + 1, 1]] {
            let error = sizes("x", &shape, 2).expect_err("too much");
            assert_eq!(error.kind(), "usage", "{shape:?}");
        }
    }
}
