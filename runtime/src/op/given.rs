//! The memory that a launch is given.

use super::argument::{Given, Home};
use crate::communicator::Communicator;
use crate::driver::Element;
use crate::group::Allocation;
use crate::launch::{Placement, Tensors};
use crate::tensor::{Tensor, rows_and_columns};
use crate::user_buffer::UserBuffer;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::TensorId;
use std::marker::PhantomData;
use std::sync::Arc;

/// One tensor that a launch is given: `&` for an input, `&mut` for an output. A launch keeps what it was given for as
/// long as it runs; the borrow ends when it is enqueued.
#[derive(Debug)]
pub struct Argument<'a> {
    owner: Owner,
    dtype: Option<Dtype>,
    shape: [usize; 2],
    place: Placement,
    writable: bool,
    borrow: PhantomData<&'a mut ()>,
}

#[derive(Debug)]
enum Owner {
    Heap {
        allocation: Arc<Allocation>,
        rank: u32,
    },
    Tensor {
        rank: Arc<Communicator>,
    },
}

impl Argument<'_> {
    fn heap<T: Element>(buffer: &UserBuffer<T>, writable: bool) -> Self {
        Argument {
            owner: Owner::Heap {
                allocation: buffer.allocation().clone(),
                rank: buffer.rank(),
            },
            dtype: T::TENSOR,
            shape: rows_and_columns(buffer.shape()),
            place: Placement {
                own: buffer.address(),
                shared: Some(buffer.on(0)),
                bytes: (buffer.len() * size_of::<T>()) as u64,
            },
            writable,
            borrow: PhantomData,
        }
    }

    fn own<T: Element>(tensor: &Tensor<T>, writable: bool) -> Self {
        Argument {
            owner: Owner::Tensor {
                rank: tensor.rank().clone(),
            },
            dtype: T::TENSOR,
            shape: tensor.shape(),
            place: Placement {
                own: tensor.address(),
                shared: None,
                bytes: (tensor.len() * size_of::<T>()) as u64,
            },
            writable,
            borrow: PhantomData,
        }
    }

    /// What is checked of it, for a launch of that rank.
    pub(super) fn seen_from(&self, rank: &Communicator) -> Given {
        let home = match &self.owner {
            Owner::Heap { allocation, .. } if !rank.owns(allocation) => {
                Home::Elsewhere("another communicator")
            }
            Owner::Heap { rank: of, .. } if *of != rank.rank() => Home::Elsewhere("another rank"),
            Owner::Heap { .. } => Home::Heap,
            Owner::Tensor { rank: of, .. } if !of.is(rank) => Home::Elsewhere("another rank"),
            Owner::Tensor { .. } => Home::Own,
        };
        Given {
            home,
            dtype: self.dtype,
            shape: self.shape,
            start: self.place.own.get(),
            writable: self.writable,
        }
    }

    /// Makes it that tensor of a launch.
    pub(super) fn bind(&self, tensor: TensorId, tensors: &mut Tensors) {
        match &self.owner {
            Owner::Heap { allocation, .. } => tensors.hold(tensor, self.place, allocation),
            Owner::Tensor { .. } => tensors.put(tensor, self.place),
        }
    }
}

impl<'a, T: Element> From<&'a UserBuffer<T>> for Argument<'a> {
    fn from(buffer: &'a UserBuffer<T>) -> Self {
        Argument::heap(buffer, false)
    }
}

impl<'a, T: Element> From<&'a mut UserBuffer<T>> for Argument<'a> {
    fn from(buffer: &'a mut UserBuffer<T>) -> Self {
        Argument::heap(buffer, true)
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for Argument<'a> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Argument::own(tensor, false)
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for Argument<'a> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        Argument::own(tensor, true)
    }
}

/// What an input may be given: `&` a tensor on the rank's GPU or in its heap.
#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an input",
    note = "give `&` a `Tensor` or a `UserBuffer` of this rank"
)]
pub trait Input<'a>: Into<Argument<'a>> + sealed::Sealed {}

/// What an output may be given: `&mut` a tensor on the rank's GPU or in its heap.
#[diagnostic::on_unimplemented(
    message = "{Self} cannot be given for an output",
    note = "a launch writes it: give `&mut` a `Tensor` or a `UserBuffer` of this rank"
)]
pub trait Output<'a>: Into<Argument<'a>> + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

impl<T: Element> sealed::Sealed for &UserBuffer<T> {}
impl<T: Element> sealed::Sealed for &Tensor<T> {}
impl<T: Element> sealed::Sealed for &mut UserBuffer<T> {}
impl<T: Element> sealed::Sealed for &mut Tensor<T> {}
impl<'a, T: Element> Input<'a> for &'a UserBuffer<T> {}
impl<'a, T: Element> Input<'a> for &'a Tensor<T> {}
impl<'a, T: Element> Output<'a> for &'a mut UserBuffer<T> {}
impl<'a, T: Element> Output<'a> for &'a mut Tensor<T> {}
