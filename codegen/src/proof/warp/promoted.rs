//! Promoted sums: that what tensor cores summed of each step is added once, in order along K, with the scales of its blocks.

use super::held::{BlocksRead, Content, Short, TileProduct};
use super::simulator::{Simulator, Verdict};
use super::step::{Area, Box4};
use super::trace;
use crate::tiling::{Piece, StagedScale};

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
        let shares = || {
            let promotion = tiling.promotion().into_iter();
            let pieces = promotion.flat_map(|it| it.sums().map(move |piece| (it, piece)));
            pieces.flat_map(|(it, piece)| it.shares_of(piece).map(move |share| (piece, share)))
        };
        for product in 0..tiling.products().len() {
            let empty = shares().map(|share| (product, share, TileProduct::default()));
            fragment.promoted.extend(empty);
        }
    }

    /// A step's scales are read.
    pub(super) fn read_blocks(
        &mut self,
        index: usize,
        area: Area,
        (scale, number, begin): (usize, u32, u32),
        share: u32,
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
        let (rows, block) = match staged.block.is_1d() && !staged.travels {
            true => (column, row + number),
            false => (self.row_in_all(&from, row), column + number),
        };
        if self.lacks_scales(&from, staged, (rows, begin)) {
            let what = "the stage holds the scales of a part of the tile's rows or columns";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let blocks = &mut self.agents[index].fragment.blocks;
        blocks.retain(|known| known.scale != scale);
        blocks.push(BlocksRead {
            scale,
            rows,
            begin,
            block,
            share,
        });
        Ok(())
    }

    /// True if a box that begins with those scales ends before the tile does, or before what exists of the tile: its shard, or the
    /// tensor.
    fn lacks_scales(&self, from: &Box4, staged: StagedScale, (first, begin): (u32, u32)) -> bool {
        let geometry = self.case.geometry(from.plan);
        let plane = &self.case.pipeline.kernel.buffers[from.tensor.index()];
        let by = staged.block.rows;
        let tile = (first * by + begin + staged.side).div_ceil(by);
        if staged.block.is_1d() && !staged.travels {
            return from.columns.1 < tile.min(geometry.size(plane.columns));
        }
        let all = geometry.size(plane.rows);
        let shard = match geometry.shards(plane.rows) {
            1 => all,
            _ => geometry.shard_rows(plane.rows),
        };
        let end = (first / shard.max(1) + 1) * shard;
        first < all && from.all.1 < tile.min(end).min(all)
    }

    /// Reason that the scales which were read are not those of a share of a product's part of K.
    fn other_blocks(&self, index: usize, short: &Short, share: u32) -> Option<&'static str> {
        let agent = &self.agents[index];
        let tiling = self.case.pipeline.tiling_of(agent.steps[agent.at].tiling);
        let at = [short.of.at.0, short.of.at.1];
        let operands = tiling.products()[short.product].into_iter().zip(at);
        for (operand, first) in operands {
            let Some(scale) = tiling.scale_of(operand) else {
                continue;
            };
            let mut read = agent.fragment.blocks.iter();
            let Some(read) = read.find(|known| known.scale == scale) else {
                return Some("the scales of its blocks were not read");
            };
            let staged = tiling.scales()[scale];
            let by = staged.block.rows;
            let (first_of_k, end_of_k) = short.of.depth;
            if first_of_k < end_of_k && read.block != first_of_k / staged.block.columns {
                return Some("the scales that were read are of another block of K");
            }
            if first.is_some_and(|first| first / by != read.rows) {
                return Some("the scales that were read are of other rows or columns");
            }
            if staged.crosses() && first.is_some_and(|first| first % by != read.begin) {
                return Some(
                    "the scales that were read are of a tile that begins elsewhere in a block",
                );
            }
            if read.share != tiling.share_of_scale(scale, short.piece, share) {
                return Some("the scales that were read are of another share");
            }
        }
        None
    }

    /// Adds the sum of tensor cores over a share of a piece to its promoted sums: it must be what comes next along K.
    pub(super) fn promote(
        &mut self,
        index: usize,
        product: usize,
        (piece, share): (Piece, u32),
    ) -> Verdict {
        let first = self.case.pipeline.cta.split() == 1;
        let short = self.agents[index].fragment.short.take();
        let is = |short: &Short| {
            (short.product, short.piece) == (product, piece) && short.left.contains(&share)
        };
        let Some(mut short) = short.filter(is) else {
            let what = "tensor cores summed nothing of that piece since the last one was promoted";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        if let Some(what) = self.other_blocks(index, &short, share) {
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        short.left.retain(|left| *left != share);
        let fragment = &mut self.agents[index].fragment;
        let of = short.of.clone();
        fragment.short = (!short.left.is_empty()).then_some(short);
        let of_sum = Piece { depth: 0, ..piece };
        let known =
            (fragment.promoted.iter_mut()).find(|it| (it.0, it.1) == (product, (of_sum, share)));
        let Some((.., sum)) = known else {
            let what = "the promoted sums were not set to zero";
            return Err(Box::new(trace::wrong(self, index, what)));
        };
        // Whoever has all steps begins with the first; others with theirs, which the sum of all will show.
        let next = match sum.tensors {
            None => !first || of.depth.0 == 0,
            Some(_) => (sum.at, sum.depth.1) == (of.at, of.depth.0),
        };
        match sum.tensors {
            None => *sum = of,
            Some(_) => {
                sum.lacks_also(of.lacks);
                sum.depth.1 = of.depth.1;
            }
        }
        if !next {
            let what = "its operands are not the next of its tile's along K";
            return Err(Box::new(trace::wrong(self, index, what)));
        }
        let shares = fragment.promoted.iter().filter(|it| it.0 == product);
        fragment.products[product] = TileProduct::of_pieces(shares.map(|it| &it.2));
        Ok(())
    }
}
