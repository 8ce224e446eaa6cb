//! Memory layouts of block scales. Each layout in use is a type of its own: scales in swapped order look like a
//! loss of precision, not like a mistake.

use std::marker::PhantomData;

/// Blocks of elements that share a scale, as far as layouts differ.
///
/// ```
/// use counterflow_quantise::{Layout, OneByBlock, RowsLast};
///
/// fn words<L: Layout<Block = OneByBlock>>(rows: usize, depth: usize) -> usize {
///     L::len(L::pieces([rows, depth]))
/// }
/// assert_eq!(words::<RowsLast>(5, 256), 2 * 8);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneByBlock;

/// Blocks of 128×128 elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Square;

/// A block of elements with one scale.
pub trait Block: Copy {
    /// Rows of a block. It has 128 elements along K.
    const ROWS: usize;
}

impl Block for OneByBlock {
    const ROWS: usize = 1;
}

impl Block for Square {
    const ROWS: usize = 128;
}

/// An order of scales in memory. `pieces` are the blocks along rows and along K.
///
/// ```
/// use counterflow_quantise::{Layout, SquarePadded};
///
/// let pieces = SquarePadded::pieces([256, 640]);
/// assert_eq!((pieces, SquarePadded::padded(pieces), SquarePadded::len(pieces)), ([2, 5], [2, 8], 16));
/// assert_eq!(SquarePadded::strides(pieces), [8, 1]);
/// assert_eq!(SquarePadded::at(pieces, [1, 4]), 12);
/// ```
pub trait Layout: Copy {
    /// Block of elements that share a scale.
    type Block: Block;

    /// Name in reports.
    const NAME: &'static str;

    /// Blocks along rows and along K, with those that are padding.
    fn padded(pieces: [usize; 2]) -> [usize; 2];

    /// Words from one block to the next along rows, and along K.
    fn strides(pieces: [usize; 2]) -> [usize; 2];

    /// Blocks along rows and along K of a matrix of so many elements.
    fn pieces([rows, depth]: [usize; 2]) -> [usize; 2] {
        [rows.div_ceil(Self::Block::ROWS), depth.div_ceil(128)]
    }

    /// Words in memory.
    fn len(pieces: [usize; 2]) -> usize {
        Self::padded(pieces).iter().product()
    }

    /// The word of a block.
    fn at(pieces: [usize; 2], block: [usize; 2]) -> usize {
        let strides = Self::strides(pieces);
        block[0] * strides[0] + block[1] * strides[1]
    }
}

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident: $block:ident, $padded:expr, $strides:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name;

        impl Layout for $name {
            type Block = $block;
            const NAME: &'static str = stringify!($name);
            fn padded(pieces: [usize; 2]) -> [usize; 2] {
                let padded: fn([usize; 2]) -> [usize; 2] = $padded;
                padded(pieces)
            }
            fn strides(pieces: [usize; 2]) -> [usize; 2] {
                let strides: fn([usize; 2]) -> [usize; 2] = $strides;
                strides(Self::padded(pieces))
            }
        }
    )*};
}

layouts! {
    /// 1×128: `[⌈K/128⌉][rows padded to 4]`, rows next to each other. TransformerEngine, DeepGEMM and cuBLASLt read it.
    RowsLast: OneByBlock, |[rows, blocks]| [rows.next_multiple_of(4), blocks], |[rows, _]| [1, rows];
    /// 1×128: `[rows][⌈K/128⌉]`. Other quantisers write it.
    BlocksLast: OneByBlock, |pieces| pieces, |[_, blocks]| [blocks, 1];
    /// 128×128: `[⌈N/128⌉][⌈K/128⌉]`. DeepGEMM reads it, and checkpoints hold it.
    SquareByRow: Square, |pieces| pieces, |[_, blocks]| [blocks, 1];
    /// 128×128: `[⌈N/128⌉][⌈K/128⌉ padded to 4]`. TransformerEngine and cuBLASLt read it.
    SquarePadded: Square, |[rows, blocks]| [rows, blocks.next_multiple_of(4)], |[_, blocks]| [blocks, 1];
    /// 128×128: `[⌈K/128⌉][⌈N/128⌉]`. CUTLASS reads it.
    SquareByColumn: Square, |pieces| pieces, |[rows, _]| [1, rows];
}

/// The scales of a matrix's blocks, as memory holds them. Padding is zero.
///
/// ```
/// use counterflow_quantise::{BlocksLast, Plane, RowsLast};
///
/// let theirs = Plane::<BlocksLast>::from_memory([3, 256], vec![0.0, 0.1, 1.0, 1.1, 2.0, 2.1]).expect("3 rows of 2");
/// let ours: Plane<RowsLast> = theirs.convert();
/// assert_eq!(ours.values(), [0.0, 1.0, 2.0, 0.0, 0.1, 1.1, 2.1, 0.0]);
/// assert_eq!((ours.pieces(), ours.at([2, 1])), ([3, 2], 2.1));
/// assert_eq!(ours.convert::<BlocksLast>(), theirs);
/// assert_eq!(Plane::<RowsLast>::of([1, 128], |[row, block]| (row + block) as f32).values(), [0.0; 4]);
/// ```
///
/// Scales of 1×128 do not become scales of 128×128:
///
/// ```compile_fail
/// use counterflow_quantise::{BlocksLast, Plane, SquareByRow};
///
/// fn wrong(plane: &Plane<BlocksLast>) -> Plane<SquareByRow> {
///     plane.convert()
/// }
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Plane<L> {
    pieces: [usize; 2],
    values: Vec<f32>,
    layout: PhantomData<L>,
}

impl<L: Layout> Plane<L> {
    /// Plane of a matrix with so many rows and elements along K, each scale by its block.
    pub fn of(shape: [usize; 2], scale: impl Fn([usize; 2]) -> f32) -> Plane<L> {
        let pieces = L::pieces(shape);
        let mut values = vec![0.0; L::len(pieces)];
        for row in 0..pieces[0] {
            for block in 0..pieces[1] {
                values[L::at(pieces, [row, block])] = scale([row, block]);
            }
        }
        Plane {
            pieces,
            values,
            layout: PhantomData,
        }
    }

    /// Reads memory. None if a matrix of that shape has another number of words. Padding may be anything.
    pub fn from_memory(shape: [usize; 2], values: Vec<f32>) -> Option<Plane<L>> {
        let pieces = L::pieces(shape);
        (values.len() == L::len(pieces)).then_some(Plane {
            pieces,
            values,
            layout: PhantomData,
        })
    }

    /// Blocks along rows and along K.
    pub fn pieces(&self) -> [usize; 2] {
        self.pieces
    }

    /// The scale of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn at(&self, block: [usize; 2]) -> f32 {
        assert!(
            block[0] < self.pieces[0] && block[1] < self.pieces[1],
            "block {block:?} of {:?}",
            self.pieces
        );
        self.values[L::at(self.pieces, block)]
    }

    /// All words, padding included.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Puts the scales into another layout of the same blocks.
    pub fn convert<M: Layout<Block = L::Block>>(&self) -> Plane<M> {
        let rows = self.pieces[0] * <L::Block as Block>::ROWS;
        Plane::of([rows, self.pieces[1] * 128], |block| self.at(block))
    }
}
