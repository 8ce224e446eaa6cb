//! Memory of a step.

use crate::driver::Element;
use counterflow_codegen::dtype::Dtype;

/// Memory that a step reads or writes.
///
/// ```
/// use counterflow::{op::Part, prelude::e4m3};
///
/// let _scale = Part::of::<f32>(1).read("scale");
/// let _codes = Part::of::<e4m3>(64 * 64).written("codes");
/// let _scales = Part::of::<f32>(63).by_elements().written("scales"); // may be some rows of others
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub(super) name: &'static str,
    /// None: elements that no schedule's tensor has.
    pub(super) dtype: Option<Dtype>,
    /// Bytes of one.
    pub(super) each: usize,
    pub(super) elements: usize,
    pub(super) written: bool,
    pub(super) by_elements: bool,
}

impl Part {
    /// So many elements of that type at least.
    pub const fn of<T: Element>(elements: usize) -> Part {
        Part {
            name: "memory",
            dtype: T::TENSOR,
            each: size_of::<T>(),
            elements,
            written: false,
            by_elements: false,
        }
    }

    /// Marks the part as accessed one element at a time: it starts at any element, and not at a multiple of 16 bytes.
    #[must_use]
    pub const fn by_elements(self) -> Part {
        Part {
            by_elements: true,
            ..self
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.elements * self.each) as u64
    }

    /// An input of that name.
    #[must_use]
    pub const fn read(self, name: &'static str) -> Part {
        Part { name, ..self }
    }

    /// An output of that name.
    #[must_use]
    pub const fn written(self, name: &'static str) -> Part {
        Part {
            name,
            written: true,
            ..self
        }
    }
}
