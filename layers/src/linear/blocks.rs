//! Codes with scales of blocks, which are those of rows in one direction alone: what a weight's gradient multiplies is quantised along
//! tokens from the source, anew from each rank's first row on.

use super::casts::{Fp8, Kept, Turned};
use super::operand::{Gradient, Lending, Operand};
use super::source::Source;
use super::{Linear, Saved};
use crate::fp8::{Cast, Coded};
use crate::overlap::Parallel;
use crate::scratch::Lent;
use crate::step::{CODES, blocks};
use counterflow::op::Granularity;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Error, QuantTensor, Tensor, UserBuffer};
use std::sync::Arc;

const LINE: Granularity = Granularity::BLOCK_1X128;

/// The input, or the gradient of the output, as pieces with tokens along their rows: one of each rank's rows.
enum Pieces<'a> {
    /// This rank has the source.
    Own(&'a Cast, Lent<bf16>),
    /// This rank has quantised all of them.
    Turned(&'a Cast, &'a Turned),
    /// Each rank has quantised its own.
    Gathered(UserBuffer<e4m3>, UserBuffer<f32>),
}

impl Linear {
    /// Refuses rows of which ranks have other shards than blocks of scales allow.
    pub(super) fn fits_blocks(&self, rows: usize) -> Result<(), Error> {
        let in_blocks = self.fp8.as_ref().is_some_and(Fp8::is_in_blocks);
        if !in_blocks || self.is_alone() {
            return Ok(());
        }
        let (rank, line) = (self.rank(), self.line(rows));
        let fits = |of: u32| {
            let first = of as usize * line;
            rank.shard(of, rows) == (first.min(rows)..(first + line).min(rows))
        };
        match (0..rank.world()).all(fits) {
            true => Ok(()),
            false => Err(Error::Usage {
                what: format!(
                    "{rows} rows over {} ranks, with scales of blocks",
                    rank.world()
                ),
                legal: "give rows of which each rank has a multiple of 4, but for the last".into(),
            }),
        }
    }

    /// Scales in a line of a shard.
    pub(super) fn line(&self, rows: usize) -> usize {
        self.each(rows).next_multiple_of(4)
    }

    fn lend_scales(&self, lines: usize, line: usize, most: usize) -> Result<Lent<f32>, Error> {
        self.userbuffers.lend_f32([lines, line], most)
    }

    /// Codes of rows of this rank's own memory.
    pub(super) fn rows_in_blocks(
        &self,
        cast: &Cast,
        rows: usize,
        shape: [usize; 2],
        source: &dyn Source,
    ) -> Result<Operand, Error> {
        let [codes, scales] = [shape, LINE.scales(shape)];
        let [most, columns] = [self.userbuffers.shape()[0], codes[1]];
        let most_scales = blocks(columns) * most.next_multiple_of(4);
        let codes = self.userbuffers.lend_codes(codes, most * columns)?;
        let scales = self.lend_scales(scales[0], scales[1], most_scales)?;
        let mut coded = Coded::own(cast.to(), &codes, &scales, LINE)?;
        self.cast_rows((cast, false), rows, source, (&mut coded, None))?;
        Ok(Operand::coded(
            coded,
            Lending::of([codes], [Arc::new(scales)]),
        ))
    }

    /// True if blocks of tokens end where ranks' rows do, so that one kernel gives codes along both sides.
    pub(super) fn turns_at_once(&self, rows: usize) -> bool {
        let rank = self.rank();
        let whole = |of| rank.shard(of, rows).len() == self.each(rows);
        let alike = self.each(rows).is_multiple_of(128) && (0..rank.world()).all(whole);
        !self.config.frozen && (self.is_alone() || alike)
    }

