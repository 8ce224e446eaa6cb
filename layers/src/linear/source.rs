//! Where a rank's rows of an input come from.

use super::Linear;
use crate::fp8::{Cast, Coded};
use crate::scratch::Lent;
use counterflow::op::Argument;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Error, Tensor, UserBuffer};

/// Place at which rows are wanted.
pub(crate) enum Place<'a> {
    /// This rank's part of a buffer that rows are gathered in.
    Buffer(&'a mut UserBuffer<bf16>),
    Tensor(&'a mut Tensor<bf16>),
}

impl<'a> From<Place<'a>> for Argument<'a> {
    fn from(place: Place<'a>) -> Argument<'a> {
        match place {
            Place::Buffer(buffer) => buffer.into(),
            Place::Tensor(tensor) => tensor.into(),
        }
    }
}

/// A rank's rows of an input, or of an output's gradient: a tensor, or what a kernel writes straight to where they are wanted.
pub(crate) trait Source {
    /// Writes them.
    fn put(&self, to: Place<'_>) -> Result<(), Error>;

    /// The tensor that has them, if there is one.
    fn tensor(&self) -> Option<&Tensor<bf16>>;

    /// Its number among the gradients that come to the buffer in which they are gathered, if it is there already.
    fn number(&self) -> Option<u64> {
        None
    }

    /// Writes them as codes with scales, where one kernel makes and quantises them; `kept` gets the codes, too. False: nothing was done.
    fn put_codes(
        &self,
        _cast: &Cast,
        _to: &mut Coded,
        _kept: Option<&mut Tensor<e4m3>>,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    /// Writes them as codes with one scale, and as codes on their side, where one kernel makes and quantises them. False: nothing was
    /// done.
    fn put_both(&self, _cast: &Cast, _to: &mut Coded, _turned: &mut Coded) -> Result<bool, Error> {
        Ok(false)
    }
}

impl Source for Tensor<bf16> {
    fn put(&self, to: Place<'_>) -> Result<(), Error> {
        match to {
            Place::Buffer(buffer) => buffer.copy_from(self),
            Place::Tensor(tensor) => tensor.copy_from(self),
        }
    }

    fn tensor(&self) -> Option<&Tensor<bf16>> {
        Some(self)
    }
}

impl Linear {
    /// Puts this rank's rows of the input into the buffer that they are gathered in.
    pub(super) fn put(&self, rows: usize, source: &dyn Source) -> Result<UserBuffer<bf16>, Error> {
        let rank = self.rank();
        let whole = self.each(rows) * rank.world() as usize;
        let all = self.userbuffers.gathered([whole, self.sides[1]])?;
        let own = rank.shard(rank.rank(), rows);
        if !own.is_empty() {
            source.put(Place::Buffer(&mut all.rows(own)?))?;
        }
        Ok(all)
    }

    /// Quantises some of this rank's rows, in the kernel that makes them if one does both. True if `kept` has the codes, too.
    pub(super) fn cast_rows(
        &self,
        (cast, is_gathered): (&Cast, bool),
        rows: usize,
        source: &dyn Source,
        (to, kept): (&mut Coded, Option<&mut Tensor<e4m3>>),
    ) -> Result<bool, Error> {
        let keeps = kept.is_some();
        if !to.is_empty() && source.put_codes(cast, to, kept)? {
            return Ok(keeps);
        }
        let (x, shared) = (self.whole(rows, source)?, self.userbuffers.fp8()?);
        cast.launch(self.rank(), shared, &x, (to, None), is_gathered)?;
        Ok(false)
    }

    /// The rows of the input as a tensor.
    pub(super) fn whole(&self, rows: usize, source: &dyn Source) -> Result<Lent<bf16>, Error> {
        whole(source, || self.lend_input(rows))
    }

    /// The rows of the output's gradient as a tensor.
    pub(super) fn whole_gradient(&self, rows: usize, dy: &dyn Source) -> Result<Lent<bf16>, Error> {
        whole(dy, || self.lend_output(rows))
    }
}

/// Rows as a tensor: the one that has them, or one that is lent.
fn whole(
    source: &dyn Source,
    lend: impl FnOnce() -> Result<Lent<bf16>, Error>,
) -> Result<Lent<bf16>, Error> {
    if let Some(tensor) = source.tensor() {
        return Ok(tensor.clone().into());
    }
    let mut made = lend()?;
    source.put(Place::Tensor(&mut made))?;
    Ok(made)
}
