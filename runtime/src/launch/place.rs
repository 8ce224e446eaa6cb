//! What a kernel needs of the heap for all its launches: counter cells and scratch.

use super::cells::Cells;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::group::{Needs, Placed, Readers, Scratch};
use crate::undo::{Fix, undone};
use counterflow_codegen::kernel::{Kernel, Purpose};
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::verify::{self, Series};
use std::sync::Arc;

/// The kernel's scratch tensors.
pub(super) fn scratch_of(kernel: &Kernel) -> impl Iterator<Item = TensorId> {
    let buffers = kernel.buffers.iter().zip(0..);
    buffers.filter_map(|(buffer, index)| buffer.is_scratch().then_some(TensorId(index)))
}

/// Its counters' cells, one after another.
pub(super) fn cells_of(series: &Series) -> Cells {
    let counters = (0..series.kernel().counters.len()).map(|index| CounterId(index as u16));
    let cells = counters.map(|counter| series.largest().counter_cells(counter));
    Cells::new(cells.collect())
}

/// Counter cells and scratch for every launch of a series. Collective.
pub(super) fn place(
    rank: &Communicator,
    series: &Series,
    copies: bool,
) -> Result<(Cells, Arc<Placed>), Error> {
    let kernel = series.kernel();
    let most = series.plan(series.most())?;
    let cells = cells_of(series);
    let pulled = verify::pulled(kernel);
    let credit = |tensor| {
        let counters = kernel.counters.iter();
        counters
            .map(|counter| counter.purpose)
            .position(|purpose| purpose == Purpose::Free(tensor))
    };
    let scratch = scratch_of(kernel).map(|tensor| {
        let name = &kernel.buffers[tensor.index()].name;
        let readers = match pulled.contains(&tensor) {
            true => Readers::Everyone,
            false => Readers::Owner,
        };
        Scratch {
            name: name.as_str().into(),
            bytes: most.bytes(kernel, tensor),
            // The host counts the cells of a kernel whose data it moves, launch by launch, and knows no other kernel.
            readers: (credit(tensor).is_some() && rank.world() > 1 && !copies).then_some(readers),
        }
    });
    let placed = rank.place(Needs {
        kernel: kernel.name.as_str().into(),
        most: series.most().to_string().into(),
        plan: most.hash,
        cells: cells.count(),
        scratch: scratch.collect(),
    })?;
    let shared = scratch_of(kernel)
        .zip(&placed.scratch)
        .filter(|_| !undone(Fix::Credits));
    let shared = shared.filter_map(|(tensor, (_, first))| Some((credit(tensor)?, (*first)?)));
    Ok((cells.placed(placed.first, shared), placed.clone()))
}
