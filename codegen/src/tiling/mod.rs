//! Tiling of a GEMM loop: the way its tiles are computed, as a value that names no architecture.
//!
//! An architecture's rules make it, once ([`crate::sm90::cta`]). The plan, the model, the warp level, the verifier and the
//! emitter read it, and decide nothing of it again.

mod operand;
mod promotion;

pub use operand::{Boxes, Major, Operand};
pub use promotion::{Piece, Promotion, Room, StagedScale};

use crate::dtype::Dtype;
use crate::program::{Loc, PartitionId, Var};

/// Bytes of a line of the widest swizzle.
const LINE: u32 = 128;

/// The part of an output that is computed at a time, by one CTA or by all that share its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Depth of a step.
    pub k: u32,
}

/// An epilogue subtile: what leaves a tile together. It is all of the tile's M side, or of a warpgroup's part of it, by a
/// part of its N side, so that every thread that multiplies has some of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subtile {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

impl Subtile {
    /// Elements of it.
    pub const fn elements(&self) -> u32 {
        self.rows * self.columns
    }
}

/// Stored tiles that an item reads beside the operands of its product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inputs {
    /// Through the stages, behind the product's last step: so many.
    Stages(u32),
}

/// A product of an item: which of the operands has the tile's rows, and which has its columns.
pub type Product = [usize; 2];

/// Products that the same instructions compute: those whose operands differ on the instruction's N side alone, where they lie
/// one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Multiply {
    /// The first of them; the others follow it.
    pub first: usize,
    /// The operand on the M side.
    pub on_m: usize,
    /// The operands on the N side, one a product.
    pub on_n: Vec<usize>,
}

/// The way in which the tiles of one GEMM loop are computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tiling(Parts);

/// Parts that a [`Tiling`] is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub at: Loc,
    pub items: Var,
    pub partition: PartitionId,
    pub tile: Tile,
    pub swap_ab: bool,
    pub element: Dtype,
    pub places: u32,
    pub operands: Vec<Operand>,
    pub products: Vec<Product>,
    pub joined: bool,
    pub accumulators: u32,
    pub split: u32,
    pub subtile: Subtile,
    pub widest: u32,
    pub inputs: Inputs,
    pub leaves_out: bool,
    pub promotion: Option<Promotion>,
    pub scales: Vec<StagedScale>,
}

impl Tiling {
    pub(crate) const fn new(parts: Parts) -> Tiling {
        Tiling(parts)
    }

    /// Place of its first product in the schedule, or of its first store if it multiplies nothing.
    pub const fn at(&self) -> Loc {
        self.0.at
    }

    /// The variable of its loop over tiles, which names the loop.
    pub const fn items(&self) -> Var {
        self.0.items
    }

    /// The tiles' partition.
    pub const fn partition(&self) -> PartitionId {
        self.0.partition
    }

    /// The tile.
    pub const fn tile(&self) -> Tile {
        self.0.tile
    }

    /// True if its columns are on the instruction's M side, and its rows on the N side (swap AB).
    pub const fn swap_ab(&self) -> bool {
        self.0.swap_ab
    }

    /// Puts what rows and columns have in the order of the M side and the N side.
    pub fn sides<T>(&self, rows: T, columns: T) -> (T, T) {
        if self.0.swap_ab {
            (columns, rows)
        } else {
            (rows, columns)
        }
    }

    /// Operands of its products, each once: those that have the tile's rows, then those that have its columns; none
    /// where nothing is multiplied.
    pub fn operands(&self) -> &[Operand] {
        &self.0.operands
    }

    /// The products of an item.
    pub fn products(&self) -> &[Product] {
        &self.0.products
    }

