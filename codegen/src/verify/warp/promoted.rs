//! Promoted sums: that what tensor cores summed of each step is added once, in order along K, with the scales of its blocks.

use super::held::{Content, TileProduct};
use super::simulator::{Simulator, Verdict};
use super::step::Area;
use super::trace;
use crate::block::{BLOCK, ScaleBlock};
use crate::tiling::Piece;

impl Simulator<'_> {
    /// Promoted sums begin as zero.
    pub(super) fn start_products(&mut self, index: usize) {
        let agent = &mut self.agents[index];
        let tiling = self.case.pipeline.tiling_of(agent.steps[agent.at].tiling);
        let fragment = &mut agent.fragment;
        fragment.read.clear();
        fragment.applied.clear();
        fragment.promoted.clear();
        fragment.blocks.clear();
        let pieces = || (tiling.promotion().into_iter()).flat_map(|it| it.pieces());
        for product in 0..tiling.products().len() {
            let empty = pieces().map(|piece| (product, piece, TileProduct::default()));
            fragment.promoted.extend(empty);
        }
    }

    /// A step's scales are read.
    pub(super) fn read_blocks(
        &mut self,
        index: usize,
        area: Area,
        (scale, number): (usize, u32),
    ) -> Verdict {
        let agent = &self.agents[index];
        let staged = self
            .case
            .pipeline
            .tiling_of(agent.steps[agent.at].tiling)
            .scales()[scale];
        let held: Vec<&Content> = self.held(agent.cta, area).collect();
        let from = match held[..] {
            [Content::Box(from, _)] if from.tensor == staged.tensor => *from,
            _ => {
                let what = "the stage does not hold that scale of a step";
                return Err(Box::new(trace::wrong(self, index, what)));
            }
        };
        let (row, column) = from.origin;
        let (rows, block) = match staged.block {
            ScaleBlock::Line if !staged.travels => (column, row),
            ScaleBlock::Line | ScaleBlock::Square => (self.row_in_all(&from, row), column + number),
        };
        let blocks = &mut self.agents[index].fragment.blocks;
        blocks.retain(|(known, ..)| *known != scale);
        blocks.push((scale, rows, block));
        Ok(())
    }

    /// What keeps the scales that were read from being those of a product's part of K.
    fn other_blocks(
        &self,
        index: usize,
        product: usize,
        short: &TileProduct,
    ) -> Option<&'static str> {
        let agent = &self.agents[index];
        let tiling = self.case.pipeline.tiling_of(agent.steps[agent.at].tiling);
        let at = [short.at.0, short.at.1];
        let operands = tiling.products()[product].into_iter().zip(at);
        for (operand, first) in operands {
            let Some(scale) = tiling.scale_of(operand) else {
                continue;
            };
            let read = agent
                .fragment
                .blocks
                .iter()
                .find(|(known, ..)| *known == scale);
            let Some((_, rows, block)) = read else {
                return Some("the scales of its blocks were not read");
            };
            let by = tiling.scales()[scale].block.rows();
            if *block != short.depth.0 / BLOCK {
                return Some("the scales that were read are of another block of K");
            }
            if first.is_some_and(|first| first / by != *rows) {
                return Some("the scales that were read are of other rows or columns");
            }
        }
        None
    }

    /// What tensor cores summed of a piece is added to its promoted sums: it must be what comes next along K.
    pub(super) fn promote(&mut self, index: usize, product: usize, piece: Piece) -> Verdict {
        let first = self.case.pipeline.cta.split() == 1;
        let short = self.agents[index].fragment.short.take();
        let Some((.., short)) = short.filter(|it| (it.0, it.1) == (product, piece)) else {
            let what = "tensor cores summed nothing of that piece since the last one was promoted";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        if let Some(what) = self.other_blocks(index, product, &short) {
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let promoted = &mut self.agents[index].fragment.promoted;
        let known = promoted
            .iter_mut()
            .find(|it| (it.0, it.1) == (product, piece));
        let Some((.., sum)) = known else {
            let what = "the promoted sums were not set to zero";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        // Whoever has all steps begins with the first; others with theirs, which the sum of all will show.
        let next = match sum.tensors {
            None => !first || short.depth.0 == 0,
            Some(_) => (sum.at, sum.depth.1) == (short.at, short.depth.0),
        };
        match sum.tensors {
            None => *sum = short,
            Some(_) => {
                sum.lacks_also(short.lacks);
                sum.depth.1 = short.depth.1;
            }
        }
        if !next {
            let what = "its operands are not the next of its tile's along K";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let fragment = &mut self.agents[index].fragment;
        let pieces = fragment.promoted.iter().filter(|it| it.0 == product);
        fragment.products[product] = TileProduct::of_pieces(pieces.map(|it| &it.2));
        Ok(())
    }
}
