//! One launch of a quantiser, without its memory.

use crate::kernels::{Recipe, Scaling};
use crate::plane::{Block, Layout};
use crate::twin::Pieces;

/// Its memory, by the numbers of a step's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct At {
    pub x: usize,
    pub codes: usize,
    pub scales: Option<usize>,
    pub turned: Option<usize>,
    pub turned_scales: Option<usize>,
    pub state: Option<usize>,
    pub skip: Option<usize>,
}

/// An order of scales of blocks in memory: rows of a block, and the words of a matrix's plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub rows: usize,
    pub words: fn([usize; 2]) -> Words,
}

/// The words of a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Words {
    /// From one block to the next along rows and along K.
    pub strides: [usize; 2],
    /// Blocks along rows and along K, with padding.
    pub padded: [usize; 2],
}

impl Order {
    pub fn of<L: Layout>() -> Order {
        Order {
            rows: L::Block::ROWS,
            words: |shape| {
                let pieces = L::pieces(shape);
                Words {
                    strides: L::strides(pieces),
                    padded: L::padded(pieces),
                }
            },
        }
    }
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Steps {
    /// All of it.
    All,
    /// The amax of a whole tensor.
    Measure,
    /// What comes after that.
    Cast,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub recipe: Recipe,
    /// Rows and columns.
    pub shape: [usize; 2],
    pub order: Option<Order>,
    pub steps: Steps,
    pub at: At,
}

impl Job {
    /// Bytes from one row of the transposed copy to the next: rows are whole 16 bytes.
    pub fn pitch(&self) -> usize {
        self.shape[0].next_multiple_of(16)
    }

    /// The same matrix on its side.
    pub fn turned_shape(&self) -> [usize; 2] {
        [self.shape[1], self.shape[0]]
    }

    /// Words of the scales of a matrix of that shape: its own, or the transposed one.
    pub fn words(&self, shape: [usize; 2]) -> Words {
        match (self.recipe.scaling, self.order) {
            (Scaling::Current(Pieces::OneBy128 | Pieces::Square), Some(order)) => {
                (order.words)(shape)
            }
            (Scaling::Current(Pieces::Rows), _) => Words {
                strides: [1, 0],
                padded: [shape[0], 1],
            },
            (Scaling::Current(_) | Scaling::Delayed, _) => Words {
                strides: [0, 0],
                padded: [1, 1],
            },
        }
    }
}
