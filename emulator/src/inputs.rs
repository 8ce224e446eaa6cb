//! Every rank's inputs before a launch, in f64, rounded to their type.

use super::outcome::Input;
use super::sizes::Sizes;
use super::threads::{on_each, threads};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::Extent;
use ndarray::{ArcArray2, Array2, Axis};

/// By rank and tensor: the rank's own shard of a gathered tensor, all of any other tensor whose contents count,
/// otherwise nothing. Each number is one of f32.
pub(super) struct Inputs {
    tables: Vec<ArcArray2<f32>>,
    gathered: Vec<bool>,
    world: usize,
}

/// Rounds numbers to that type.
fn round(dtype: Dtype, values: &mut [f32]) {
    /// Values of a block.
    const BLOCK: usize = 1 << 16;
    /// Multiply-adds that take as long as to round one.
    const EACH: u64 = 32;
    let threads = threads(EACH * values.len() as u64);
    on_each(
        threads,
        values.chunks_mut(BLOCK),
        || (),
        |(), block| dtype.round_all(block),
    );
}

/// Memory of the inputs of one launch, which the reference of the next one has again: to map hundreds of megabytes costs as much
/// as to fill them.
///
/// ```
/// use counterflow_emulator::{self as interp, Tables};
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (series, plan) = example::proven();
/// let mut tables = Tables::default();
/// for launch in 0..2 {
///     let again = interp::reference_in(&mut tables, series.kernel(), &plan, launch, interp::uniform(7))?;
///     assert_eq!(again, interp::reference(series.kernel(), &plan, launch, interp::uniform(7))?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Tables(Vec<Vec<f32>>);

impl Tables {
    /// So many numbers, all zero.
    fn zeros(&mut self, count: usize) -> Vec<f32> {
        let fits = |at: &usize| self.0[*at].capacity() >= count;
        let found = (0..self.0.len()).filter(fits);
        let Some(at) = found.min_by_key(|at| self.0[*at].capacity()) else {
            // New memory is zero already.
            return vec![0.0; count];
        };
        let mut table = self.0.swap_remove(at);
        table.clear();
        table.resize(count, 0.0);
        table
    }
}

impl Inputs {
    /// Inputs in memory of `tables`, which gets it back by [`Inputs::give_back`].
    pub fn new(
        tables: &mut Tables,
        program: &Program,
        sizes: &Sizes<'_>,
        launch: usize,
        mut fill: impl FnMut(Input<'_>, &mut [f32]),
    ) -> Inputs {
        let (memory, mut tables) = (tables, Vec::new());
        for rank in 0..sizes.world {
            for (index, tensor) in program.tensors.iter().enumerate() {
                if !tensor.usage.counts_before() {
                    tables.push(ArcArray2::zeros((0, 0)));
                    continue;
                }
                let rows = if tensor.usage.is_gathered() {
                    sizes.shard(index, rank)
                } else {
                    sizes.held(index, rank)
                };
                let (rows, columns) = (rows.start..rows.end, sizes.columns(index));
                let mut values = memory.zeros(rows.len() * columns as usize);
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
                round(sizes.dtype(index), &mut values);
                let table = Array2::from_shape_vec((rows.len(), columns as usize), values);
                let table = table.expect("as many values as rows by columns");
                tables.push(table.into_shared());
            }
        }
        // What a launch does not need is not kept for the next one.
        memory.0.clear();
        let gathered = |tensor: &counterflow_codegen::program::Tensor| tensor.usage.is_gathered();
        Inputs {
            tables,
            gathered: program.tensors.iter().map(gathered).collect(),
            world: sizes.world as usize,
        }
    }

    /// Gives the memory back that nobody else has.
    pub fn give_back(self, to: &mut Tables) {
        let alone = self
            .tables
            .into_iter()
            .filter_map(|table| table.try_into_owned_nocopy().ok());
        to.0.extend(alone.map(|table| table.into_raw_vec_and_offset().0));
    }

    /// The rows that the caller fills on that rank.
    pub fn own(&self, rank: u32, tensor: usize) -> &ArcArray2<f32> {
        &self.tables[rank as usize * self.gathered.len() + tensor]
    }

    /// Numbers that a rank must see: of a gathered tensor the rows of all ranks.
    pub fn seen(&self, rank: u32, tensor: usize) -> Array2<f64> {
        if !self.gathered[tensor] {
            return self.own(rank, tensor).mapv(f64::from);
        }
        let shards: Vec<_> = (0..self.world)
            .map(|rank| self.own(rank as u32, tensor).mapv(f64::from))
            .collect();
        let shards: Vec<_> = shards.iter().map(|shard| shard.view()).collect();
        ndarray::concatenate(Axis(0), &shards).expect("shards have the same columns")
    }
}
