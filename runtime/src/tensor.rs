//! Memory of one rank's GPU, for its operands and results that no peer addresses.

use crate::communicator::Communicator;
use crate::driver::{self, Address, Contents, Element, Local, Managed};
use crate::error::Error;
use crate::retire;
use std::ops::Range;
use std::sync::Arc;

/// The extents of memory as rows and columns: the last one is the columns; a vector is one row.
pub(crate) fn rows_and_columns(shape: &[usize]) -> [usize; 2] {
    match shape {
        [] => [1, 1],
        [rows @ .., columns] => [rows.iter().product(), *columns],
    }
}

/// Rows of elements on one rank's GPU, one row after another. A clone, and a view of [some rows](Tensor::rows), are
/// handles of the same memory. It is freed when no handle and no launch that was given one needs it any more: dropping a
/// handle under a running kernel is fine.
///
/// ```
/// use counterflow::Communicator;
///
/// let rank = &Communicator::emulated(1)?[0];
/// let tensor = rank.zeros::<f32>([3, 2])?;
/// tensor.write(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// let last = tensor.rows(2..3)?;
/// assert_eq!((last.shape(), last.len(), last.is_empty()), ([1, 2], 2, false));
/// tensor.rows(0..1)?.copy_from(&last)?;
/// assert_eq!(tensor.read()?, [5.0, 6.0, 3.0, 4.0, 5.0, 6.0]);
/// tensor.fill(0)?;
/// assert_eq!(last.read()?, [0.0; 2]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor<T> {
    memory: Arc<Memory<T>>,
    /// The first element.
    first: usize,
    shape: [usize; 2],
}

/// Memory that lives in the order of its rank's stream: it is allocated, used and freed there.
#[derive(Debug)]
struct Memory<T> {
    place: Place<T>,
    rank: Arc<Communicator>,
}

#[derive(Debug)]
enum Place<T> {
    Own(Local<T>),
    /// Somebody else keeps it.
    Raw(Address),
    /// Another library's, until its deleter is called.
    Lent {
        start: Address,
        read_only: bool,
        _until: Lent,
    },
    /// Memory of a tensor of other elements, or of the heap.
    Seen {
        start: Address,
        read_only: bool,
        _of: Arc<dyn std::any::Any + Send + Sync>,
    },
}

/// A tensor of another library. It is given back once what this rank has enqueued with it is done.
#[derive(Debug)]
struct Lent {
    managed: Option<Managed>,
    rank: Arc<Communicator>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let managed = self.managed.take();
        retire::later(self.rank.gpu(), self.rank.own_stream(), managed);
    }
}

impl<T: Element> Memory<T> {
    fn address(&self) -> Address {
        match &self.place {
            Place::Own(local) => local.address(),
            Place::Raw(address)
            | Place::Lent { start: address, .. }
            | Place::Seen { start: address, .. } => *address,
        }
    }
}

impl Communicator {
    /// A tensor in memory that somebody else allocated and frees: the raw door for other libraries, and for other versions
    /// of cudarc.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let theirs = rank.zeros::<f32>([4, 8])?; // stands for another library's memory
    /// // SAFETY: it has 4 * 8 elements, and outlives `ours` and its work.
    /// let ours = unsafe { rank.tensor_from_raw::<f32>(theirs.address().get(), [4, 8])? };
    /// ours.write(&[1.0; 32])?;
    /// assert_eq!(theirs.read()?, [1.0; 32]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Safety
    /// From `address` on there are as many elements as the shape has, in memory of this rank's GPU. They stay there until
    /// every handle of the tensor is dropped and every launch and graph that was given one is done. Whoever else uses them
    /// meanwhile does so before a launch in the order of the stream that the launch is on, or after it there.
    ///
    /// # Errors
    /// [`Error::Usage`] for more bytes than can be addressed.
    #[allow(unsafe_code, reason = "a door: what it is told cannot be checked")]
    pub unsafe fn tensor_from_raw<T: Element>(
        &self,
        address: u64,
        shape: impl AsRef<[usize]>,
    ) -> Result<Tensor<T>, Error> {
        count::<T>(shape.as_ref())?;
        Ok(Tensor {
            memory: Arc::new(Memory {
                place: Place::Raw(Address::of(address)),
                rank: Arc::new(self.handle()),
            }),
            first: 0,
            shape: rows_and_columns(shape.as_ref()),
        })
    }