    /// Products as instructions compute them: all together where they are joined, and one by one otherwise.
    pub fn multiplies(&self) -> Vec<Multiply> {
        let sides = |product: &Product| self.sides(product[0], product[1]);
        let all = || self.0.products.iter().map(sides);
        if self.0.joined {
            let on_m = all().next().map_or(0, |(on_m, _)| on_m);
            return vec![Multiply {
                first: 0,
                on_m,
                on_n: all().map(|(_, on_n)| on_n).collect(),
            }];
        }
        let one = |(first, (on_m, on_n))| Multiply {
            first,
            on_m,
            on_n: vec![on_n],
        };
        all().enumerate().map(one).collect()
    }

    /// The operands' element type; of what has none, that of the first tile of 16-bit elements.
    pub const fn element(&self) -> Dtype {
        self.0.element
    }

    /// Registers of a thread that accumulate, of all products together.
    pub const fn accumulators(&self) -> u32 {
        self.0.accumulators
    }

    /// The way in which sums of the tensor cores are added to those of threads; `None`: tensor cores sum all steps.
    pub const fn promotion(&self) -> Option<Promotion> {
        self.0.promotion
    }

    /// The scales of its operands' blocks, which come with a step: their parts of a stage are behind those of operands.
    pub fn scales(&self) -> &[StagedScale] {
        &self.0.scales
    }

    /// Index of an operand's scale.
    pub fn scale_of(&self, operand: usize) -> Option<usize> {
        let mut scales = self.0.scales.iter();
        scales.position(|scale| scale.operand == operand)
    }

    /// In how many shares a thread has a scale, one after another: where those along the N side are a share of a piece's, those
    /// along the M side are a block's.
    pub fn shares_of_scale(&self, scale: usize) -> u32 {
        let StagedScale { block, operand, .. } = self.0.scales[scale];
        match self.0.promotion {
            Some(promotion) if block.is_1d() && promotion.shares > 1 => {
                match self.is_on_m(operand) {
                    true => promotion.blocks / promotion.together,
                    false => promotion.shares,
                }
            }
            Some(_) | None => 1,
        }
    }

    /// Parts of a step's K, each of which is summed and promoted, one after another.
    pub fn parts_of_k(&self) -> u32 {
        self.0.promotion.map_or(1, |promotion| promotion.depth)
    }

    /// Numbers of a scale by which a share of a piece is multiplied.
    pub fn share_of_scale(&self, scale: usize, piece: Piece, share: u32) -> u32 {
        match (self.shares_of_scale(scale), self.0.promotion) {
            (1, _) | (_, None) => 0,
            (_, Some(promotion)) => match self.is_on_m(self.0.scales[scale].operand) {
                true => piece.block / promotion.together,
                false => share,
            },
        }
    }

    /// True if lines of scales are along the instruction's N side: each thread has many numbers of them in a step.
    pub fn has_scales_on_n(&self) -> bool {
        let mut scales = self.0.scales.iter();
        scales.any(|it| it.block.is_1d() && !self.is_on_m(it.operand))
    }

    /// Steps that stand in the machine code one after another. Where sums are promoted, what the next one needs is worked out
    /// while sums are added: measured with 1×128 by 128×128, 8192³ in 128×256, four are 1 % faster than one, and eight no faster.
    /// With scales along the N side one: `wgrad` in 128×160 was 3 % slower in fours, and registers are full in 256×128.
    pub fn steps_unrolled(&self) -> u32 {
        match self.0.promotion {
            Some(_) if !self.has_scales_on_n() => 4,
            Some(_) | None => 1,
        }
    }

    /// True if an operand is on the instruction's M side.
    pub fn is_on_m(&self, operand: usize) -> bool {
        self.0.operands[operand].columns == self.0.swap_ab
    }

    /// CTAs that split the K of a tile; 1: none.
    pub const fn split(&self) -> u32 {
        self.0.split
    }

    /// The epilogue subtile: columns or rows that leave a tile together.
    pub const fn subtile(&self) -> Subtile {
        self.0.subtile
    }

    /// Epilogue subtiles of a tile.
    pub const fn subtiles(&self) -> u32 {
        let Tile { rows, columns, .. } = self.0.tile;
        rows / self.0.subtile.rows * (columns / self.0.subtile.columns)
    }

