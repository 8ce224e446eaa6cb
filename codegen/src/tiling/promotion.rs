//! Promoted sums: what tensor cores sum of a step is added to sums that threads have of their own.
//!
//! Both are in registers. Where they do not fit beside each other, a step is multiplied in pieces, one after another, which
//! have the same registers for what tensor cores sum. Scales along the N side want registers, too: a piece is added in shares,
//! one after another, which have the same registers for their scales.

use crate::program::{ScaleBlock, TensorId};
use std::fmt;

/// The pieces in which a warpgroup multiplies a step of one product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promotion {
    /// Blocks of the M side that a warpgroup has.
    pub blocks: u32,
    /// Number of blocks of a piece: all, or one.
    pub together: u32,
    /// Size of a piece along the N side.
    pub n: u32,
    /// Parts of the N side, each of so much.
    pub parts: u32,
    /// Shares of a piece's N side, whose scales a thread has one after another; 1: it has those of the whole side all the time.
    pub shares: u32,
    /// Parts of a step's K, each of which is summed and promoted, one after another.
    pub depth: u32,
}

/// Registers of a thread that promoted sums leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// For what tensor cores sum of a piece, and scales along the N side.
    pub any: u32,
    /// For the same where a piece has all of the N side: beyond [`Room::any`], only scales have room.
    pub whole: u32,
}

/// A piece of a warpgroup's part of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The first of its blocks.
    pub block: u32,
    /// Number of the part of the N side.
    pub part: u32,
    /// Number of the part of K.
    pub depth: u32,
}

/// Bytes that the parts of a stage begin at: what TMA writes without a swizzle is aligned to them.
const PART: u32 = 128;

/// The scale of an operand's blocks, of which a stage holds those of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagedScale {
    /// The scale.
    pub tensor: TensorId,
    /// Index of its operand in the tiling.
    pub operand: usize,
    /// Elements that share one number.
    pub block: ScaleBlock,
    /// Rows or columns of the tile that the operand has.
    pub side: u32,
    /// True if it travels between ranks: then its rows are those of the operand, or blocks of them.
    pub travels: bool,
    /// Blocks of K in a step.
    pub depth: u32,
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

impl StagedScale {
    /// Rows and columns of the box that a step's come in: what TMA loads of a row is 16 bytes at least.
    pub const fn boxed(&self) -> (u32, u32) {
        match self.block {
            block if block.is_1d() && self.travels => (self.side, self.depth),
            block if block.is_1d() => (self.depth, self.side),
            block => {
                let rows = self.side + block.rows - self.alike();
                (rows.div_ceil(block.rows), block.line())
            }
        }
    }

    /// Rows or columns of a tile, one after another, that have one number wherever the tile begins: at a multiple of its side.
    ///
    /// ```
    /// use counterflow_codegen::program::{ScaleBlock, TensorId};
    /// use counterflow_codegen::tiling::StagedScale;
    ///
    /// let block = ScaleBlock::F32_128X128;
    /// let of = |side| StagedScale { tensor: TensorId(0), operand: 0, block, side, travels: false, depth: 1 };
    /// assert_eq!([64, 128, 192, 256].map(|side| of(side).alike()), [64, 128, 64, 128]);
    /// // A tile of 192 has parts of two blocks of 128, and one of 208 may have parts of three.
    /// assert_eq!([64, 128, 192, 208].map(|side| of(side).boxed().0), [1, 1, 2, 3]);
    /// assert_eq!([64, 128, 192, 256].map(|side| of(side).crosses()), [false, false, true, false]);
    /// ```
    pub const fn alike(&self) -> u32 {
        match self.block.is_1d() {
            true => 1,
            // The greatest divisor that the side has in common with a block, a power of two.
            false => 1 << least(self.side.trailing_zeros(), self.block.rows.trailing_zeros()),
        }
    }

    /// True if a tile may begin within a block and end in another one.
    pub const fn crosses(&self) -> bool {
        let alike = self.alike();
        !self.block.is_1d() && alike < self.side && alike < self.block.rows
    }

    /// Bytes of that box.
    pub const fn box_bytes(&self) -> u32 {
        let (rows, columns) = self.boxed();
        rows * columns * self.block.element.bytes()
    }

