//! The memory that a launch is given.

use super::argument::{Extent, Given, Home, ScaleUse};
use crate::communicator::Communicator;
use crate::driver::{Element, Foreign, Opened, Stream};
use crate::error::Error;
use crate::group::{Allocation, Passage};
use crate::launch::{Placement, Tensors};
use crate::tensor::{Tensor, rows_and_columns};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// One tensor that a launch is given: `&` for an input, `&mut` for an output. A launch keeps what it was given for as
/// long as it runs; the borrow ends when it is enqueued.
///
/// cudarc's slices and views are taken as they are: the launch comes after what used them before, in whatever stream, and
/// what uses or frees them later comes after the launch.
///
/// ```
/// use counterflow::op::{Argument, Launch};
///
/// /// Gives a launch several tensors.
/// fn all<'a>(launch: Launch<'a>, given: Vec<(&str, Argument<'a>)>) -> Launch<'a> {
///     given.into_iter().fold(launch, |launch, (name, memory)| launch.tensor(name, memory))
/// }
/// # use counterflow::{Communicator, prelude::bf16, schedules};
/// # let rank = &Communicator::emulated(1)?[0];
/// # let schedule = schedules::gemm();
/// # let op = rank.op(&schedule).first_options().up_to(64, 64, 64).build()?;
/// # let (x, w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// all(op.on(rank), vec![("x", (&x).into()), ("w", (&w).into()), ("y", (&mut y).into())]).launch()?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Debug)]
pub struct Argument<'a> {
    owner: Owner<'a>,
    dtype: Option<Dtype>,
    extent: Extent,
    bytes: u64,
    writable: bool,
    /// The scales and the amax of a `QuantTensor`.
    planes: Option<Box<Planes<'a>>>,
}

#[derive(Debug)]
struct Planes<'a> {
    scale: (ScaleUse, Argument<'a>),
    amax: Option<Argument<'a>>,
}

#[derive(Debug)]
enum Owner<'a> {
    Heap {
        allocation: &'a Arc<Allocation>,
        rank: u32,
        place: Placement,
    },
    Tensor {
        memory: Arc<dyn Any + Send + Sync>,
        rank: &'a Communicator,
        place: Placement,
    },
    Foreign(Foreign<'a>),
}

/// An argument while its launch is enqueued.
pub(super) struct Open<'b> {
    place: Placement,
    kept: Option<Arc<dyn Any + Send + Sync>>,
    heap: Option<&'b Arc<Allocation>>,
    /// While it is there, cudarc does not know that the memory is used.
    _foreign: Option<Opened<'b>>,
}

impl<'a> Argument<'a> {
    fn heap<T: Element>(buffer: &'a UserBuffer<T>, writable: bool) -> Self {
        let bytes = (buffer.len() * size_of::<T>()) as u64;
        Argument {
            owner: Owner::Heap {
                allocation: buffer.allocation(),
                rank: buffer.rank(),
                place: Placement {
                    own: buffer.address(),
                    shared: Some(buffer.on(0)),
                    bytes,
                },
            },
            dtype: T::TENSOR,
            extent: Extent::Shaped(rows_and_columns(buffer.shape())),
            bytes,
            writable,
            planes: None,
        }
    }

    fn own<T: Element>(tensor: &'a Tensor<T>, writable: bool) -> Self {
        let bytes = (tensor.len() * size_of::<T>()) as u64;
        Argument {
            owner: Owner::Tensor {
                memory: tensor.kept(),
                rank: tensor.rank(),
                place: Placement {
                    own: tensor.address(),
                    shared: None,
                    bytes,
                },
            },
            dtype: T::TENSOR,
            extent: Extent::Shaped(tensor.shape()),
            bytes,
            writable: writable && !tensor.is_read_only(),
            planes: None,
        }
    }

    fn foreign<T: Element>(memory: Foreign<'a>, writable: bool) -> Self {
        let elements = memory.elements();
        Argument {
            owner: Owner::Foreign(memory),
            dtype: T::TENSOR,
            extent: Extent::Flat(elements),
            bytes: (elements * size_of::<T>()) as u64,
            writable,
            planes: None,
        }
    }

