//! Contents of registers and shared memory: no numbers, but the tensor, rows, columns and depth they stand for.

use super::step::Box4;
use crate::program::TensorId;
use crate::tiling::Piece;
use crate::value::AccId;
use crate::warp::Elements;

/// Registers of a thread that multiplies a tile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Fragment {
    /// The products of its item.
    pub products: Vec<TileProduct>,
    /// Operands read for its epilogue: what was loaded, the row (of tiles) and the first column.
    pub read: Vec<(AccId, Option<u32>, u32)>,
    /// Sums of stored tiles that have registers of their own.
    pub summed: Vec<Summed>,
    /// Epilogues applied to the subtile at hand.
    pub applied: Vec<Applied>,
    /// Scales made of the subtile at hand.
    pub computed_scales: Vec<ComputedScales>,
    /// Scales read of a tile of partial sums: the slot, this group's first row among all, and the tile's first block.
    pub of_tile: Option<(TensorId, u32, u32, u32)>,
    /// Sum of tensor cores over a product's piece that threads have not yet added to the promoted sums.
    pub short: Option<Short>,
    /// Scales of blocks that were read.
    pub blocks: Vec<BlocksRead>,
    /// The promoted sums of each share of each product's pieces.
    pub promoted: Vec<(usize, (Piece, u32), TileProduct)>,
}

/// A sum of stored tiles so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Summed {
    /// Accumulator that the schedule's sum fills.
    pub acc: AccId,
    /// Ranks whose terms it has, in the order in which they were added.
    pub ranks: Vec<u32>,
    /// The own term among them, and of which subtile.
    pub own: Option<(Elements, u32)>,
}

/// Sum of tensor cores over a piece of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Short {
    pub product: usize,
    pub piece: Piece,
    pub of: TileProduct,
    /// The shares of it that are left to add.
    pub left: Vec<u32>,
}

/// Scales of blocks that were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlocksRead {
    /// Index among the tiling's scales.
    pub scale: usize,
    /// Rows of the scales.
    pub rows: u32,
    /// From which of their rows on, if blocks cross tiles' edges.
    pub begin: u32,
    /// Block of K.
    pub block: u32,
    /// Share of the block.
    pub share: u32,
}

/// An epilogue that was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Applied {
    pub epilogue: usize,
    /// Index of the subtile.
    pub part: u32,
    /// Place of what it reads, if it reads no product.
    pub at: Option<Place>,
}

/// Scales that were made of a subtile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ComputedScales {
    pub elements: Elements,
    pub part: u32,
    /// Columns of the output that count.
    pub columns: (u32, u32),
    /// The item's products when they were made.
    pub products: Vec<TileProduct>,
}

impl Fragment {
    /// Epilogue of a subtile, if it was applied.
    pub fn applied(&self, epilogue: usize, part: u32) -> Option<&Applied> {
        let mut applied = self.applied.iter();
        applied.find(|known| (known.epilogue, known.part) == (epilogue, part))
    }
}

/// A tile's first row among all rows, and its first column; `None` where nothing says so.
pub(super) type Place = (Option<u32>, Option<u32>);

/// A tile product so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TileProduct {
    /// Operands of the product.
    pub tensors: Option<[TensorId; 2]>,
    /// First row of the tile among all rows, and its first column; `None` where nothing of them was loaded, since
    /// none exists.
    pub at: Place,
    /// Of its rows and its columns, counted from the tile's first, those that are products of garbage: from one to
    /// below another.
    pub lacks: [(u32, u32); 2],
    /// Part of K that it has.
    pub depth: (u32, u32),
    /// The parts of K that other CTAs of the cluster summed, by the subtile they were added to.
    pub sums: Vec<(u32, (u32, u32))>,
    /// Ranks whose partial tiles it has.
    pub added: Vec<u32>,
}

impl TileProduct {
    /// Another CTA's part of a subtile is added.
    pub fn add(&mut self, other: &TileProduct, part: u32) {
        self.sums.push((part, other.depth));
        self.lacks_also(other.lacks);
    }

    /// Adds lacks of rows and columns, which an operand has.
    pub fn lacks_also(&mut self, lacks: [(u32, u32); 2]) {
        for (known, lacks) in self.lacks.iter_mut().zip(lacks) {
            known.0 = known.0.min(lacks.0);
        }
    }

    /// Product that all pieces have in common: it lacks what one of them does, and has no more of K than any.
    pub fn of_pieces<'p>(pieces: impl Iterator<Item = &'p TileProduct>) -> TileProduct {
        let mut whole: Option<TileProduct> = None;
        for piece in pieces {
            let Some(whole) = &mut whole else {
                whole = Some(piece.clone());
                continue;
            };
            if (whole.tensors, whole.at, whole.depth) != (piece.tensors, piece.at, piece.depth) {
                whole.depth = (0, 0);
            }
            for (known, lacks) in whole.lacks.iter_mut().zip(piece.lacks) {
                let end = known.1.max(lacks.1);
                let from = [*known, lacks].into_iter().filter(|of| of.0 < of.1);
                *known = (from.map(|of| of.0).min().unwrap_or(end), end);
            }
        }
        whole.unwrap_or_default()
    }

    /// True if a subtile has each part of K once, up to `k`.
    pub fn has_all(&self, part: u32, k: u32) -> bool {
        let sums = self.sums.iter().filter(|(of, _)| *of == part);
        let mut parts: Vec<_> = sums.map(|(_, depth)| *depth).chain([self.depth]).collect();
        parts.sort_unstable();
        let end = parts
            .iter()
            .try_fold(0, |end, (from, to)| (*from == end).then_some(*to));
        end == Some(k)
    }
}

/// Content of a piece of shared memory.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A box of a tensor, and the phase that its load completes on.
    Box(Box4, Phase),
    /// The sum of a box over every rank's memory: this rank's.
    Everywhere(Box4),
    /// A subtile of a product, or of what became of several, and whether it is multiplied by the scales that were made of it.
    Subtile(Box<Fragment>, u32, Elements, bool),
    /// Product of another CTA, and the index of its subtile.
    Partial(TileProduct, u32),
}

/// A phase of a CTA's barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Phase {
    /// The barrier's number.
    pub barrier: usize,
    /// Number that were over when it began.
    pub before: u32,
}
