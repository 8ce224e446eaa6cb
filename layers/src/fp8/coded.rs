//! Codes with their scales, of either type and in either memory.

use counterflow::op::Argument;
use counterflow::prelude::{e4m3, e5m2};
use counterflow::quantise::{Granularity, Quantise};
use counterflow::rule::Fp8;
use counterflow::{Error, QuantTensor, Tensor, UserBuffer};

/// A quantised tensor: handles of memory that somebody else keeps.
#[derive(Clone, Debug)]
pub(crate) enum Coded {
    E4M3(QuantTensor<Tensor<e4m3>>),
    E5M2(QuantTensor<Tensor<e5m2>>),
    /// Of all ranks, in the heap, with one scale.
    AllE4M3(QuantTensor<UserBuffer<e4m3>>),
    AllE5M2(QuantTensor<UserBuffer<e5m2>>),
    /// With scales of blocks, which travel with the rows.
    AllInBlocks(QuantTensor<UserBuffer<e4m3>, UserBuffer<f32>>),
}

/// Codes of either type in a rank's own memory.
pub(crate) enum OwnCodes {
    E4M3(Tensor<e4m3>),
    E5M2(Tensor<e5m2>),
}

impl OwnCodes {
    /// Codes of either type are lent as e4m3.
    pub fn of(to: Fp8, codes: &Tensor<e4m3>) -> Result<OwnCodes, Error> {
        Ok(match to {
            Fp8::E4M3 => OwnCodes::E4M3(codes.clone()),
            Fp8::E5M2 => OwnCodes::E5M2(codes.reinterpret(codes.shape())?),
        })
    }
}

impl<'a> From<&'a mut OwnCodes> for Argument<'a> {
    fn from(codes: &'a mut OwnCodes) -> Argument<'a> {
        match codes {
            OwnCodes::E4M3(own) => own.into(),
            OwnCodes::E5M2(own) => own.into(),
        }
    }
}

impl<'a> From<&'a Coded> for Argument<'a> {
    fn from(coded: &'a Coded) -> Argument<'a> {
        match coded {
            Coded::E4M3(own) => own.into(),
            Coded::E5M2(own) => own.into(),
            Coded::AllE4M3(all) => all.into(),
            Coded::AllE5M2(all) => all.into(),
            Coded::AllInBlocks(all) => all.into(),
        }
    }
}

impl Coded {
    /// True without codes.
    pub fn is_empty(&self) -> bool {
        match self {
            Coded::E4M3(own) => own.codes().is_empty(),
            Coded::E5M2(own) => own.codes().is_empty(),
            Coded::AllE4M3(all) => all.codes().is_empty(),
            Coded::AllE5M2(all) => all.codes().is_empty(),
            Coded::AllInBlocks(all) => all.codes().is_empty(),
        }
    }

    /// Of a rank's own memory. Codes of either type are lent as e4m3.
    pub fn own(
        to: Fp8,
        codes: &Tensor<e4m3>,
        scales: &Tensor<f32>,
        granularity: Granularity,
    ) -> Result<Coded, Error> {
        let scales = scales.clone();
        Ok(match to {
            Fp8::E4M3 => Coded::E4M3(QuantTensor::new(codes.clone(), scales, granularity)?),
            Fp8::E5M2 => {
                let codes = codes.reinterpret(codes.shape())?;
                Coded::E5M2(QuantTensor::new(codes, scales, granularity)?)
            }
        })
    }

    /// Of rows in the heap, which have one scale.
    pub fn all(to: Fp8, codes: &UserBuffer<e4m3>, scale: &Tensor<f32>) -> Result<Coded, Error> {
        let (scale, one) = (scale.clone(), Granularity::PerTensor);
        Ok(match to {
            Fp8::E4M3 => Coded::AllE4M3(QuantTensor::new(codes.clone(), scale, one)?),
            Fp8::E5M2 => {
                let [rows, columns] = [codes.shape()[0], codes.shape()[1]];
                let codes = codes.reinterpret([rows, columns])?;
                Coded::AllE5M2(QuantTensor::new(codes, scale, one)?)
            }
        })
    }

    /// Codes and scale as two memories that a kernel writes. None: they are in the heap, or have several scales.
    pub fn apart(&self) -> Option<(OwnCodes, Tensor<f32>)> {
        match self {
            Coded::E4M3(own) => Some((OwnCodes::E4M3(own.codes().clone()), own.scales().clone())),
            Coded::E5M2(own) => Some((OwnCodes::E5M2(own.codes().clone()), own.scales().clone())),
            Coded::AllE4M3(_) | Coded::AllE5M2(_) | Coded::AllInBlocks(_) => None,
        }
    }

    /// A quantiser's launch that writes it.
    pub fn written<'a>(&'a mut self, launch: Quantise<'a>) -> Quantise<'a> {
        match self {
            Coded::E4M3(own) => launch.to(own),
            Coded::E5M2(own) => launch.to(own),
            Coded::AllE4M3(all) => launch.to(all),
            Coded::AllE5M2(all) => launch.to(all),
            Coded::AllInBlocks(all) => launch.to(all),
        }
    }

    /// A quantiser's launch that writes it as the transposed copy. One scale is that of the rows.
    pub fn turned<'a>(&'a mut self, launch: Quantise<'a>, in_blocks: bool) -> Quantise<'a> {
        match (self, in_blocks) {
            (Coded::E4M3(own), true) => launch.transposed_to(own),
            (Coded::E4M3(own), false) => launch.transposed(own.codes_mut()),
            (Coded::E5M2(own), true) => launch.transposed_to(own),
            (Coded::E5M2(own), false) => launch.transposed(own.codes_mut()),
            (Coded::AllE4M3(all), _) => launch.transposed(all.codes_mut()),
            (Coded::AllE5M2(all), _) => launch.transposed(all.codes_mut()),
            (Coded::AllInBlocks(all), _) => launch.transposed_to(all),
        }
    }
}