    /// Takes the memory with its scales, and the amax if there is one.
    pub(super) fn with_planes(
        self,
        scale: (ScaleUse, Argument<'a>),
        amax: Option<Argument<'a>>,
    ) -> Self {
        Argument {
            planes: Some(Box::new(Planes { scale, amax })),
            ..self
        }
    }

    /// Takes the scales and the amax away.
    pub(super) fn take_planes(
        &mut self,
    ) -> (Option<(ScaleUse, Argument<'a>)>, Option<Argument<'a>>) {
        let planes = self.planes.take();
        planes.map_or((None, None), |planes| (Some(planes.scale), planes.amax))
    }

    /// Takes the scales of a [`QuantTensor`](super::QuantTensor) away: their meaning, and their memory.
    ///
    /// ```
    /// use counterflow::op::{Argument, Granularity, QuantTensor, ScaleUse};
    /// # let rank = &counterflow::Communicator::emulated(1)?[0];
    /// # let codes = rank.zeros::<counterflow::prelude::e4m3>([3, 16])?;
    /// let x = QuantTensor::new(codes, rank.zeros::<f32>([3, 1])?, Granularity::PerRow)?;
    /// let mut codes = Argument::from(&x);
    /// let (is, scales) = codes.take_scales().expect("its scales");
    /// assert_eq!((is, scales.shape()), (ScaleUse::Dequantises(Granularity::PerRow), Some([3, 1])));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn take_scales(&mut self) -> Option<(ScaleUse, Argument<'a>)> {
        self.take_planes().0
    }

    /// Takes the amax of a [`QuantTensor`](super::QuantTensor) away, if it has one. What takes the scales leaves no amax.
    ///
    /// ```
    /// use counterflow::op::{Argument, QuantTensor};
    /// # let rank = &counterflow::Communicator::emulated(1)?[0];
    /// # let codes = rank.zeros::<counterflow::prelude::e4m3>([3, 16])?;
    /// let mut y = QuantTensor::output(codes, rank.zeros::<f32>([1])?)?.with_amax(rank.zeros([1])?)?;
    /// let mut codes = Argument::from(&mut y);
    /// assert_eq!(codes.take_amax().expect("its amax").shape(), Some([1, 1]));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn take_amax(&mut self) -> Option<Argument<'a>> {
        self.planes.as_mut()?.amax.take()
    }

    /// True if it is codes together with their scales.
    pub(super) fn has_scales(&self) -> bool {
        self.planes.is_some()
    }

    /// Rows and columns; none of another library's slice, which has only a length.
    ///
    /// ```
    /// use counterflow::op::Argument;
    /// # let rank = &counterflow::Communicator::emulated(1)?[0];
    /// let tensor = rank.zeros::<f32>([3, 2])?;
    /// assert_eq!(Argument::from(&tensor).shape(), Some([3, 2]));
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn shape(&self) -> Option<[usize; 2]> {
        match self.extent {
            Extent::Shaped(shape) => Some(shape),
            Extent::Flat(_) => None,
        }
    }

    /// Says what rows and columns a slice or view of cudarc's has, which has only a length. A launch compares them as those of a
    /// [`Tensor`]: a transposed weight is as long as the right one, and is refused only so.
    ///
    /// ```
    /// use counterflow::op::{Argument, Launch};
    /// use counterflow::{Error, prelude::bf16};
    /// use cudarc::driver::CudaSlice;
    ///
    /// /// `y = x · wᵀ` has a row of `w` for each column of `y`.
    /// fn with_weight<'a>(launch: Launch<'a>, w: &'a CudaSlice<bf16>, [n, k]: [usize; 2]) -> Result<Launch<'a>, Error> {
    ///     Ok(launch.tensor("w", Argument::from(w).shaped([n, k])?))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] of more or fewer elements than there are, or of memory that has another shape.
    pub fn shaped(self, shape: [usize; 2]) -> Result<Self, Error> {
        Ok(Argument {
            extent: self.extent.shaped(shape)?,
            ..self
        })
    }

