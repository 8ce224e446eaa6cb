//! Memory that a kernel will take, before it is loaded.

use super::place::{cells_of, is_alone, scratch_needs};
use super::{FINISHED, Loaded, ZEROS, tables};
use crate::group::{CELLS, PLACES, places};
use crate::held::HeapUse;
use crate::low_latency::{Collective, Sizes};
use counterflow_codegen::plan::{COUNTER_LINE, Plan};
use counterflow_codegen::verify::Series;

/// Bytes of the heap that a kernel takes, for every launch of a series whose largest launch has that plan.
pub(crate) struct HeapBytes {
    /// Bytes of the kernel alone: counter cells, and scratch that no other kernel has.
    pub own: u64,
    /// Bytes that it takes of each place that kernels share, if nobody has it yet.
    pub shared: [u64; PLACES],
    /// Bytes of counter cells that are to be near the shared credits: without room there, it shares nothing.
    pub near: u64,
}

impl Loaded {
    /// Bytes of the heap that a kernel takes when it is loaded: counter cells and scratch for every launch of a series whose
    /// largest launch has that plan. Kernels that share scratch take less.
    pub fn workspace(series: &Series, largest: &Plan) -> u64 {
        let HeapBytes { own, shared, .. } = Loaded::heap_bytes(series, largest);
        own + shared.iter().sum::<u64>()
    }

    /// As [`Loaded::workspace`], of what [`Loaded::load_exchange`] loads.
    pub fn exchange_workspace(
        series: &Series,
        largest: &Plan,
        collective: Option<Collective>,
    ) -> u64 {
        match collective {
            None => Loaded::workspace(series, largest),
            Some(collective) => Loaded::exchange_heap_bytes(collective, series, largest),
        }
    }

    /// Bytes of the heap, by what is shared.
    pub(crate) fn heap_bytes(series: &Series, largest: &Plan) -> HeapBytes {
        let scratch = scratch_needs(series.kernel(), largest);
        let cells = u64::from(cells_of(series).count()) * COUNTER_LINE;
        let mut bytes = HeapBytes {
            own: match is_alone(series.kernel()) {
                true => 0,
                false => HeapUse::by(cells),
            },
            shared: [0; PLACES],
            near: 0,
        };
        for (scratch, place) in scratch.iter().zip(places(&scratch)) {
            *place.map_or(&mut bytes.own, |place| &mut bytes.shared[place]) +=
                HeapUse::by(scratch.bytes);
            if place.is_some() {
                bytes.near = HeapUse::by(cells);
            }
        }
        bytes
    }

    /// Bytes of the heap that an exchange of low latency takes in place of the series' kernel.
    pub(crate) fn exchange_heap_bytes(
        collective: Collective,
        series: &Series,
        largest: &Plan,
    ) -> u64 {
        match Sizes::of_plan(collective, series.kernel(), largest) {
            // Its counters take no cell, and yet the least allocation.
            Ok((sizes, _)) if sizes.world > 1 => HeapUse::by(0) + HeapUse::by(sizes.heap()),
            Ok(_) | Err(_) => 0,
        }
    }

    /// The most bytes that an exchange takes of a GPU's own memory: a word for each CTA.
    pub(crate) fn exchange_own_bytes(series: &Series) -> u64 {
        (series.sms() as usize + ZEROS) as u64 * 4
    }

    /// The most bytes that it takes of a GPU's own memory.
    pub(crate) fn own_bytes(series: &Series) -> u64 {
        // Cells that kernels share may lie anywhere among those of the communicator.
        let cells = u64::from(cells_of(series).count()) + CELLS / COUNTER_LINE;
        cells * tables::MOST as u64 * 4 + (FINISHED + ZEROS) as u64 * 4
    }
}
