//! How much memory a kernel takes, before it is loaded.

use super::place::{cells_of, scratch_of};
use super::{FINISHED, Loaded, ZEROS, tables};
use crate::group::CELLS;
use crate::held::HeapUse;
use counterflow_codegen::plan::{COUNTER_LINE, Plan};
use counterflow_codegen::verify::Series;

impl Loaded {
    /// Bytes of the heap that a kernel takes when it is loaded: counter cells and scratch for every launch of a series whose
    /// largest launch has that plan. Kernels that share scratch take less.
    pub fn workspace(series: &Series, largest: &Plan) -> u64 {
        let kernel = series.kernel();
        let scratch = scratch_of(kernel).map(|tensor| largest.bytes(kernel, tensor));
        let each = scratch.chain([u64::from(cells_of(series).count()) * COUNTER_LINE]);
        each.map(HeapUse::by).sum()
    }

    /// The most bytes that it takes of a GPU's own memory.
    pub(crate) fn own_bytes(series: &Series) -> u64 {
        // Cells that kernels share may lie anywhere among those of the communicator.
        let cells = u64::from(cells_of(series).count()) + CELLS / COUNTER_LINE;
        cells * tables::MOST as u64 * 4 + (FINISHED + ZEROS) as u64 * 4
    }
}
