//! The codes of a layer's tensors.

use super::casts::{Fp8, Kept};
use super::operand::{Gradient, Lending, Operand};
use super::source::Source;
use super::{Linear, Saved};
use crate::fp8::{Cast, Coded};
use crate::scratch::Lent;
use crate::step::CODES;
use counterflow::op::Granularity;
use counterflow::prelude::{bf16, e4m3};
use counterflow::rule::Fp8 as Fp8Type;
use counterflow::{Error, Tensor, UserBuffer};
use std::sync::Arc;

const ONE: Granularity = Granularity::PerTensor;

impl Linear {
    fn lend_codes(&self, shape: [usize; 2], most: usize) -> Result<Lent<e4m3>, Error> {
        self.userbuffers.lend_codes(shape, most)
    }

    fn lend_scale(&self) -> Result<Arc<Lent<f32>>, Error> {
        self.userbuffers.lend_f32([1, 1], 1).map(Arc::new)
    }

    /// Memory for codes of so many columns with tokens along their rows.
    fn lend_turned(&self, rows: usize, columns: usize) -> Result<Lent<e4m3>, Error> {
        let [most, _] = self.userbuffers.shape();
        let [rows, most] = [rows, most].map(|rows| rows.next_multiple_of(CODES));
        self.lend_codes([columns, rows], most * columns)
    }

    /// The buffer that rows are gathered in, as codes.
    fn gathered_buffer(&self, rows: usize, columns: usize) -> Result<UserBuffer<e4m3>, Error> {
        let whole = self.each(rows) * self.rank().world() as usize;
        let all = self.userbuffers.gathered([whole, columns])?;
        all.reinterpret([whole, columns])
    }

    /// Quantises this rank's rows where all are gathered.
    pub(super) fn gathered_codes(
        &self,
        fp8: &Fp8,
        rows: usize,
        source: &dyn Source,
        saved: &mut Saved,
    ) -> Result<Operand, Error> {
        if fp8.is_in_blocks() {
            return self.shard_in_blocks(fp8.input(), rows, self.sides[1], source);
        }
        let all = self.gathered_buffer(rows, self.sides[1])?;
        let keeps = !self.config.frozen && !self.config.keep_gathered;
        let kept = keeps.then(|| {
            let [most, _] = self.userbuffers.shape();
            let most = self.each(most) * self.sides[1];
            let own = self.rank().shard(self.rank().rank(), rows);
            self.lend_codes([own.len(), self.sides[1]], most)
        });
        let mut kept = kept.transpose()?;
        let to = (&all, kept.as_deref_mut());
        let (coded, scale) = self.shard_of(fp8.input(), rows, source, to)?;
        saved.kept = kept.map(|codes| Kept::Shard {
            codes,
            scale: scale.clone(),
        });
        Ok(Operand::coded(coded, Lending::of([], [scale])))
    }

    /// Quantises this rank's shard into the buffer of all, whose one scale all ranks have, and into `kept`.
    fn shard_of(
        &self,
        cast: &Cast,
        rows: usize,
        source: &dyn Source,
        (all, kept): (&UserBuffer<e4m3>, Option<&mut Tensor<e4m3>>),
    ) -> Result<(Coded, Arc<Lent<f32>>), Error> {
        let rank = self.rank();
        let scale = self.lend_scale()?;
        let shard = all.rows(rank.shard(rank.rank(), rows))?;
        let mut own = Coded::all(cast.to(), &shard, &scale)?;
        let copy = kept.as_ref().map(|kept| (**kept).clone());
        let is_kept = self.cast_rows((cast, true), rows, source, (&mut own, kept))?;
        if let Some(copy) = copy.filter(|copy| !is_kept && !copy.is_empty()) {
            shard.copy_to(&copy)?;
        }
        Ok((Coded::all(cast.to(), all, &scale)?, scale))
    }

    /// Quantises rows that this rank has for itself, and keeps the transposed copy for the weight's gradient.
    pub(super) fn own_codes(
        &self,
        fp8: &Fp8,
        rows: usize,
        source: &dyn Source,
        saved: &mut Saved,
    ) -> Result<Operand, Error> {
        if fp8.is_in_blocks() {
            let shape = self.input_shape(rows);
            let x = source.tensor().filter(|_| self.turns_at_once(rows));
            let Some(x) = x else {
                return self.rows_in_blocks(fp8.input(), rows, shape, source);
            };
            let (operand, turned) = self.both_in_blocks(fp8.input(), rows, x)?;
            saved.kept = Some(Kept::Pieces(turned));
            return Ok(operand);
        }
        let shape = self.input_shape(rows);
        let whole = || self.whole(rows, source);
        let both = self.both(fp8.input(), (source, shape), whole)?;
        if let Some(codes) = both.turned {
            saved.kept = Some(Kept::Turned {
                codes,
                scale: both.scale.clone(),
            });
        }
        Ok(Operand::coded(
            both.coded,
            Lending::of([both.codes], [both.scale]),
        ))
    }

    /// Codes of rows that this rank has all of, and of the transposed copy unless the weight is frozen. `whole` makes them a tensor.
    fn both(
        &self,
        cast: &Cast,
        (source, [rows, columns]): (&dyn Source, [usize; 2]),
        whole: impl FnOnce() -> Result<Lent<bf16>, Error>,
    ) -> Result<Both, Error> {
        let (rank, shared) = (self.rank(), self.userbuffers.fp8()?);
        let [most, _] = self.userbuffers.shape();
        let codes = self.lend_codes([rows, columns], most * columns)?;
        let scale = self.lend_scale()?;
        let mut coded = Coded::own(cast.to(), &codes, &scale, ONE)?;
        let turned = (!self.config.frozen).then(|| self.lend_turned(rows, columns));
        let turned = turned.transpose()?;
        let mut copy = turned
            .as_ref()
            .map(|turned| Coded::own(cast.to(), turned, &scale, ONE))
            .transpose()?;
        let made = match &mut copy {
            Some(copy) => source.put_both(cast, &mut coded, copy)?,
            None => false,
        };
        if !made {
            let x = whole()?;
            cast.launch(rank, shared, &x, (&mut coded, copy.as_mut()), false)?;
        }
        Ok(Both {
            coded,
            codes,
            turned,
            scale,
        })
    }