    /// A tensor of zeros on this rank's GPU that no peer addresses: an operand or a result. The last extent is the
    /// columns.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let bias = rank.zeros::<f32>([256])?;
    /// let heads = rank.zeros::<bf16>([4, 32, 64])?;
    /// assert_eq!((bias.shape(), heads.shape()), ([1, 256], [128, 64]));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the GPU's memory is full.
    pub fn zeros<T: Element>(&self, shape: impl AsRef<[usize]>) -> Result<Tensor<T>, Error> {
        Tensor::zeros(self, shape.as_ref())
    }

    /// Number of tensors that [`Communicator::zeros`] has allocated on this rank so far, those that are freed too: a
    /// step that allocates none leaves it as it was. [`Communicator::heap_use`] has what the symmetric heap gave out.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let x = rank.zeros::<f32>([4, 8])?;
    /// let _rows = x.rows(0..2)?; // the same memory
    /// assert_eq!(rank.tensors_allocated(), 1);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn tensors_allocated(&self) -> u64 {
        self.own().allocated()
    }

    /// Number of times so far that the host has waited for work in this rank's stream: to read memory, in
    /// [`Communicator::synchronize`] or in [`Pending::wait`](crate::Pending::wait). A step that leaves it as it was reads nothing.
    ///
    /// It does not count waits for other ranks or threads: [`Communicator::barrier`], calls of all ranks, a turn that another thread
    /// has, and a launch that waits at one of the [limits](crate::op::Launch::launch) on how far a rank may be ahead.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let x = rank.zeros::<f32>([4, 8])?;
    /// x.fill(1)?;
    /// assert_eq!(rank.host_waits(), 0);
    /// x.read()?;
    /// assert_eq!(rank.host_waits(), 1);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn host_waits(&self) -> u64 {
        self.own().waited()
    }
}

impl<T: Element> Tensor<T> {
    /// Of zero bits.
    fn zeros(rank: &Communicator, shape: &[usize]) -> Result<Tensor<T>, Error> {
        let len = count::<T>(shape)?;
        // The driver may let the stream wait for memory that another stream frees.
        let _turn = rank.own().settled()?;
        rank.own().allocates();
        Ok(Tensor {
            memory: Arc::new(Memory {
                place: Place::Own(Local::zeros(rank.own_stream(), len)?),
                rank: Arc::new(rank.handle()),
            }),
            first: 0,
            shape: rows_and_columns(shape),
        })
    }

