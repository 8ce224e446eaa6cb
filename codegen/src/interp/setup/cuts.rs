//! The grids on which memory is tracked.

use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::shape::Extent;
use crate::unroll::{EVERYWHERE, Span, StepKind};
use std::collections::BTreeSet;
use std::ops::Range;

/// A buffer's rows and columns, divided wherever a rectangle of some plan begins or ends. All elements of a cell of
/// this grid have the same history.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::interp) struct Cuts {
    pub rows: Vec<u32>,
    pub columns: Vec<u32>,
}

impl Cuts {
    /// The grid rows or columns that an extent covers. Both ends must be divisions.
    pub fn cover(cuts: &[u32], extent: Extent) -> Range<usize> {
        cuts.partition_point(|cut| *cut < extent.start)
            ..cuts.partition_point(|cut| *cut < extent.end)
    }
}

/// The rectangles that a step accesses.
fn spans(kernel: &Kernel, kind: &StepKind) -> [Option<Span>; 4] {
    match kind {
        StepKind::Wait { .. } | StepKind::Signal { .. } => [None; 4],
        StepKind::Copy { dst, src } => [Some(*dst), Some(*src), None, None],
        StepKind::Dot { a, b, .. } => {
            let [of_a, of_b] = [a, b].map(|operand| kernel.scales_read(operand));
            [Some(*a), Some(*b), of_a, of_b]
        }
        StepKind::Reduce { from, .. } => [Some(*from), kernel.scales_of_tile(from), None, None],
        StepKind::OwnTerm { of, .. } => [Some(*of), None, None, None],
        StepKind::Load { from, .. } => [Some(*from), None, None, None],
        StepKind::Store { dst, scales, .. } => [Some(*dst), *scales, None, None],
    }
}

/// One set of grids for each distinct geometry, divided by every plan that has it.
pub(super) fn grids(kernel: &Kernel, plans: &[Vec<&Plan>]) -> (Vec<Vec<Cuts>>, Vec<Vec<usize>>) {
    let mut distinct: Vec<Vec<&Plan>> = Vec::new();
    let grid_of = plans
        .iter()
        .map(|plans| {
            plans
                .iter()
                .map(|plan| {
                    let same = |known: &Vec<&Plan>| {
                        known[0].geometry == plan.geometry && known[0].shape.ld == plan.shape.ld
                    };
                    let index = distinct.iter().position(same).unwrap_or_else(|| {
                        distinct.push(Vec::new());
                        distinct.len() - 1
                    });
                    if !distinct[index]
                        .iter()
                        .any(|known| std::ptr::eq(*known, *plan))
                    {
                        distinct[index].push(plan);
                    }
                    index
                })
                .collect()
        })
        .collect();
    let grids = distinct
        .iter()
        .map(|plans| grids_of(kernel, plans))
        .collect();
    (grids, grid_of)
}

fn grids_of(kernel: &Kernel, plans: &[&Plan]) -> Vec<Cuts> {
    let geometry = &plans[0].geometry;
    let mut cuts: Vec<(BTreeSet<u32>, BTreeSet<u32>)> = kernel
        .buffers
        .iter()
        .map(|buffer| {
            let chunks = geometry.chunks(buffer.rows);
            let mut rows = BTreeSet::from([0, geometry.size(buffer.rows)]);
            rows.extend((0..chunks).map(|chunk| geometry.chunk(buffer.rows, chunk).start));
            (rows, BTreeSet::from([0, geometry.size(buffer.columns)]))
        })
        .collect();
    for plan in plans {
        for step in plan.agents.iter().flat_map(|agent| &agent.steps) {
            for span in spans(kernel, &step.kind).into_iter().flatten() {
                let (rows, columns) = &mut cuts[span.buffer.index()];
                rows.extend([span.rows.start, span.rows.end]);
                columns.extend([span.columns.start, span.columns.end]);
            }
        }
    }
    cuts.into_iter()
        .map(|(rows, columns)| Cuts {
            rows: rows.into_iter().collect(),
            columns: columns.into_iter().collect(),
        })
        .collect()
}

/// The ranks whose memory a span is in.
pub(in crate::interp) fn homes(span: &Span, world: usize) -> Range<u16> {
    if span.home == EVERYWHERE {
        0..world as u16
    } else {
        span.home..span.home + 1
    }
}
