//! Promoted sums and their scales of blocks: room that they take in a stage and in registers, and cases without a kernel.

use super::asked::TileRequest;
use super::finding::refuse;
use super::registers::{REGISTERS_TO_PROMOTE_WHOLE, registers_to_promote};
use crate::diag::Diagnostic;
use crate::program::Side;
use crate::tiling::{Promotion, Room, StagedScale};

impl TileRequest<'_> {
    /// True if what tensor cores sum of a step is added to promoted sums.
    pub fn promotes(&self) -> bool {
        self.dtype.is_fp8() && !self.products.is_empty() && self.kernel.variant.promotes()
    }

    /// The scales of its operands' blocks.
    pub fn scales(&self) -> Vec<StagedScale> {
        let tile = self.wgmma.tile;
        let staged = self.stages().0.into_iter().enumerate();
        let scales = staged.filter_map(|(operand, (of, side))| {
            let (tensor, block) = self.kernel.block_scale(of)?;
            Some(StagedScale {
                tensor,
                operand,
                block,
                side: [tile.rows, tile.columns][side],
                travels: self.kernel.buffers[tensor.index()].usage.is_gathered(),
                depth: self.kind.k.div_ceil(block.columns),
            })
        });
        scales.collect()
    }

    /// Registers of a thread for scales: each number along the N side has one, as a quarter of the threads have two of every
    /// eight.
    fn registers_of_scales(&self) -> u32 {
        let on_n = usize::from(!self.wgmma.swap_ab());
        let staged = self.stages().0;
        let lines = self
            .scales()
            .into_iter()
            .filter(|scale| scale.block.is_1d() && staged[scale.operand].1 == on_n);
        lines.map(|scale| scale.side / 4).sum()
    }

    /// Registers of a thread for promoted sums and what is added to them: in any piece, and in one that has all of the N side.
    fn registers_to_promote(&self) -> [u32; 2] {
        let any = registers_to_promote(!self.item.sums.is_empty());
        let little = !self.results.computed || self.results.widest == 2;
        match self.alone() && little && self.item.bytes.is_none() {
            true => [any, REGISTERS_TO_PROMOTE_WHOLE],
            false => [any, any],
        }
    }

    /// Pieces in which a step is multiplied, if its sums are promoted and registers are left for what tensor cores
    /// sum of it.
    pub fn promotion(&self) -> Option<Promotion> {
        let left = |all: u32| all.checked_sub(self.wgmma.accumulators());
        let [any, whole] = self.registers_to_promote().map(left);
        let (blocks, n) = (self.wgmma.blocks(), self.wgmma.sides().1);
        let room = Room {
            any: any?,
            whole: whole?,
        };
        let promotion = Promotion::of(blocks, n, self.registers_of_scales(), room)?;
        let interval = self.kernel.variant.promotion_interval();
        let depth = self.kind.k.div_ceil(interval.filter(|_| self.promotes())?);
        Some(Promotion { depth, ..promotion })
    }

    /// Bytes of a stage for scales: what comes behind them begins with a swizzle's period.
    pub fn bytes_of_scales(&self) -> u32 {
        let all: u32 = self.scales().iter().map(StagedScale::bytes).sum();
        all.next_multiple_of(1024)
    }
}

/// Tensor cores keep all of a sum but where they multiply FP8.
pub(super) fn promoted_elements(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    if !asked.kernel.variant.promotes() || asked.promotes() {
        return Vec::new();
    }
    let message = format!("promoted sums of products of {}", asked.dtype);
    let hint = "products of FP8, whose sums tensor cores keep in few bits, or no `promote`";
    vec![refuse(asked.at, message, hint)]
}

/// A tile has all of a block of several rows along its side, or lies within one. Along the instruction's N side it may have parts of
/// two, unless they come from another rank: then the second one's scale may not be there.
pub(super) fn whole_squares(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let kernel = asked.kernel;
    let squares = asked.scales().into_iter().filter(|it| !it.block.is_1d());
    let mut found = Vec::new();
    for scale in squares {
        let (name, block) = (&kernel.buffers[scale.tensor.index()].name, scale.block.rows);
        let (_, side) = asked.stages().0[scale.operand];
        let what = Side::ALL[side].word();
        let on_n = side == usize::from(!asked.wgmma.swap_ab());
        let parts = on_n && !scale.travels && scale.boxed().0 == 2;
        if scale.crosses() && !parts {
            let message = format!(
                "tiles of {} {what}, across the blocks of {block} of `{name}`",
                scale.side
            );
            let two = match on_n && !scale.travels {
                true => ", or one with parts of two blocks at most, such as 192",
                false => "",
            };
            let hint = format!("a number of {what} that divides {block}, or a multiple of it{two}");
            found.push(refuse(asked.at, message, hint));
        }
    }
    found
}

/// Promoted sums leave registers for what tensor cores sum of a step.
pub(super) fn has_room_to_promote(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    if !asked.promotes() || asked.promotion().is_some() {
        return Vec::new();
    }
    let message = format!("{} with promoted sums", asked.tiles());
    let (sums, scales) = (asked.wgmma.accumulators(), asked.registers_of_scales());
    let [all, _] = asked.registers_to_promote();
    let least = Promotion::least(asked.wgmma.blocks(), asked.wgmma.sides().1);
    let hint = format!(
        "smaller tiles: a thread keeps {all} numbers; promoted sums are {sums}, scales {scales}, and the sums of the tensor \
        cores at least {least}"
    );
    vec![refuse(asked.at, message, hint)]
}