    /// Codes of rows of this rank's own memory, and along tokens.
    pub(super) fn both_in_blocks(
        &self,
        cast: &Cast,
        rows: usize,
        x: &Tensor<bf16>,
    ) -> Result<(Operand, Turned), Error> {
        let (most, columns) = (self.userbuffers.shape()[0], x.shape()[1]);
        let [lines, line] = LINE.scales([rows, columns]);
        let most_scales = blocks(columns) * most.next_multiple_of(4);
        let codes = self
            .userbuffers
            .lend_codes([rows, columns], most * columns)?;
        let scales = Arc::new(self.lend_scales(lines, line, most_scales)?);
        let mut coded = Coded::own(cast.to(), &codes, &scales, LINE)?;
        let (world, piece) = (self.rank().world() as usize, self.each(rows));
        let shape = [world * columns, piece.next_multiple_of(CODES)];
        let [held, most_lines] = [most.next_multiple_of(CODES), blocks(most)];
        let turned = self.userbuffers.lend_codes(shape, columns * held)?;
        let mut of_turned = self.lend_scales(blocks(rows), columns, most_lines * columns)?;
        let to = (&*turned, &mut *of_turned);
        let pieces = (!self.is_alone()).then_some(piece);
        cast.launch_pieces(self.rank(), x, &mut coded, to, pieces)?;
        let turned = Turned {
            codes: turned,
            scales: Arc::new(of_turned),
        };
        let operand = Operand::coded(coded, Lending::of([codes], [scales]));
        Ok((operand, turned))
    }

    /// Codes of this rank's rows where all are gathered. Each rank's shard has a plane of scales of its own.
    pub(super) fn shard_in_blocks(
        &self,
        cast: &Cast,
        rows: usize,
        columns: usize,
        source: &dyn Source,
    ) -> Result<Operand, Error> {
        let (rank, line) = (self.rank(), self.line(rows));
        let world = rank.world() as usize;
        let all = self.userbuffers.gathered([line * world, columns])?;
        let all = all.reinterpret::<e4m3>([line * world, columns])?;
        let lines = blocks(columns);
        let scales = self.userbuffers.scales([world * lines, line])?;
        let all = QuantTensor::new(all, scales, LINE)?;
        let own = rank.shard(rank.rank(), rows);
        if !own.is_empty() {
            let mut own = Coded::AllInBlocks(all.rows(own)?);
            self.cast_rows((cast, false), rows, source, (&mut own, None))?;
        }
        Ok(Operand::coded(Coded::AllInBlocks(all), Lending::default()))
    }

    /// The gradient of the output, for the product that gives the input's.
    pub(super) fn gradient_in_blocks(
        &self,
        cast: &Cast,
        rows: usize,
        dy: &Tensor<bf16>,
        gathers: bool,
    ) -> Result<Gradient, Error> {
        let mut pieces = None;
        let codes = match gathers {
            true => self.shard_in_blocks(cast, rows, self.sides[0], dy)?,
            false if self.turns_at_once(rows) => {
                let (codes, turned) = self.both_in_blocks(cast, rows, dy)?;
                pieces = Some(turned);
                codes
            }
            false => self.rows_in_blocks(cast, rows, dy.shape(), dy)?,
        };
        Ok(Gradient {
            rows: codes,
            tokens: None,
            pieces,
        })
    }

    /// Quantises some rows along tokens.
    fn turn(&self, cast: &Cast, x: &Tensor<bf16>, turned: &mut Coded) -> Result<(), Error> {
        let [rows, columns] = x.shape();
        let most = self.userbuffers.shape()[0];
        // The kernel writes both copies.
        let codes = self
            .userbuffers
            .lend_codes([rows, columns], most * columns)?;
        let [lines, line] = LINE.scales([rows, columns]);
        let scales = self.lend_scales(lines, line, blocks(columns) * most.next_multiple_of(4))?;
        let mut coded = Coded::own(cast.to(), &codes, &scales, LINE)?;
        let shared = self.userbuffers.fp8()?;
        cast.launch(self.rank(), shared, x, (&mut coded, Some(turned)), false)
    }

    /// Rows of codes, and lines of scales, that the region of each rank has in the buffers.
    fn region(&self, rows: usize) -> [usize; 2] {
        let each = self.each(rows);
        [each.next_multiple_of(CODES), blocks(each)]
    }

    /// A rank's region of what was gathered: of so many rows, with columns as rows.
    fn of_region(
        &self,
        (codes, scales): (&UserBuffer<e4m3>, &UserBuffer<f32>),
        of: usize,
        (rows, len, columns): (usize, usize, usize),
    ) -> Result<Coded, Error> {
        let [held, lines] = self.region(rows);
        let codes = codes.rows(of * held..(of + 1) * held)?;
        let codes = codes.shaped([columns, len.next_multiple_of(CODES)])?;
        let scales = scales.rows(of * lines..of * lines + blocks(len))?;
        Ok(Coded::AllInBlocks(QuantTensor::new(codes, scales, LINE)?))
    }