    /// Bytes of its part of a stage.
    pub const fn bytes(&self) -> u32 {
        self.box_bytes().next_multiple_of(PART)
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} part {}", self.block, self.part)?;
        match self.depth {
            0 => Ok(()),
            depth => write!(f, " depth {depth}"),
        }
    }
}

impl Promotion {
    /// The fewest pieces of `blocks` of 64 by `n` for whose sums there is room, beside so many registers for the scales along all
    /// of the N side; `None` where no piece is small enough.
    ///
    /// ```
    /// use counterflow_codegen::tiling::{Promotion, Room};
    ///
    /// let room = Room { any: 64, whole: 80 };
    /// let whole = Promotion::of(1, 128, 0, room).expect("room");
    /// assert_eq!((whole.pieces().count(), whole.registers()), (1, 64));
    /// let by_block = Promotion::of(2, 128, 0, room).expect("room");
    /// assert_eq!((by_block.pieces().count(), by_block.registers()), (2, 64));
    /// let halves = Promotion::of(1, 256, 0, room).expect("room");
    /// assert_eq!((halves.n, halves.pieces().count()), (128, 2));
    /// let shares = Promotion::of(2, 128, 32, room).expect("room");
    /// assert_eq!((shares.n, shares.shares), (128, 2));
    /// assert_eq!(Promotion::of(2, 256, 0, Room { any: 8, whole: 8 }), None);
    /// ```
    pub fn of(blocks: u32, n: u32, scales: u32, room: Room) -> Option<Promotion> {
        let fits = |way: &Promotion| {
            let (sums, scales) = (way.registers(), scales / way.shares);
            let all = if way.parts == 1 { room.whole } else { room.any };
            sums <= room.any && sums + scales <= all
        };
        Promotion::ways(blocks, n).find(fits)
    }

    /// The pieces that are tried, the fewest first. Blocks first, then shares: an instruction that has more on its N side reads
    /// less.
    fn ways(blocks: u32, n: u32) -> impl Iterator<Item = Promotion> {
        let way = move |(parts, together, shares): (u32, u32, u32)| Promotion {
            blocks,
            together,
            n: n / parts,
            parts,
            shares,
            depth: 1,
        };
        let ways = [(1, blocks, 1), (1, 1, 1), (1, 1, 2), (2, 1, 1), (4, 1, 1)].map(way);
        let divides = move |way: &Promotion| {
            (way.parts == 1 || n.is_multiple_of(16 * way.parts))
                && (way.shares == 1 || n.is_multiple_of(8 * way.shares))
        };
        ways.into_iter().filter(divides)
    }

    /// Registers of a thread for what tensor cores sum of the smallest piece.
    pub(crate) fn least(blocks: u32, n: u32) -> u32 {
        let each = Promotion::ways(blocks, n).map(|way| way.registers());
        each.min().unwrap_or(0)
    }

    /// Registers of a thread for what tensor cores sum.
    pub const fn registers(&self) -> u32 {
        self.together * self.n / 2
    }

    /// The pieces, in the order in which they are multiplied.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let (blocks, parts, step) = (self.blocks, self.parts, self.together.max(1) as usize);
        (0..self.depth).flat_map(move |depth| {
            let blocks = (0..blocks).step_by(step);
            blocks.flat_map(move |block| (0..parts).map(move |part| Piece { block, part, depth }))
        })
    }

    /// The pieces of a step that have registers of their own for promoted sums: those of one part of K.
    pub fn sums(&self) -> impl Iterator<Item = Piece> + use<> {
        self.pieces().filter(|piece| piece.depth == 0)
    }

    /// Number of pieces.
    pub const fn count(&self) -> u32 {
        self.depth * (self.blocks / self.together) * self.parts
    }

    /// A piece's shares, in the order in which they are added: every other piece has them backwards, so that it begins with the
    /// scales that the one before it ended with.
    pub fn shares_of(&self, piece: Piece) -> impl Iterator<Item = u32> + use<> {
        let (shares, before) = (self.shares, piece.block / self.together + piece.part);
        let backwards = before % 2 == 1;
        (0..shares).map(move |nth| if backwards { shares - 1 - nth } else { nth })
    }
}
