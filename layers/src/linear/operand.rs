//! What a layer's products multiply: elements, or codes with their scales.

use super::Linear;
use super::Saved;
use super::casts::{Fp8, Kept, Turned};
use super::source::Source;
use crate::fp8::Coded;
use crate::overlap::Parallel;
use crate::scratch::Lent;
use counterflow::op::Argument;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Error, Tensor, UserBuffer};
use std::sync::Arc;

/// An operand, with the memory that it is lent.
#[derive(Debug)]
pub(super) enum Operand {
    /// Rows of this rank's own memory.
    Own(Lent<bf16>),
    /// Rows of all ranks, in the heap.
    All(UserBuffer<bf16>),
    /// Codes with their scales, in memory that they are lent.
    Coded { coded: Coded, lent: Lending },
}

/// Memory that is lent until launches are enqueued.
#[derive(Debug, Default)]
pub(super) struct Lending {
    _codes: Vec<Lent<e4m3>>,
    scales: Vec<Arc<Lent<f32>>>,
}

impl Lending {
    pub fn of(
        codes: impl IntoIterator<Item = Lent<e4m3>>,
        scales: impl IntoIterator<Item = Arc<Lent<f32>>>,
    ) -> Lending {
        Lending {
            _codes: codes.into_iter().collect(),
            scales: scales.into_iter().collect(),
        }
    }
}

impl Operand {
    pub fn coded(coded: Coded, lent: Lending) -> Operand {
        Operand::Coded { coded, lent }
    }
}

impl<'a> From<&'a Operand> for Argument<'a> {
    fn from(operand: &'a Operand) -> Argument<'a> {
        match operand {
            Operand::Own(own) => (&**own).into(),
            Operand::All(all) => all.into(),
            Operand::Coded { coded, .. } => coded.into(),
        }
    }
}

/// The gradient of a layer's output, as both products of the backward pass take it.
pub(super) struct Gradient {
    pub rows: Operand,
    /// With tokens as the depth, where that is another one.
    pub tokens: Option<Operand>,
    /// The same with scales of blocks, where one kernel gave both.
    pub pieces: Option<Turned>,
}

impl Gradient {
    pub fn along_tokens(&self) -> &Operand {
        self.tokens.as_ref().unwrap_or(&self.rows)
    }
}

impl Linear {
    pub(super) fn is_alone(&self) -> bool {
        self.rank().world() == 1
    }

    /// True if scales are of blocks: they travel with the rows of the product that they are for, in its kernel alone.
    pub(super) fn is_in_blocks(&self) -> bool {
        self.fp8.as_ref().is_some_and(Fp8::is_in_blocks)
    }

    /// The input of the output's product. Of a column-parallel layer it is that of all ranks, which the product gathers if it can.
    pub(super) fn input(
        &self,
        rows: usize,
        source: &dyn Source,
        saved: &mut Saved,
    ) -> Result<Operand, Error> {
        let gathers = self.config.parallel == Parallel::Column && !self.is_alone();
        let operand = match (&self.fp8, gathers) {
            (Some(fp8), true) => self.gathered_codes(fp8, rows, source, saved)?,
            (Some(fp8), false) => self.own_codes(fp8, rows, source, saved)?,
            (None, true) => Operand::All(self.put(rows, source)?),
            (None, false) => Operand::Own(self.whole(rows, source)?),
        };
        if gathers && !self.overlap.fprop_ag && !self.is_in_blocks() {
            self.gather(&self.moving(&operand)?, rows)?;
        }
        Ok(operand)
    }

    /// Rows that move, as bf16: of codes two each.
    pub(super) fn moving(&self, operand: &Operand) -> Result<UserBuffer<bf16>, Error> {
        fn halves<T: counterflow::op::Element>(
            codes: &UserBuffer<T>,
        ) -> Result<UserBuffer<bf16>, Error> {
            codes.reinterpret([codes.shape()[0], codes.shape()[1] / 2])
        }
        match operand {
            Operand::All(all) => Ok(all.clone()),
            Operand::Coded {
                coded: Coded::AllE4M3(all),
                ..
            } => halves(all.codes()),
            Operand::Coded {
                coded: Coded::AllE5M2(all),
                ..
            } => halves(all.codes()),
            Operand::Coded {
                coded: Coded::AllInBlocks(all),
                ..
            } => halves(all.codes()),
            Operand::Own(_)
            | Operand::Coded {
                coded: Coded::E4M3(_) | Coded::E5M2(_),
                ..
            } => Err(Error::Usage {
                what: "a gather of a rank's own memory".into(),
                legal: "report it".into(),
            }),
        }
    }