    /// Bytes of the widest element that a subtile holds: of what is stored, and of what is read beside the product.
    pub const fn widest(&self) -> u32 {
        self.0.widest
    }

    /// Bytes that a subtile has room for.
    pub const fn subtile_bytes(&self) -> u32 {
        self.0.subtile.elements() * self.0.widest
    }

    /// Stored tiles that an item reads.
    pub const fn inputs(&self) -> Inputs {
        self.0.inputs
    }

    /// Operands as they lie in stages: an array over places for each that is not behind another, with those that are.
    pub(crate) fn arrays(&self) -> Vec<&[Operand]> {
        let multiplies = self.multiplies();
        let behind = |at: &usize| multiplies.iter().any(|it| it.on_n[1..].contains(at));
        let operands = self.operands();
        let starts = (0..operands.len()).filter(|at| !behind(at));
        let starts: Vec<usize> = starts.chain([operands.len()]).collect();
        let arrays = starts.windows(2);
        arrays.map(|ends| &operands[ends[0]..ends[1]]).collect()
    }

    /// The first operand that has the tile's rows, and the first that has its columns.
    pub(crate) fn first_of_sides(&self) -> [usize; 2] {
        let mut operands = self.0.operands.iter();
        [0, operands.position(|operand| operand.columns).unwrap_or(0)]
    }

    /// Subtiles of stored tiles that a stage has room for where the first operand of each side would be; where nothing is
    /// multiplied it has nothing else.
    pub fn input_places(&self) -> [u32; 2] {
        if self.0.operands.is_empty() {
            return [self.0.places, 0];
        }
        let Tile { rows, columns, k } = self.0.tile;
        let element = self.element().bytes();
        [rows, columns].map(|rows| rows * k * element / self.subtile_bytes())
    }

    /// Place in a slot of a subtile of the n-th stored tile: the operand, and the number there.
    pub fn input_place(&self, index: u32) -> (usize, u32) {
        let [first, _] = self.input_places();
        let [rows, columns] = self.first_of_sides();
        if index < first {
            (rows, index)
        } else {
            (columns, index - first)
        }
    }

    /// Place that carries the terms of a sum of stored tiles: the larger operand's part of a slot, and how many subtiles at a time,
    /// as many as fit there and divide the tile.
    pub fn reused_stage(&self) -> (usize, u32) {
        let Tile { rows, columns, .. } = self.0.tile;
        let side = usize::from(columns >= rows && !self.0.operands.is_empty());
        let part = self.first_of_sides()[side];
        let (fits, all) = (self.input_places()[side], self.subtiles());
        let divides = (1..=fits.max(1)).rfind(|few| all.is_multiple_of(*few));
        (part, divides.unwrap_or(1))
    }

    /// True if rows of an operand's tile that do not exist are not loaded.
    pub const fn leaves_out(&self) -> bool {
        self.0.leaves_out
    }

    /// Columns that one box of TMA has of a subtile: all, or where the tile is swapped a line of the widest swizzle of
    /// elements of so many bytes. Such *slices* lie one after another.
    pub const fn slice_columns(&self, bytes: u32) -> u32 {
        if self.0.swap_ab {
            LINE / bytes
        } else {
            self.0.subtile.columns
        }
    }
}

/// Bytes of a place of each array of a stage: what the loop that has the most in it needs.
pub(crate) fn strides(tilings: &[Tiling]) -> Vec<u32> {
    let mut strides: Vec<u32> = Vec::new();
    for arrays in tilings.iter().map(Tiling::arrays) {
        strides.resize(strides.len().max(arrays.len()), 0);
        for (stride, array) in strides.iter_mut().zip(arrays) {
            *stride = (*stride).max(array.iter().map(|operand| operand.bytes).sum());
        }
    }
    strides
}

/// First of all K steps that CTA `split_rank` of `split` computes.
pub fn first_step<T>(steps: T, split_rank: T, split: T) -> T
where
    T: std::ops::Mul<Output = T> + std::ops::Div<Output = T>,
{
    steps * split_rank / split
}