    /// Checks the argument of a launch of that rank, which is recorded or not, and waits for peers or not. Enqueues
    /// nothing.
    pub(super) fn given<'n>(
        &self,
        name: impl FnOnce() -> Cow<'n, str>,
        rank: &Communicator,
        (records, waits): (bool, bool),
    ) -> Result<Given, Error> {
        let home = match &self.owner {
            Owner::Heap {
                allocation,
                rank: of,
                ..
            } => match (rank.owns(allocation), *of == rank.rank()) {
                (true, true) => Home::Heap,
                (true, false) => Home::Elsewhere("another rank"),
                (false, _) => Home::Elsewhere("another communicator"),
            },
            // In the order of another stream. Nobody waits for a peer between the two.
            Owner::Tensor { rank: of, .. } => {
                let lent = !records && !waits && rank.descends_from(of);
                match of.is(rank) || lent {
                    true => Home::Own,
                    false => Home::Elsewhere("another rank"),
                }
            }
            Owner::Foreign(_) if records => {
                return Err(Error::Usage {
                    what: format!("{} is borrowed, and a graph is recorded", name()),
                    legal: "give a `Tensor` or a `UserBuffer`: a graph keeps what it uses".into(),
                });
            }
            Owner::Foreign(memory) => match rank.gpu().has(&memory.stream().clone().into()) {
                true => Home::Own,
                false => Home::Elsewhere("another GPU"),
            },
        };
        Ok(Given {
            home,
            dtype: self.dtype,
            extent: self.extent,
            writable: self.writable,
        })
    }

    /// The stream in whose order it is used and freed, if it is another library's, or another communicator's.
    pub(super) fn stream(&self, rank: &Communicator) -> Option<Stream> {
        match &self.owner {
            Owner::Foreign(memory) => Some(memory.stream().clone().into()),
            // It will have work of this rank in it.
            Owner::Tensor { rank: of, .. } if !of.is(rank) => Some(of.own().lend().clone()),
            Owner::Heap { .. } | Owner::Tensor { .. } => None,
        }
    }

    /// The rank's own ancestor that it is of, if it is of one.
    fn lender(&self, rank: &Communicator) -> Option<&'a Communicator> {
        match &self.owner {
            Owner::Tensor { rank: of, .. } if !of.is(rank) => Some(of),
            Owner::Heap { .. } | Owner::Tensor { .. } | Owner::Foreign(_) => None,
        }
    }

    /// True if it is another library's.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.owner, Owner::Foreign(_))
    }

    /// Opens what [`Argument::given`] said, once that was checked. What is not ours is used in the order of the stream
    /// `users`, which waits for its own stream already.
    pub(super) fn open<'b>(&'b mut self, users: &'b Stream) -> Result<Open<'b>, Error> {
        let (mut kept, mut heap, mut foreign) = (None, None, None);
        let place = match &mut self.owner {
            Owner::Heap {
                allocation, place, ..
            } => {
                kept = Some(allocation.clone() as Arc<dyn Any + Send + Sync>);
                heap = Some(*allocation);
                *place
            }
            Owner::Tensor { memory, place, .. } => {
                kept = Some(memory.clone());
                *place
            }
            Owner::Foreign(memory) => {
                let opened = memory.open(users.cuda()?);
                let place = Placement {
                    own: opened.address,
                    shared: None,
                    bytes: self.bytes,
                };
                foreign = Some(opened);
                place
            }
        };
        Ok(Open {
            place,
            kept,
            heap,
            _foreign: foreign,
        })
    }
}

/// Lets the ancestors that lend a launch memory come behind it, each once: their streams will. None of the streams may have
/// a launch of an ancestor's peer that waits for this rank there.
pub(super) fn lenders<'l, 'a: 'l, 's>(
    rank: &Communicator,
    given: impl Iterator<Item = &'l Argument<'a>>,
    streams: &(impl Iterator<Item = &'s Stream> + Clone),
) -> Result<Vec<Passage<'a>>, Error> {
    // Most launches are lent nothing.
    let mut known: Vec<(&'a Communicator, Passage<'a>)> = Vec::new();
    for argument in given {
        if let Some(lender) = argument.lender(rank)
            && !known.iter().any(|(known, _)| known.is(lender))
        {
            known.push((lender, lender.passes(streams.clone(), 0)?));
        }
    }
    if known.is_empty() {
        return Ok(Vec::new());
    }
    Ok(known.into_iter().map(|(_, passage)| passage).collect())
}

impl Open<'_> {
    /// Makes it that tensor of a launch.
    pub fn bind(&self, tensor: TensorId, tensors: &mut Tensors) {
        match self.heap {
            Some(range) => tensors.hold(tensor, self.place, range),
            None => tensors.put(tensor, self.place),
        }
    }

    /// Lets a rank's stream wait until memory of the heap is cleared on every rank.
    pub fn ready(&self, rank: u32) -> Result<(), Error> {
        self.heap.map_or(Ok(()), |range| range.ready(rank))
    }

    /// First byte of the memory.
    pub fn start(&self) -> u64 {
        self.place.own.get()
    }

    /// Owner that keeps the memory alive.
    pub fn kept(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.kept.clone()
    }
}