    /// Memory of the rank's that somebody else allocated, and keeps while `of` is there.
    pub(crate) fn seen(
        rank: &Communicator,
        start: Address,
        shape: [usize; 2],
        of: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Tensor<T> {
        let place = Place::Seen {
            start,
            read_only: false,
            _of: of,
        };
        Tensor {
            memory: Arc::new(Memory {
                place,
                rank: rank.shared().clone(),
            }),
            first: 0,
            shape,
        }
    }

    /// Another library's, with what it says of it.
    pub(crate) fn lent(
        rank: &Communicator,
        managed: Managed,
        Contents {
            start,
            shape,
            read_only,
        }: Contents,
    ) -> Result<Tensor<T>, Error> {
        let shape = &shape[..];
        count::<T>(shape)?;
        let rank = Arc::new(rank.handle());
        let lent = Lent {
            managed: Some(managed),
            rank: rank.clone(),
        };
        Ok(Tensor {
            memory: Arc::new(Memory {
                place: Place::Lent {
                    start,
                    read_only,
                    _until: lent,
                },
                rank,
            }),
            first: 0,
            shape: rows_and_columns(shape),
        })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of its rows: another handle of the same memory.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let tensor = rank.zeros::<f32>([3, 2])?;
    /// let error = tensor.rows(1..4).unwrap_err();
    /// assert_eq!(error.to_string(), "rows 1..4 of 3");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for rows that it does not have.
    pub fn rows(&self, rows: Range<usize>) -> Result<Tensor<T>, Error> {
        if rows.start > rows.end || rows.end > self.shape[0] {
            return Err(no_such_rows(&rows, self.shape[0]));
        }
        Ok(Tensor {
            memory: self.memory.clone(),
            first: self.first + rows.start * self.shape[1],
            shape: [rows.len(), self.shape[1]],
        })
    }

    /// Views the first elements with another number of rows and columns: another handle of the same memory.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let plane = rank.zeros::<f32>([2, 4])?; // of up to 4 rows
    /// let shorter = plane.shaped([2, 3])?;
    /// shorter.rows(1..2)?.write(&[1.0, 2.0, 3.0])?;
    /// assert_eq!(plane.read()?, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    /// assert_eq!(plane.shaped([3, 3]).unwrap_err().to_string(), "3 x 3 elements of a tensor");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more elements than it has.
    pub fn shaped(&self, shape: [usize; 2]) -> Result<Tensor<T>, Error> {
        elements_within(shape, self.len(), "a tensor")?;
        Ok(Tensor {
            memory: self.memory.clone(),
            first: self.first,
            shape,
        })
    }

    /// Its first bytes as elements of another type: another handle of the same memory.
    ///
    /// ```
    /// # use counterflow::{Communicator, prelude::{bf16, e4m3}};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let scratch = rank.zeros::<bf16>([2, 16])?;
    /// let codes = scratch.reinterpret::<e4m3>([4, 16])?;
    /// codes.rows(1..2)?.write(&[e4m3::ONE; 16])?;
    /// assert_eq!(scratch.read()?[8..16], [bf16::from_bits(0x3838); 8]); // two codes each
    /// assert_eq!(scratch.reinterpret::<f32>([2, 9]).unwrap_err().to_string(), "2 x 9 elements of a tensor");
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] for more bytes than it has, and where it does not begin at a multiple of the type's size.
    pub fn reinterpret<U: Element>(&self, shape: [usize; 2]) -> Result<Tensor<U>, Error> {
        let held = self.len() * size_of::<T>() / size_of::<U>();
        elements_within(shape, held, "a tensor")?;
        begins_at_multiple::<U>(self.address().get())?;
        Ok(Tensor {
            memory: Arc::new(Memory {
                place: Place::Seen {
                    start: self.address(),
                    read_only: self.is_read_only(),
                    _of: self.kept(),
                },
                rank: self.rank().clone(),
            }),
            first: 0,
            shape,
        })
    }

    /// Address on its GPU. To use the number with another library is as unsafe as that library's call.
    ///
    /// ```
    /// # use counterflow::Communicator;
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let tensor = rank.zeros::<f32>([3, 2])?;
    /// assert_eq!(tensor.rows(1..2)?.address(), tensor.address().plus(8));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn address(&self) -> Address {
        let bytes = self.first * size_of::<T>();
        self.memory.address().plus(bytes as u64)
    }

    /// The rank whose GPU it is on.
    pub(crate) fn rank(&self) -> &Arc<Communicator> {
        &self.memory.rank
    }

    /// True if another library lent it to be read alone.
    pub(crate) fn is_read_only(&self) -> bool {
        match self.memory.place {
            Place::Lent { read_only, .. } | Place::Seen { read_only, .. } => read_only,
            Place::Own(_) | Place::Raw(_) => false,
        }
    }

    fn must_be_writable(&self) -> Result<(), Error> {
        match self.is_read_only() {
            false => Ok(()),
            true => Err(Error::Usage {
                what: "a write to a tensor that another library lent to be read".into(),
                legal: "write to memory of your own, or let that library lend it to be written"
                    .into(),
            }),
        }
    }

    /// Owner that keeps the memory alive.
    pub(crate) fn kept(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.memory.clone()
    }

    /// Writes all elements, after every launch of this rank so far and before every later one.
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of elements than it has, and for what another library lent to be read; what the
    /// driver refuses.
    pub fn write(&self, values: &[T]) -> Result<(), Error> {
        self.must_be_writable()?;
        if values.len() != self.len() {
            return Err(Error::Usage {
                what: format!("{} elements written to {}", values.len(), self.len()),
                legal: "give as many as it has".into(),
            });
        }
        let own = self.rank().own();
        own.must_not_record("a write by the host")?;
        own.enqueues(|stream| driver::write(stream, self.address(), values))
    }

