//! Shared memory that tiles need, and the size of a subtile, the part of a tile that is stored at a time. Three things limit it:
//! the widest swizzle, a stage's room for the stored tiles that it reads, and a thread's registers for its values.

use super::wgmma::{ATOM_ROWS, BLOCK_ROWS, CONSUMERS, Mode, Wgmma};
use crate::encoding::ScaleBlock;
use crate::tiling::{Subtile, Tile};

/// Needs of a kernel's tiles for shared memory, over all of its loops: they pass through the same stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    /// The largest tile, and who multiplies it.
    pub wgmma: Wgmma,
    /// Number that the columns of every loop's tiles are multiples of, and those of a subtile divide.
    pub columns: u32,
    /// Bytes of a stage: of a step's operands, or of the stored tiles that are read where nothing is multiplied.
    pub stage: u32,
    /// Bytes of an operand's element.
    pub element: u32,
    /// CTAs that split the K of a tile, and send each other their partials of its subtiles.
    pub split: u32,
    /// Tiles that are stored, and those that are read beside the product.
    pub results: Results,
    /// True if CTAs load for themselves alone, and signal nobody.
    pub alone: bool,
    /// True if sums are promoted.
    pub promoted: bool,
    /// Bytes of a stage for scales of its operands' blocks.
    pub scales: u32,
    /// Elements of the N side that a subtile may have beside a sum that is apart: [`Needs::most_apart`] of every
    /// loop.
    pub apart: u32,
}

/// Stores of the items of a kernel, and reads beside the operands of their products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Results {
    /// Bytes of the widest element that is stored, or read in subtiles.
    pub widest: u32,
    /// Stores: so many subtiles for one of the tile's, at most.
    pub stores: u32,
    /// Stored tiles that come through the stages behind the last step.
    pub inputs: u32,
    /// Sums of stored tiles, beside a product.
    pub sums: Sums,
    /// Vectors and scales that an item reads whose sum is apart, most of all items: so many with a number for each row, and for
    /// each column.
    pub vectors: [u32; 2],
    /// Scales that are one number, likewise.
    pub numbers: u32,
    /// True if an item whose sum is apart announces its product before it waits: what it sends is in registers, too.
    pub announced: bool,
    /// True if there is more than products that are stored as they are: then what a subtile becomes is in registers beside
    /// accumulators.
    pub computed: bool,
    /// True if products in f32 are added to what is there in the rank's own memory, which takes them more slowly than it is
    /// written.
    pub added: bool,
    /// True if FP8 is stored: lanes exchange their codes while what is read beside a product is in registers.
    pub bytes: bool,
    /// True if stores take an amax: registers then hold each value before its scale, too.
    pub amax: bool,
    /// Blocks of results that stores compute scales of: a subtile has whole blocks.
    pub computed_scales: Option<ScaleBlock>,
}

/// Place of a sum over ranks, in items that have a product.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sums {
    /// There is none.
    None,
    /// Added to the accumulators, to a stored tile in a register, or where it is stored.
    Added,
    /// In registers of its own.
    Apart,
}

/// Rows of a subtile of a swapped tile, if it has some of so many: fewer cost more barriers than they are worth.
pub(super) const ENOUGH_ROWS: u32 = 24;
/// Bytes of subtiles of a swapped tile that are written at a time, at most, one for each warpgroup that has some of its own:
/// of twice that, two leave no room for a third stage.
const LARGEST: u32 = 32 << 10;
/// Bytes of a line of the narrowest swizzle: the least number of columns of a subtile of FP8.
pub(super) const LINE: u32 = 32;
/// The most that a tile has on the instruction's N side.
const MOST_N: u32 = 256;
/// Registers of a thread for accumulators and for what a subtile of them becomes.
pub(super) const VALUES: u32 = 192;

/// True if a subtile of so many columns has whole lines of FP8, and a thread registers for them and the stored tiles that they are
/// made of. Measured: of two, 128x256 by 64 columns takes 224 and spills, as 256x96 by 32 does with an amax; of one, 256x128 by
/// 64 does not.
pub(super) fn fits_codes(wgmma: Wgmma, columns: u32, inputs: u32, amax: bool) -> bool {
    let values = wgmma.blocks() * columns / 2 * (1 + u32::from(amax) + inputs);
    columns >= LINE && (inputs < 2 || wgmma.accumulators() + values <= VALUES)
}

impl Needs {
    /// True if each warpgroup has tiles of its own.
    pub const fn ping_pong(&self) -> bool {
        matches!(self.wgmma.mode, Mode::PingPong)
    }

    /// Sets of subtiles: each warpgroup that has tiles of its own has some.
    pub const fn sets(&self) -> u32 {
        CONSUMERS / self.wgmma.mode.warpgroups()
    }

    /// Number of subtiles of a tile.
    pub const fn whole(&self, subtile: Subtile) -> u32 {
        let Tile { rows, columns, .. } = self.wgmma.tile;
        rows / subtile.rows * (columns / subtile.columns)
    }

    /// Part of a tile's N side that is stored together.
    pub fn subtile(&self) -> Subtile {
        let Tile { rows, columns, .. } = self.wgmma.tile;
        if self.wgmma.swap_ab() {
            let rows = self.subtile_rows();
            Subtile { rows, columns }
        } else {
            let columns = self.subtile_columns();
            Subtile { rows, columns }
        }
    }

