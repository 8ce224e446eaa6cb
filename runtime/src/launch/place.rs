//! A kernel's own part of the heap, for all its launches: counter cells and scratch.

use super::cells::Cells;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::group::{Needs, Placed, Readers, Scratch};
use crate::low_latency::Sizes;
use crate::undo::{Fix, undone};
use counterflow_codegen::kernel::{Kernel, Purpose};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{CounterId, TensorId};
use counterflow_codegen::verify::{self, Checked, Series};
use std::sync::Arc;

/// The kernel's scratch tensors.
pub(super) fn scratch_of(kernel: &Kernel) -> impl Iterator<Item = TensorId> {
    let buffers = kernel.buffers.iter().zip(0..);
    buffers.filter_map(|(buffer, index)| buffer.is_scratch().then_some(TensorId(index)))
}

/// Cells of the series' counters, one after another.
pub(super) fn cells_of(series: &Series) -> Cells {
    let counters = (0..series.kernel().counters.len()).map(|index| CounterId(index as u16));
    let cells = counters.map(|counter| series.largest().counter_cells(counter));
    Cells::new(cells.collect())
}

/// The counter of the credit of a scratch tensor.
fn credit(kernel: &Kernel, tensor: TensorId) -> Option<usize> {
    let mut counters = kernel.counters.iter().map(|counter| counter.purpose);
    counters.position(|purpose| purpose == Purpose::Free(tensor))
}

/// True if the host moves data of a kernel.
pub(super) fn copies(kernel: &Kernel) -> bool {
    kernel.roles.iter().any(|role| role.kind.sequential())
}

/// True if a kernel has nothing that ranks must agree on: each loads and launches it by itself.
pub(crate) fn is_alone(kernel: &Kernel) -> bool {
    kernel.counters.is_empty() && scratch_of(kernel).next().is_none() && !copies(kernel)
}

/// A kernel's scratch for every launch of a series whose largest has that plan.
pub(super) fn scratch_needs(kernel: &Checked<Kernel>, most: &Plan) -> Vec<Scratch> {
    let pulled = verify::pulled(kernel);
    let copies = copies(kernel);
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
            readers: (credit(kernel, tensor).is_some() && kernel.variant.world > 1 && !copies)
                .then_some(readers),
        }
    });
    scratch.collect()
}

/// Memory that peers write in an exchange of low latency, for every launch of a series whose largest has these sizes. Collective.
pub(super) fn place_slots(
    rank: &Communicator,
    series: &Series,
    (largest, rows): (&Sizes, &str),
) -> Result<(Cells, Arc<Placed>), Error> {
    let none = Cells::new(Vec::new());
    if rank.world() == 1 {
        return Ok((none, Arc::new(Placed::alone())));
    }
    let name = series.kernel().name.as_str();
    let placed = rank.place(Needs {
        kernel: name.into(),
        most: most(series, rows),
        plan: series.plan(series.most())?.hash,
        cells: 0,
        scratch: vec![Scratch {
            name: format!("rows of {name}").into(),
            bytes: largest.heap(),
            readers: None,
        }],
    })?;
    Ok((none, placed))
}

/// The largest launches of an op, as ranks compare them.
fn most(series: &Series, rows: &str) -> Arc<str> {
    match rows.contains(',') {
        true => format!("{} in buckets of {rows} rows", series.most()),
        false => series.most().to_string(),
    }
    .into()
}

/// Counter cells and scratch for every launch of a series. Collective, unless the kernel is alone.
pub(super) fn place(
    rank: &Communicator,
    series: &Series,
    rows: &str,
) -> Result<(Cells, Arc<Placed>), Error> {
    let kernel = series.kernel();
    let cells = cells_of(series);
    if is_alone(kernel) {
        return Ok((cells, Arc::new(Placed::alone())));
    }
    let most = series.plan(series.most())?;
    let placed = rank.place(Needs {
        kernel: kernel.name.as_str().into(),
        most: self::most(series, rows),
        plan: most.hash,
        cells: cells.count(),
        scratch: scratch_needs(kernel, &most),
    })?;
    let shared = scratch_of(kernel)
        .zip(&placed.scratch)
        .filter(|_| !undone(Fix::Credits));
    let shared =
        shared.filter_map(|(tensor, (_, first))| Some((credit(kernel, tensor)?, (*first)?)));
    Ok((cells.placed(placed.first, shared), placed.clone()))
}