    /// Sets all bytes, after every launch of this rank so far and before every later one.
    ///
    /// # Errors
    /// [`Error::Usage`] for what another library lent to be read; what the driver refuses.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        self.must_be_writable()?;
        let bytes = (self.len() * size_of::<T>()) as u64;
        let own = self.rank().own();
        own.fills(self.address(), byte, bytes, self.kept())
    }

    /// Copies all elements of a tensor of the same shape on the same rank, in the order of this rank's launches.
    ///
    /// # Errors
    /// [`Error::Usage`] for another shape or rank, for rows that both have, and for what another library lent to be read; what
    /// the driver refuses.
    pub fn copy_from(&self, from: &Tensor<T>) -> Result<(), Error> {
        self.must_be_writable()?;
        if from.shape != self.shape || !from.rank().is(self.rank()) {
            return Err(Error::Usage {
                what: format!(
                    "rank {}'s {:?} elements copied to rank {}'s {:?}",
                    from.rank().rank(),
                    from.shape,
                    self.rank().rank(),
                    self.shape
                ),
                legal: "copy between tensors of one shape on one rank".into(),
            });
        }
        let bytes = (self.len() * size_of::<T>()) as u64;
        // Copy engines move overlapping bytes in no order.
        if self.address().get().abs_diff(from.address().get()) < bytes {
            return Err(Error::Usage {
                what: "a tensor copied to rows of its own".into(),
                legal: "copy by way of another tensor".into(),
            });
        }
        let both = [self.address(), from.address()];
        let own = self.rank().own();
        own.copies(both, bytes, [self.kept(), from.kept()])
    }

    /// The elements, once every launch of this rank so far is done.
    ///
    /// # Errors
    /// [`Error::Stalled`] if one gave up: then its results are not given out.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        // With a time limit, and with the reason if a kernel gave up.
        self.rank().synchronize()?;
        let values = driver::read(self.rank().own_stream(), self.address(), self.len())?;
        // Another thread's launch may have given up in between.
        self.rank().alive().map(|()| values)
    }
}

/// The refusal of rows that memory of so many does not have.
pub(crate) fn no_such_rows(rows: &Range<usize>, held: usize) -> Error {
    Error::Usage {
        what: format!("rows {rows:?} of {held}"),
        legal: "name rows that it has, the first one first".into(),
    }
}

/// Number of elements of such a shape, of as many as that memory has.
pub(crate) fn elements_within(
    [rows, columns]: [usize; 2],
    held: usize,
    of: &str,
) -> Result<usize, Error> {
    let len = rows.checked_mul(columns).filter(|len| *len <= held);
    len.ok_or_else(|| Error::Usage {
        what: format!("{rows} x {columns} elements of {of}"),
        legal: format!("at most the {held} that it has"),
    })
}

/// Refuses memory that begins within an element of that type.
pub(crate) fn begins_at_multiple<U>(start: u64) -> Result<(), Error> {
    match start.is_multiple_of(size_of::<U>() as u64) {
        true => Ok(()),
        false => Err(Error::Usage {
            what: format!(
                "elements of {} bytes from address {start:#x} on",
                size_of::<U>()
            ),
            legal: "begin at a multiple of the element's size".into(),
        }),
    }
}

/// Number of elements of such a shape, if they can be addressed.
fn count<T>(shape: &[usize]) -> Result<usize, Error> {
    let mut sizes = shape.iter();
    let len = sizes.try_fold(1usize, |all, size| all.checked_mul(*size));
    let fits = |len: &usize| {
        len.checked_mul(size_of::<T>())
            .is_some_and(|bytes| bytes <= isize::MAX as usize)
    };
    len.filter(fits).ok_or_else(|| Error::TooLarge {
        what: format!("a tensor of {shape:?} elements has more bytes than can be addressed"),
        help: "allocate less".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_sizes_that_wraps_is_refused() {
        assert_eq!(count::<u16>(&[3, 5]).expect("few"), 15);
        assert_eq!(count::<u16>(&[0, usize::MAX]).expect("none"), 0);
        for shape in [[usize::MAX, 2], [1 << 32, 1 << 32], [usize::MAX / 4, 1]] {
            assert!(count::<u32>(&shape).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn the_last_extent_is_the_columns() {
        assert_eq!(rows_and_columns(&[7]), [1, 7]);
        assert_eq!(rows_and_columns(&[5, 7]), [5, 7]);
        assert_eq!(rows_and_columns(&[3, 5, 7]), [15, 7]);
    }
}