    /// Columns of a subtile: what one TMA box stores. The widest swizzle that divides the tile, since a box beyond the
    /// tile would overwrite its neighbour's columns. In ping-pong, half of the widest: room for one more stage is worth
    /// more than fewer stores. CTAs that split a tile's K store as many of its subtiles each, where a
    /// width allows it, and otherwise narrow ones, which differ least. Where scales are made of a subtile, it has their blocks.
    fn subtile_columns(&self) -> u32 {
        if let Some(block) = self.results.computed_scales {
            return block.columns;
        }
        let widths = match self.wgmma.mode {
            Mode::PingPong => &[64, 32][..],
            Mode::Cooperative => &[128, 64, 32][..],
        };
        let (split, widest) = (self.split, self.results.widest);
        let divide = widths.iter().map(|bytes| bytes / widest);
        let mut divide = divide.filter(|columns| self.columns.is_multiple_of(columns * split));
        let rows = self.wgmma.tile.rows;
        // A stage has room for one of each stored tile, and a thread for a sum's and for what becomes of them.
        let Results {
            inputs,
            bytes,
            amax,
            ..
        } = self.results;
        let fits = |columns: &u32| {
            self.places(rows * columns) >= inputs
                && *columns <= self.apart
                && (!bytes || fits_codes(self.wgmma, *columns, inputs, amax))
        };
        let widest_of_all = divide.clone().next();
        divide
            .find(fits)
            .or(widest_of_all)
            .unwrap_or(if split > 1 { 16 } else { 32 / widest })
    }

    /// Rows of a subtile of a swapped tile, whole atoms: as many as a thread has registers for what becomes of them, and
    /// a stage has room for one of each stored tile; two subtiles of a tall tile, so that one is stored while the next is
    /// written. As many each for CTAs that share steps, where that leaves enough rows, and otherwise low
    /// ones, which differ least.
    fn subtile_rows(&self) -> u32 {
        let (tile, blocks) = (self.wgmma.tile, self.wgmma.blocks());
        // A product stored as it is becomes nothing else: a few accumulators at a time are rounded and written. Sums that
        // are exchanged take registers, too: 168x256 by three spills, and more so in subtiles of 56 rows than of 8.
        let as_it_is = !self.results.computed && self.split == 1;
        let sets = if self.results.amax { 2 } else { 1 };
        let values = |rows: u32| self.wgmma.accumulators() + sets * blocks * rows / 2;
        let fits = |subtiles: &u32| {
            let each = tile.rows / subtiles;
            tile.rows.is_multiple_of(subtiles * ATOM_ROWS)
                && subtiles.is_multiple_of(self.split)
                && each >= ENOUGH_ROWS
                && each * tile.columns * self.results.widest * self.sets() <= LARGEST
                && (as_it_is || values(each) <= VALUES)
                && each <= self.apart
                && self.places(each * tile.columns) >= self.results.inputs
        };
        let fewest = |least: u32| (least..=tile.rows / ATOM_ROWS).find(fits);
        let subtiles = if tile.rows > BLOCK_ROWS {
            fewest(2)
        } else {
            None
        };
        match subtiles.or_else(|| fewest(1)) {
            Some(subtiles) => tile.rows / subtiles,
            None if tile.rows.is_multiple_of(16)
                && tile.rows / 16 >= self.split
                && self.apart >= 16 =>
            {
                16
            }
            None => ATOM_ROWS,
        }
    }

    /// Most elements of the N side of a subtile of this loop: a thread has registers for its part of a sum that is
    /// apart, for what becomes of it, for two or more stored tiles beside it, and for its numbers of each vector, two
    /// of a block's M side or a quarter of the N side. A scale that is one number counts as a vector along the N
    /// side: the compiler holds some of what it multiplied. Measured: with scales of rows, 256x128 by 32 columns
    /// takes 204 and spills, and 144x256 by 24 rows 200; without, 208x128 by 104 rows 208. With one scale for all,
    /// 128x256 by 64 columns spills 296 bytes. With scales of rows or one, swapped tiles spill 12 to 168 bytes where
    /// two sets fit, and none where three do. Where an item sends what it scaled before it adds, 128x256 by 32
    /// columns of f32 spills 8 bytes, and 256x128 by 16 none. With two stored tiles, 256x128 by 32 columns spills 12
    /// bytes.
    pub fn most_apart(&self) -> u32 {
        if self.results.sums != Sums::Apart {
            return u32::MAX;
        }
        let blocks = self.wgmma.blocks();
        let [of_rows, of_columns] = self.results.vectors;
        let (on_m, on_n) = match self.wgmma.swap_ab() {
            true => (of_columns, of_rows),
            false => (of_rows, of_columns),
        };
        let scaled = self.results.numbers > 0 || self.results.vectors != [0, 0];
        let halves = match self.results.inputs {
            0..=2 if scaled && self.results.announced => 7,
            0..=2 if scaled && self.wgmma.swap_ab() => 6,
            0..=2 => 4,
            inputs => 2 * (1 + inputs),
        };
        let fits = |n: &u32| {
            let vectors = on_m * 2 * blocks + (on_n + self.results.numbers) * n / 4;
            self.wgmma.accumulators() + blocks * n * halves / 4 + vectors <= VALUES
        };
        (1..=MOST_N).rev().find(fits).unwrap_or(0)
    }

    /// Subtiles of so many elements that a stage has room for, where each operand would be.
    pub fn places(&self, elements: u32) -> u32 {
        let Tile { rows, columns, k } = self.wgmma.tile;
        let operands = [rows, columns].map(|rows| rows * k * self.element);
        let each = |bytes: u32| bytes / (elements * self.results.widest);
        operands.map(each).iter().sum()
    }

    /// Description of a subtile as a part of a tile.
    pub fn part(&self, subtile: Subtile) -> String {
        if self.wgmma.swap_ab() {
            format!("{} rows", subtile.rows)
        } else {
            format!("{} columns", subtile.columns)
        }
    }
}
