//! The grids on which memory is tracked.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::shape::Extent;
use std::collections::BTreeSet;
use std::ops::Range;

/// A buffer's rows and columns, divided wherever a rectangle of some plan begins or ends. All elements of a cell of
/// this grid have the same history.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Cuts {
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
            let shards = geometry.shards(buffer.rows);
            let mut rows = BTreeSet::from([0, geometry.size(buffer.rows)]);
            rows.extend((0..shards).map(|shard| geometry.shard(buffer.rows, shard).start));
            (rows, BTreeSet::from([0, geometry.size(buffer.columns)]))
        })
        .collect();
    for plan in plans {
        for step in plan.agents.iter().flat_map(|agent| &agent.steps) {
            for (_, plane) in step.kind.planes(kernel) {
                let (rows, columns) = &mut cuts[plane.tensor.index()];
                rows.extend([plane.rows.start, plane.rows.end]);
                columns.extend([plane.columns.start, plane.columns.end]);
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