    /// What the backward pass needs of an input that was gathered.
    pub(super) fn keep(
        &self,
        rows: usize,
        input: &Operand,
        saved: &mut Saved,
    ) -> Result<(), Error> {
        if !self.config.keep_gathered || self.config.frozen {
            return Ok(());
        }
        match input {
            Operand::All(all) => {
                let kept = self.lend([rows, self.sides[1]], false)?;
                all.copy_to(&kept)?;
                saved.gathered = Some(kept);
                Ok(())
            }
            Operand::Coded {
                coded: Coded::AllE4M3(_),
                lent,
            } => self.keep_turned(rows, &lent.scales, saved),
            Operand::Own(_) | Operand::Coded { .. } => Ok(()),
        }
    }

    /// The input of all ranks once more, before it is gathered; nothing if nobody needs it.
    pub(super) fn again(
        &self,
        saved: &Saved,
        source: &dyn Source,
    ) -> Result<Option<Operand>, Error> {
        if self.config.frozen || saved.gathered.is_some() {
            return Ok(None);
        }
        match (&self.fp8, &saved.kept) {
            (Some(_), Some(Kept::Shard { codes, scale })) => {
                self.shard_again(saved.rows, codes, scale).map(Some)
            }
            (Some(_), _) => Ok(None),
            (None, _) => {
                let all = self.put(saved.rows, source)?;
                Ok(Some(Operand::All(all)))
            }
        }
    }

    /// The input as the product of the weight's gradient takes it: as it was gathered again, was kept, or is this rank's own.
    pub(super) fn input_along_tokens(
        &self,
        saved: &Saved,
        source: &dyn Source,
        again: Option<Operand>,
    ) -> Result<Operand, Error> {
        match (&self.fp8, again, &saved.gathered) {
            (Some(_), again, _) => self.turned_input(saved, again),
            (None, Some(again), _) => Ok(again),
            (None, None, Some(kept)) => Ok(Operand::Own((**kept).clone().into())),
            (None, None, None) => Ok(Operand::Own(self.whole(saved.rows, source)?)),
        }
    }

    /// The gradient of the output. Of a row-parallel layer it is that of all ranks, which the product gathers if it can.
    pub(super) fn gradient(&self, rows: usize, dy: &dyn Source) -> Result<Gradient, Error> {
        let gathers = self.config.parallel == Parallel::Row && !self.is_alone();
        let gradient = match (&self.fp8, gathers) {
            (Some(fp8), gathers) => self.codes_of_gradient(fp8, rows, dy, gathers)?,
            (None, true) => Gradient {
                rows: Operand::All(self.put_gradient(rows, dy)?),
                tokens: None,
                pieces: None,
            },
            (None, false) => Gradient {
                rows: Operand::Own(self.whole_gradient(rows, dy)?),
                tokens: None,
                pieces: None,
            },
        };
        if gathers && !self.overlap.dgrad_ag && !self.is_in_blocks() {
            self.gather(&self.moving(&gradient.rows)?, rows)?;
        }
        Ok(gradient)
    }

    /// The weight, as the product of the output takes it.
    pub(super) fn weight_operand(&self, weight: &Tensor<bf16>) -> Result<Operand, Error> {
        match &self.fp8 {
            Some(fp8) => Ok(Operand::coded(
                fp8.weight(&self.userbuffers, weight)?,
                Lending::default(),
            )),
            None => Ok(Operand::Own(weight.clone().into())),
        }
    }

    /// And as the product of the input's gradient.
    pub(super) fn weight_on_its_side(&self, weight: &Tensor<bf16>) -> Result<Operand, Error> {
        match &self.fp8 {
            Some(fp8) => Ok(Operand::coded(fp8.weight_on_its_side(), Lending::default())),
            None => Ok(Operand::Own(weight.clone().into())),
        }
    }
}