    /// Codes of rows that were gathered, with tokens along their rows.
    fn turned_of(&self, rows: usize, columns: usize) -> Result<Lent<e4m3>, Error> {
        let mut turned = self.lend_turned(rows, columns)?;
        let all = self.gathered_buffer(rows, columns)?;
        let kernels = &self.userbuffers.fp8()?.kernels;
        kernels.transpose([rows, columns], &all, &mut turned)?;
        Ok(turned)
    }

    /// Keeps the gathered input, as the weight's gradient takes it.
    pub(super) fn keep_turned(
        &self,
        rows: usize,
        scales: &[Arc<Lent<f32>>],
        saved: &mut Saved,
    ) -> Result<(), Error> {
        let [scale] = scales else {
            return Ok(());
        };
        saved.kept = Some(Kept::Turned {
            codes: self.turned_of(rows, self.sides[1])?,
            scale: scale.clone(),
        });
        Ok(())
    }

    /// This rank's codes in the buffer that they are gathered in, once more.
    pub(super) fn shard_again(
        &self,
        rows: usize,
        codes: &Tensor<e4m3>,
        scale: &Tensor<f32>,
    ) -> Result<Operand, Error> {
        let all = self.gathered_buffer(rows, self.sides[1])?;
        if !codes.is_empty() {
            let own = self.rank().shard(self.rank().rank(), rows);
            all.rows(own)?.copy_from(codes)?;
        }
        let coded = Coded::AllE4M3(counterflow::QuantTensor::new(all, scale.clone(), ONE)?);
        Ok(Operand::coded(coded, Lending::default()))
    }

    /// The input of the weight's gradient.
    pub(super) fn turned_input(
        &self,
        saved: &Saved,
        again: Option<Operand>,
    ) -> Result<Operand, Error> {
        let to = Fp8Type::E4M3;
        match (&saved.kept, again) {
            (Some(Kept::Turned { codes, scale }), _) => {
                let coded = Coded::own(to, codes, scale, ONE)?;
                Ok(Operand::coded(coded, Lending::default()))
            }
            (Some(Kept::Shard { scale, .. }), Some(_)) => {
                let codes = self.turned_of(saved.rows, self.sides[1])?;
                let coded = Coded::own(to, &codes, scale, ONE)?;
                Ok(Operand::coded(coded, Lending::of([codes], [])))
            }
            (Some(Kept::Shard { .. } | Kept::Pieces(_)) | None, _) => Err(Error::Usage {
                what: "a backward pass without the codes of its forward pass".into(),
                legal: "give what this layer's forward pass gave back".into(),
            }),
        }
    }

    /// The codes of the output's gradient, and of its transposed copy.
    pub(super) fn codes_of_gradient(
        &self,
        fp8: &Fp8,
        rows: usize,
        dy: &dyn Source,
        gathers: bool,
    ) -> Result<Gradient, Error> {
        let cast = fp8.gradient();
        if fp8.is_in_blocks() {
            let dy = self.whole_gradient(rows, dy)?;
            return self.gradient_in_blocks(cast, rows, &dy, gathers);
        }
        if gathers {
            let all = self.gathered_buffer(rows, self.sides[0])?;
            let dy = self.whole_gradient(rows, dy)?;
            let (coded, scale) = self.shard_of(cast, rows, &*dy, (&all, None))?;
            return Ok(Gradient {
                rows: Operand::coded(coded, Lending::of([], [scale])),
                tokens: None,
                pieces: None,
            });
        }
        let whole = || self.whole_gradient(rows, dy);
        let both = self.both(cast, (dy, self.output_shape(rows)), whole)?;
        let on_side = |turned: Lent<e4m3>| {
            let coded = Coded::own(cast.to(), &turned, &both.scale, ONE)?;
            Ok::<_, Error>(Operand::coded(coded, Lending::of([turned], [])))
        };
        Ok(Gradient {
            tokens: both.turned.map(on_side).transpose()?,
            pieces: None,
            rows: Operand::coded(both.coded, Lending::of([both.codes], [both.scale])),
        })
    }

    /// The gathered gradient of the output, with tokens along its rows.
    pub(super) fn turned_gradient(
        &self,
        rows: usize,
        gradient: &mut Gradient,
    ) -> Result<(), Error> {
        let (to, scale) = match &gradient.rows {
            Operand::Coded {
                coded: Coded::AllE4M3(all),
                ..
            } => (Fp8Type::E4M3, all.scales()),
            Operand::Coded {
                coded: Coded::AllE5M2(all),
                ..
            } => (Fp8Type::E5M2, all.scales()),
            Operand::Own(_) | Operand::All(_) | Operand::Coded { .. } => return Ok(()),
        };
        let codes = self.turned_of(rows, self.sides[0])?;
        let coded = Coded::own(to, &codes, scale, ONE)?;
        gradient.tokens = Some(Operand::coded(coded, Lending::of([codes], [])));
        Ok(())
    }
}

/// Codes of a tensor and of its transposed copy.
struct Both {
    coded: Coded,
    codes: Lent<e4m3>,
    turned: Option<Lent<e4m3>>,
    scale: Arc<Lent<f32>>,
}