/// Memory that an input takes: `&` a tensor on the rank's GPU or in its heap.
///
/// ```
/// use counterflow::{UserBuffer, op::{Input, Output}, prelude::bf16, schedules::AgGemmOp};
///
/// /// Whatever memory its caller has: tensors of a rank, or cudarc's slices and views.
/// fn all<'a>(
///     launch: AgGemmOp<'a>,
///     x: &'a UserBuffer<bf16>,
///     w: impl Input<'a>,
///     y: impl Output<'a>,
/// ) -> AgGemmOp<'a> {
///     launch.x(x).w(w).y(y)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an input",
    note = "give `&` a `Tensor`, a `UserBuffer` or a `QuantTensor` of this rank, or a slice or view of cudarc's"
)]
pub trait Input<'a>: Into<Argument<'a>> + sealed::Sealed {}

/// Memory that an output takes: `&mut` a tensor on the rank's GPU or in its heap.
///
/// [`Input`] has an example with both. An output that is given by `&` does not compile:
///
/// ```compile_fail,E0277
/// # use counterflow::{Tensor, prelude::bf16, schedules::GemmOp};
/// fn output<'a>(launch: GemmOp<'a>, y: &'a Tensor<bf16>) -> GemmOp<'a> {
///     launch.y(y)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an output",
    note = "a launch writes it: give `&mut` a `Tensor`, a `UserBuffer` or a `QuantTensor` of this rank, or a slice or view of cudarc's"
)]
pub trait Output<'a>: Into<Argument<'a>> + sealed::Sealed {}

#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an input that peers address",
    note = "it must be in the symmetric heap: give `&` a `UserBuffer`, or a `QuantTensor` of one: `Communicator::allocate`, `QuantTensor::allocate`"
)]
/// Memory that an input takes which peers address: `&` memory of the symmetric heap.
///
/// ```
/// use counterflow::{UserBuffer, op::{HeapInput, HeapOutput}, prelude::bf16, schedules::GemmRsOp};
///
/// fn output<'a>(launch: GemmRsOp<'a>, y: impl HeapOutput<'a>) -> GemmRsOp<'a> {
///     launch.y(y)
/// }
/// # fn is_input<'a>(_: impl HeapInput<'a>) {}
/// # fn both<'a>(launch: GemmRsOp<'a>, x: &'a UserBuffer<bf16>, y: &'a mut UserBuffer<bf16>) {
/// #     is_input(x);
/// #     output(launch, y);
/// # }
/// ```
pub trait HeapInput<'a>: Input<'a> {}

#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an output that peers address",
    note = "it must be in the symmetric heap, and a launch writes it: give `&mut` a `UserBuffer`, or a `QuantTensor` of one: `Communicator::allocate`, `QuantTensor::allocate`"
)]
/// Memory that an output takes which peers address: `&mut` memory of the symmetric heap.
///
/// [`HeapInput`] has an example with both.
pub trait HeapOutput<'a>: Output<'a> {}

impl<'a, T: Element> HeapInput<'a> for &'a UserBuffer<T> {}
impl<'a, T: Element> HeapOutput<'a> for &'a mut UserBuffer<T> {}

pub(super) mod sealed {
    pub trait Sealed {}
}

macro_rules! given {
    ($way:ident, $memory:ty, |$given:ident| $argument:expr) => {
        impl<'a, T: Element> From<$memory> for Argument<'a> {
            fn from($given: $memory) -> Self {
                $argument
            }
        }

        impl<'a, T: Element> sealed::Sealed for $memory {}
        impl<'a, T: Element> $way<'a> for $memory {}
    };
}
given!(Input, &'a UserBuffer<T>, |buffer| Argument::heap(
    buffer, false
));
given!(Input, &'a Tensor<T>, |tensor| Argument::own(tensor, false));
given!(Input, &'a CudaSlice<T>, |slice| Argument::foreign::<T>(
    Foreign::slice(slice),
    false
));
given!(Input, &'a CudaView<'_, T>, |view| Argument::foreign::<T>(
    Foreign::view(view),
    false
));
given!(Output, &'a mut UserBuffer<T>, |buffer| Argument::heap(
    buffer, true
));
given!(Output, &'a mut Tensor<T>, |tensor| Argument::own(
    tensor, true
));
given!(
    Output,
    &'a mut CudaSlice<T>,
    |slice| Argument::foreign::<T>(Foreign::slice_mut(slice), true)
);
given!(
    Output,
    &'a mut CudaViewMut<'_, T>,
    |view| Argument::foreign::<T>(Foreign::view_mut(view), true)
);
