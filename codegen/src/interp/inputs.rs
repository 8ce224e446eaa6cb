//! Every rank's inputs before a launch, in f64, rounded to their type.

use super::outcome::Input;
use super::sizes::Sizes;
use super::threads::{on_each, threads};
use crate::dtype::Dtype;
use crate::program::{Program, TensorId};
use crate::shape::Extent;
use ndarray::{ArcArray2, Array2, ArrayView2, Axis};

/// By rank and tensor: the rank's own chunk of a gathered tensor, all of any other tensor whose contents count,
/// otherwise nothing.
pub(super) struct Inputs {
    tables: Vec<ArcArray2<f64>>,
    gathered: Vec<bool>,
    world: usize,
}

/// Rounds numbers to that type.
fn rounded(dtype: Dtype, values: &[f32]) -> Vec<f64> {
    /// Values of a block.
    const BLOCK: usize = 1 << 16;
    /// Multiply-adds that take as long as to round one.
    const EACH: u64 = 32;
    let mut all = vec![0.0; values.len()];
    let blocks = values.chunks(BLOCK).zip(all.chunks_mut(BLOCK));
    let threads = threads(EACH * values.len() as u64);
    on_each(
        threads,
        blocks,
        || (),
        |(), (from, to)| {
            for (from, to) in from.iter().zip(to) {
                *to = f64::from(dtype.round(*from));
            }
        },
    );
    all
}

impl Inputs {
    pub fn new(
        program: &Program,
        sizes: &Sizes<'_>,
        launch: usize,
        mut fill: impl FnMut(Input<'_>, &mut [f32]),
    ) -> Inputs {
        let mut tables = Vec::new();
        // One tensor after another: to map so much memory costs more than to fill it.
        let mut values = Vec::new();
        for rank in 0..sizes.world {
            for (index, tensor) in program.tensors.iter().enumerate() {
                if !tensor.usage.counts_before() {
                    tables.push(ArcArray2::zeros((0, 0)));
                    continue;
                }
                let rows = if tensor.usage.is_gathered() {
                    sizes.chunk(index, rank)
                } else {
                    sizes.held(index, rank)
                };
                let (rows, columns) = (rows.start..rows.end, sizes.columns(index));
                values.clear();
                values.resize(rows.len() * columns as usize, 0.0);
                let input = Input {
                    launch,
                    rank,
                    tensor: TensorId(index as u16),
                    name: &tensor.name,
                    rows: Extent {
                        start: rows.start,
                        end: rows.end,
                    },
                    columns,
                };
                fill(input, &mut values);
                let rounded = rounded(sizes.dtype(index), &values);
                let table = Array2::from_shape_vec((rows.len(), columns as usize), rounded);
                let table = table.expect("as many values as rows by columns");
                tables.push(table.into_shared());
            }
        }
        let gathered = |tensor: &crate::program::Tensor| tensor.usage.is_gathered();
        Inputs {
            tables,
            gathered: program.tensors.iter().map(gathered).collect(),
            world: sizes.world as usize,
        }
    }

    /// The rows that the caller fills on that rank.
    pub fn own(&self, rank: u32, tensor: usize) -> &ArcArray2<f64> {
        &self.tables[rank as usize * self.gathered.len() + tensor]
    }

    /// Numbers that a rank must see: of a gathered tensor the rows of all ranks.
    pub fn seen(&self, rank: u32, tensor: usize) -> Array2<f64> {
        if !self.gathered[tensor] {
            return self.own(rank, tensor).to_owned();
        }
        let chunk = |rank: usize| -> ArrayView2<'_, f64> { self.own(rank as u32, tensor).view() };
        let chunks: Vec<_> = (0..self.world).map(chunk).collect();
        ndarray::concatenate(Axis(0), &chunks).expect("chunks have the same columns")
    }
}