    /// Quantises this rank's rows along tokens, and gathers those of all ranks.
    fn gather_turned(
        &self,
        cast: &Cast,
        rows: usize,
        x: &Tensor<bf16>,
    ) -> Result<Pieces<'_>, Error> {
        let (rank, columns) = (self.rank(), x.shape()[1]);
        let (world, me) = (rank.world() as usize, rank.rank() as usize);
        let [held, lines] = self.region(rows);
        let halves = self.userbuffers.gathered([world * held, columns / 2])?;
        let codes = halves.reinterpret::<e4m3>([world * held, columns])?;
        let scales = self.userbuffers.scales([world * lines, columns])?;
        if !x.is_empty() {
            let own = (rows, x.shape()[0], columns);
            let mut own = self.of_region((&codes, &scales), me, own)?;
            self.turn(cast, x, &mut own)?;
        }
        self.gather(&halves, world * held)?;
        self.gather_scales(&scales, world * lines)?;
        Ok(Pieces::Gathered(codes, scales))
    }

    /// The rows of one rank, along tokens.
    fn piece(
        &self,
        of: &Pieces<'_>,
        number: u32,
        rows: usize,
        columns: usize,
    ) -> Result<Operand, Error> {
        let shard = self.rank().shard(number, rows);
        match of {
            Pieces::Gathered(codes, scales) => {
                let part = (rows, shard.len(), columns);
                let coded = self.of_region((codes, scales), number as usize, part)?;
                Ok(Operand::coded(coded, Lending::default()))
            }
            Pieces::Turned(cast, turned) => {
                let number = number as usize;
                let codes = (turned.codes).rows(number * columns..(number + 1) * columns)?;
                let lines = blocks(shard.len());
                let scales = turned.scales.rows(number * lines..(number + 1) * lines)?;
                let coded = Coded::own(cast.to(), &codes, &scales, LINE)?;
                Ok(Operand::coded(coded, Lending::default()))
            }
            Pieces::Own(cast, source) => {
                let [held, lines] = self.region(self.userbuffers.shape()[0]);
                let shape = [columns, shard.len().next_multiple_of(CODES)];
                let codes = self.userbuffers.lend_codes(shape, columns * held)?;
                let scales = self.lend_scales(blocks(shard.len()), columns, lines * columns)?;
                let mut coded = Coded::own(cast.to(), &codes, &scales, LINE)?;
                self.turn(cast, &source.rows(shard)?, &mut coded)?;
                Ok(Operand::coded(
                    coded,
                    Lending::of([codes], [Arc::new(scales)]),
                ))
            }
        }
    }

    /// Adds the weight's gradient, one rank's rows after another's: blocks of tokens begin anew with each.
    pub(super) fn weight_in_blocks(
        &self,
        fp8: &Fp8,
        (saved, source): (&Saved, &dyn Source),
        (dy, gradient): (&dyn Source, &Gradient),
        to: &mut Tensor<f32>,
    ) -> Result<(), Error> {
        let (rows, [out, columns]) = (saved.rows, self.sides);
        let gathers = |parallel| self.config.parallel == parallel && !self.is_alone();
        let x = match &saved.kept {
            Some(Kept::Pieces(turned)) => Pieces::Turned(fp8.input(), turned),
            _ => {
                let x = self.whole(rows, source)?;
                match gathers(Parallel::Column) {
                    true => self.gather_turned(fp8.input(), rows, &x)?,
                    false => Pieces::Own(fp8.input(), x),
                }
            }
        };
        let dy = match &gradient.pieces {
            Some(turned) => Pieces::Turned(fp8.gradient(), turned),
            None => {
                let dy = self.whole_gradient(rows, dy)?;
                match gathers(Parallel::Row) {
                    true => self.gather_turned(fp8.gradient(), rows, &dy)?,
                    false => Pieces::Own(fp8.gradient(), dy),
                }
            }
        };
        for number in 0..self.rank().world() {
            let len = self.rank().shard(number, rows).len();
            if len == 0 {
                continue;
            }
            let x = self.piece(&x, number, rows, columns)?;
            let dy = self.piece(&dy, number, rows, out)?;
            self.weight(len, &dy, &x, to, None)?;
        }
        Ok(())
    }
}
