//! One launch of a quantiser, without its memory.

use crate::kernels::{Recipe, Scaling};
use crate::plane::{Block, Layout};
use crate::twin::Pieces;
use counterflow_runtime::Error;

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

    /// CTAs with a tile of 128×128 elements each. A tensor, a row and a column have a scale even where they are empty, and
    /// somebody must write it.
    pub fn tiles(&self) -> usize {
        let [down, across] = self.shape.map(|size| size.div_ceil(128));
        if self.recipe.each_row {
            return down * across.max(1);
        }
        match self.recipe.scaling {
            Scaling::Current(Pieces::Rows) | Scaling::Delayed => down.max(1) * across.max(1),
            Scaling::Current(Pieces::Whole | Pieces::OneBy128 | Pieces::Square) => down * across,
        }
    }

    /// The same matrix on its side.
    pub fn turned_shape(&self) -> [usize; 2] {
        [self.shape[1], self.shape[0]]
    }

    /// Words of the scales of a matrix of that shape: its own, or the transposed one.
    pub fn words(&self, shape: [usize; 2]) -> Words {
        let of_rows = Words {
            strides: [1, 0],
            padded: [shape[0], 1],
        };
        if self.recipe.each_row {
            return of_rows;
        }
        match (self.recipe.scaling, self.order) {
            (Scaling::Current(Pieces::OneBy128 | Pieces::Square), Some(order)) => {
                (order.words)(shape)
            }
            (Scaling::Current(Pieces::Rows), _) => of_rows,
            (Scaling::Current(_) | Scaling::Delayed, _) => Words {
                strides: [0, 0],
                padded: [1, 1],
            },
        }
    }
}

/// Rejects matrices that no quantiser takes.
pub(crate) fn sizes([rows, columns]: [usize; 2]) -> Result<(), Error> {
    let refused = |legal: &str| {
        Err(Error::Usage {
            what: format!("a quantiser for {rows} rows of {columns} elements"),
            legal: legal.into(),
        })
    };
    if !columns.is_multiple_of(16) {
        return refused("a multiple of 16 elements in a row, as products of FP8 need");
    }
    // Rows, columns and CTAs are counted with 31 bits.
    let tiles = [rows, columns].map(|size| size.div_ceil(128).max(1));
    if rows.max(columns) >= 1 << 31 || tiles[0] * tiles[1] >= 1 << 31 {
        return refused("less than 2^31 rows, columns, and tiles of 128×128: quantise it in parts");
    }
    Ok(())
}

/// Rejects a launch that its quantiser was not built for.
pub(crate) fn fits(job: &Job, most: [usize; 2]) -> Result<(), Error> {
    sizes(job.shape)?;
    let [rows, columns] = job.shape;
    if rows > most[0] || columns > most[1] {
        return Err(Error::Usage {
            what: format!("{rows} rows of {columns} elements"),
            legal: format!("{most:?} at most: build the quantiser for more"),
        });
    }
    let blocks = match job.recipe.scaling {
        Scaling::Current(Pieces::OneBy128) => Some(1),
        Scaling::Current(Pieces::Square) => Some(128),
        Scaling::Current(Pieces::Whole | Pieces::Rows) | Scaling::Delayed => None,
    };
    if job.order.map(|order| order.rows) != blocks {
        return Err(Error::Usage {
            what: format!("a layout of other blocks than those of {}", job.recipe),
            legal: "one of 1×128 or of 128×128, as the recipe has, and none for other scales"
                .into(),
        });
    }
    let whole = job.recipe.scaling == Scaling::Current(Pieces::Whole);
    if job.steps != Steps::All && !whole {
        return Err(Error::Usage {
            what: format!("{} in two steps", job.recipe),
            legal: "only one scale for a whole tensor is measured first".into(),
        });
    }
    Ok(())
}
