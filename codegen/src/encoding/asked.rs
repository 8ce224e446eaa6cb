//! Encodings that a variant asks for, by tensor.

use super::{Along, ScaleBlock, Scales, Scaling};
use crate::dtype::Dtype;
use std::collections::BTreeMap;
use std::fmt;

/// Tensors of a schedule that a variant encodes alike.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::variant::{Tensors, Variant};
///
/// let variant = Variant::new(1).dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3);
/// let element = |of: Tensors| variant.asked(&of).element;
/// assert_eq!(element(Tensors::OfFirstType), Some(Dtype::E5M2));
/// assert_eq!(element(Tensors::Rhs), Some(Dtype::E4M3));
/// assert_eq!(element(Tensors::Outputs), None); // as the schedule says
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tensors {
    /// Those with the type of the first parameter. FP8 replaces that only in what products multiply, and in what is copied from or
    /// to that.
    OfFirstType,
    /// First operands of products.
    Lhs,
    /// Second operands of products.
    Rhs,
    /// Outputs (`Out`) with the type of the first parameter.
    Outputs,
    /// Scratch of whose tiles a sum is taken.
    PartialSums,
    /// Scratch of that name which products multiply: what lies between two layers.
    Hidden(String),
}

/// An encoding that is asked for. What is absent is as the schedule says.
///
/// ```
/// use counterflow_codegen::dtype::Dtype;
/// use counterflow_codegen::variant::{Asked, Tensors, Variant};
///
/// let variant = Variant::new(1).output(Dtype::E4M3).amax(true);
/// let asked = Asked { element: Some(Dtype::E4M3), scale: None, amax: true };
/// assert_eq!(variant.asked(&Tensors::Outputs), asked);
/// assert_eq!(Variant::new(1).encode(Tensors::Outputs, asked), variant);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Asked {
    /// The element type.
    pub element: Option<Dtype>,
    /// The scale, and who computes it. FP8 outputs without one have one number that is given.
    pub scale: Option<Scaling>,
    /// The largest absolute value is measured, before the scale.
    pub amax: bool,
}

/// What a variant asks for, by tensors. What asks for nothing is not in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Encodings(BTreeMap<Tensors, Asked>);

impl Encodings {
    /// What is asked for these tensors.
    pub(crate) fn of(&self, tensors: &Tensors) -> Asked {
        self.0.get(tensors).copied().unwrap_or_default()
    }

    /// Replaces what is asked for these tensors.
    pub(crate) fn put(&mut self, tensors: Tensors, asked: Asked) {
        match asked == Asked::default() {
            true => self.0.remove(&tensors),
            false => self.0.insert(tensors, asked),
        };
    }

    /// Changes what is asked for these tensors.
    pub(crate) fn change(&mut self, tensors: Tensors, change: impl FnOnce(&mut Asked)) {
        let mut asked = self.of(&tensors);
        change(&mut asked);
        self.put(tensors, asked);
    }

    /// Hidden layers with an encoding of their own.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = (&str, Asked)> {
        self.0.iter().filter_map(|(tensors, asked)| match tensors {
            Tensors::Hidden(name) => Some((&name[..], *asked)),
            Tensors::OfFirstType
            | Tensors::Lhs
            | Tensors::Rhs
            | Tensors::Outputs
            | Tensors::PartialSums => None,
        })
    }

    /// What the scales of each operand of a product are of.
    pub(crate) fn operands(&self) -> [Option<Along>; 2] {
        [Tensors::Lhs, Tensors::Rhs].map(|operands| match self.of(&operands).scale? {
            Scaling::Given(along) => Some(along),
            Scaling::Computed(_) => None,
        })
    }

    /// The blocks of either operand that share a scale, of those that have such scales.
    pub(crate) fn operand_blocks(&self) -> impl Iterator<Item = ScaleBlock> {
        let operands = self.operands().into_iter().flatten();
        operands.filter_map(|along| match along {
            Along::Blocks(block) => Some(block),
            Along::All | Along::Rows | Along::Columns => None,
        })
    }

    /// The kind of scales that operands have.
    pub(crate) fn scales(&self) -> Option<Scales> {
        let asked = self.operands();
        let mut all = Scales::ALL.into_iter();
        all.find(|scales| [0, 1].map(|operand| Some(scales.along(operand))) == asked)
    }
}

/// In the order in which they were always written.
impl fmt::Display for Encodings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(element) = self.of(&Tensors::OfFirstType).element {
            write!(f, " {element}")?;
        }
        if let Some(element) = self.of(&Tensors::Rhs).element {
            write!(f, "×{element}")?;
        }
        if let Some(scales) = self.scales() {
            write!(f, " scales={}", scales.name())?;
        } else {
            for along in self.operands().into_iter().flatten() {
                write!(f, " scales={along}")?;
            }
        }
        let outputs = self.of(&Tensors::Outputs);
        if let Some(element) = outputs.element {
            write!(f, " output={element}")?;
        }
        if let Some(Scaling::Computed(rule)) = outputs.scale {
            write!(f, " output-scales={rule}")?;
        }
        if let Some(Scaling::Computed(rule)) = self.of(&Tensors::PartialSums).scale {
            write!(f, " partial-sums={} by {rule}", rule.to.dtype())?;
        }
        for (name, asked) in self.hidden() {
            let element = asked.element.map_or("", |element| element.name());
            write!(f, " {name}:{element}")?;
        }
        f.write_str(if outputs.amax { " amax" } else { "" })
    }
}
