//! What a product of the classes multiplies.

use crate::step::CodedStep;
use counterflow::op::{Argument, Granularity};
use counterflow::prelude::{bf16, e4m3, e5m2};
use counterflow::rule::Fp8;
use counterflow::{Error, QuantTensor, Scales, Tensor};

/// A matrix that a product multiplies: elements, or FP8 codes with their one scale. `From` makes it of either.
///
/// ```
/// use counterflow::op::Granularity;
/// use counterflow::{Communicator, QuantTensor, prelude::{bf16, e4m3}};
/// use counterflow_layers::Factor;
///
/// let rank = &Communicator::emulated(1)?[0];
/// let elements = rank.zeros::<bf16>([16, 32])?;
/// let (codes, scale) = (rank.zeros::<e4m3>([16, 32])?, rank.zeros::<f32>([1, 1])?);
/// let coded = QuantTensor::new(codes, scale, Granularity::PerTensor)?;
/// assert_eq!([Factor::from(&elements).shape(), Factor::from(&coded).shape()], [[16, 32]; 2]);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// Elements.
    Bf16(&'a Tensor<bf16>),
    /// Codes of e4m3.
    E4M3(&'a QuantTensor<Tensor<e4m3>>),
    /// Codes of e5m2.
    E5M2(&'a QuantTensor<Tensor<e5m2>>),
}

impl<'a> From<&'a Tensor<bf16>> for Factor<'a> {
    fn from(elements: &'a Tensor<bf16>) -> Self {
        Factor::Bf16(elements)
    }
}

impl<'a> From<&'a QuantTensor<Tensor<e4m3>>> for Factor<'a> {
    fn from(coded: &'a QuantTensor<Tensor<e4m3>>) -> Self {
        Factor::E4M3(coded)
    }
}

impl<'a> From<&'a QuantTensor<Tensor<e5m2>>> for Factor<'a> {
    fn from(coded: &'a QuantTensor<Tensor<e5m2>>) -> Self {
        Factor::E5M2(coded)
    }
}

impl<'a> From<Factor<'a>> for Argument<'a> {
    fn from(factor: Factor<'a>) -> Self {
        match factor {
            Factor::Bf16(elements) => elements.into(),
            Factor::E4M3(coded) => coded.into(),
            Factor::E5M2(coded) => coded.into(),
        }
    }
}

impl Factor<'_> {
    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Factor::Bf16(elements) => elements.shape(),
            Factor::E4M3(coded) => coded.codes().shape(),
            Factor::E5M2(coded) => coded.codes().shape(),
        }
    }

    /// Type of the codes. None: it has elements.
    pub(super) fn codes(&self) -> Option<Fp8> {
        match self {
            Factor::Bf16(_) => None,
            Factor::E4M3(_) => Some(Fp8::E4M3),
            Factor::E5M2(_) => Some(Fp8::E5M2),
        }
    }

    /// Refuses scales of other elements than the whole tensor's: shards have none of their own here.
    pub(super) fn has_one_scale(&self) -> Result<(), Error> {
        let granularity = match self {
            Factor::Bf16(_) => return Ok(()),
            Factor::E4M3(coded) => coded.granularity(),
            Factor::E5M2(coded) => coded.granularity(),
        };
        match granularity {
            Granularity::PerTensor => Ok(()),
            other => Err(Error::Usage {
                what: format!("codes with scales {other:?}"),
                legal: "give one scale a tensor; `Linear` gathers scales of blocks".into(),
            }),
        }
    }
}

/// The operands of a product: both have elements, or both have codes.
pub(super) fn coded(first: Option<Fp8>, second: Option<Fp8>) -> Result<Option<CodedStep>, Error> {
    match (first, second) {
        (None, None) => Ok(None),
        (Some(first), Some(second)) => Ok(Some(CodedStep {
            codes: [first, second],
            scales: Scales::PerTensor,
            promote: false,
        })),
        (Some(_), None) | (None, Some(_)) => Err(Error::Usage {
            what: "a product of codes and elements".into(),
            legal: "give both as codes, or both in bf16: copy what is gathered into the buffer as the weight is".into(),
        }),
    }
}
