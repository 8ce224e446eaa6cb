//! One launch of a quantiser, without its memory.

use crate::kernels::{Recipe, Scaling};
use crate::plane::{Block, Layout};
use counterflow_codegen::encoding::Granularity;
use counterflow_runtime::Error;

/// Memory of a job, by the numbers of a step's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct At {
    pub x: usize,
    pub codes: usize,
    pub scales: Option<usize>,
    pub turned: Option<usize>,
    pub turned_scales: Option<usize>,
    pub state: Option<usize>,
    /// Of delayed scaling, that of the step.
    pub amax: Option<usize>,
    pub skip: Option<usize>,
}

/// An order of scales of blocks in memory: rows of a block, whether lines are along rows, and the words of a matrix's plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// The layout's.
    pub name: &'static str,
    pub rows: usize,
    pub rows_last: bool,
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

impl Words {
    pub fn len(&self) -> usize {
        self.padded.iter().product()
    }
}

impl Order {
    pub fn of<L: Layout>() -> Order {
        Order {
            name: L::NAME,
            rows: L::Block::ROWS,
            // Of several blocks either way: of one, both strides may be 1.
            rows_last: L::strides([2, 2])[0] == 1,
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

/// Steps of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Steps {
    /// All of it.
    All,
    /// The amax of a whole tensor.
    Measure,
    /// Casts the elements, by that scale.
    Cast,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub recipe: Recipe,
    /// Rows and columns.
    pub shape: [usize; 2],
    pub order: Option<Order>,
    /// Words of a line of the scales, and of those of the transposed copy, where memory has longer ones than the order.
    pub lines: [Option<usize>; 2],
    /// Rows of the matrix in each piece of the transposed copy, if it is in pieces.
    pub piece: Option<usize>,
    pub steps: Steps,
    pub at: At,
}

impl Job {
    /// Bytes from one row of the transposed copy to the next, or of a piece of it: rows are whole 16 bytes.
    pub fn pitch(&self) -> usize {
        self.piece.unwrap_or(self.shape[0]).next_multiple_of(16)
    }

    /// Bytes of the transposed copy.
    pub fn copied(&self) -> usize {
        match self.piece {
            Some(_) => self.shape[0] * self.shape[1],
            None => self.shape[1] * self.pitch(),
        }
    }

    /// CTAs with a tile of 128×128 elements each. A tensor, a row and a column have a scale even where they are empty, and
    /// lines of scales their padding: somebody must write it.
    pub fn tiles(&self) -> usize {
        let [down, across] = self.shape.map(|size| size.div_ceil(128));
        if self.recipe.each_row {
            return down * across.max(1);
        }
        match self.recipe.scaling {
            Scaling::Current(Granularity::Block(block)) if !block.is_1d() => down * across,
            Scaling::Current(Granularity::PerRow | Granularity::Block(_)) | Scaling::Delayed => {
                down.max(1) * across.max(1)
            }
            Scaling::Current(Granularity::PerTensor) => down * across,
        }
    }

    /// Shape of the matrix on its side.
    pub fn turned_shape(&self) -> [usize; 2] {
        [self.shape[1], self.shape[0]]
    }

    /// Words of the scales.
    pub fn plane(&self) -> Words {
        longer(self.words(self.shape), self.lines[0])
    }

    /// Words of the scales of the transposed copy.
    pub fn turned_plane(&self) -> Words {
        longer(self.words(self.turned_shape()), self.lines[1])
    }

    /// The words that a line of scales has in memory of so many rows and columns, if they are more than the order has: the plane
    /// of a shard has room for more rows than a matrix may have. Of a vector, lines lie one behind the other.
    ///
    /// # Errors
    /// [`Error::Usage`] for lines that the order does not have.
    pub fn line(
        &self,
        name: &str,
        words: Words,
        given: Option<[usize; 2]>,
    ) -> Result<Option<usize>, Error> {
        let (Some(order), Some([held, line])) = (self.order, given) else {
            return Ok(None);
        };
        let (lines, least) = match order.rows_last {
            true => (words.padded[1], words.padded[0]),
            false => (words.padded[0], words.padded[1]),
        };
        // Lengths are counted with 31 bits.
        let may_be_longer = order.rows_last && order.rows == 1;
        let longer = may_be_longer && line >= least && line < 1 << 31;
        let is_vector = line == 1 || held == 1;
        // What is too small is refused where all memory is.
        if lines == 0 || held * line < lines * least || (is_vector && held != lines) {
            return Ok(None);
        }
        if held >= lines && (longer || line == least) {
            return Ok(longer.then_some(line));
        }
        if is_vector {
            return Ok(None);
        }
        let longer = if may_be_longer {
            " or longer lines,"
        } else {
            ""
        };
        Err(Error::Usage {
            what: format!("{name} is {held} x {line}"),
            legal: format!(
                "give {lines} x {least} as the layout has them,{longer} or a vector of {}",
                lines * least
            ),
        })
    }

    fn words(&self, shape: [usize; 2]) -> Words {
        let of_rows = Words {
            strides: [1, 0],
            padded: [shape[0], 1],
        };
        if self.recipe.each_row {
            return of_rows;
        }
        match (self.recipe.scaling, self.order) {
            (
                Scaling::Current(Granularity::BLOCK_1X128 | Granularity::BLOCK_128X128),
                Some(order),
            ) => (order.words)(shape),
            (Scaling::Current(Granularity::PerRow), _) => of_rows,
            (Scaling::Current(_) | Scaling::Delayed, _) => Words {
                strides: [0, 0],
                padded: [1, 1],
            },
        }
    }
}

/// Lines along rows of so many words.
fn longer(words: Words, line: Option<usize>) -> Words {
    line.map_or(words, |line| Words {
        strides: [1, line],
        padded: [line, words.padded[1]],
    })
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
    if let Some(piece) = job.piece
        && (piece == 0 || !piece.is_multiple_of(128) || !rows.is_multiple_of(piece))
    {
        return Err(Error::Usage {
            what: format!("a transposed copy of {rows} rows in pieces of {piece}"),
            legal: "give a multiple of 128 that divides the rows".into(),
        });
    }
    let blocks = match job.recipe.scaling {
        Scaling::Current(Granularity::Block(block)) => Some(block.rows as usize),
        Scaling::Current(Granularity::PerTensor | Granularity::PerRow) | Scaling::Delayed => None,
    };
    if job.order.map(|order| order.rows) != blocks {
        return Err(Error::Usage {
            what: format!("a layout of other blocks than those of {}", job.recipe),
            legal: "one of 1×128 or of 128×128, as the recipe has, and none for other scales"
                .into(),
        });
    }
    let whole = job.recipe.scaling == Scaling::Current(Granularity::PerTensor);
    if job.steps != Steps::All && !whole {
        return Err(Error::Usage {
            what: format!("{} in two steps", job.recipe),
            legal: "only one scale for a whole tensor is measured first".into(),
        });
    }
    Ok(())
}
