//! Which waits stand at the slabs of K of the product behind them.

use super::mistake::mistake;
use super::placer::Placer;
use crate::kernel::{Cells, Op, OpKind};
use crate::program::{CellIndex, CounterDim, Loc, PartitionId, Stmt, StmtKind};

impl Placer<'_> {
    /// The slabs of K by which a wait takes turns with the products behind it, `rest`; `None` where its cells count chunks of all
    /// columns, which it waits for before the product. A slab's columns are whole on each rank: `cells` names no others.
    pub(super) fn slabs(&mut self, cells: &Cells, rest: &[Stmt], at: Loc) -> Option<PartitionId> {
        let mut behind = rest.iter().skip_while(|stmt| waits_by_slab(stmt));
        let Some(StmtKind::Dot { a, .. }) = behind.next().map(|stmt| &stmt.kind) else {
            self.found.push(
                mistake(at, "a wait slab by slab, and no product behind it").hint(
                    "a product waits for the slabs of an operand as it comes to them: `dot(x[t].wait(arrived[t.rows()]), w[t])`",
                ),
            );
            return None;
        };
        let k = self.matched.buffers.get(a.tensor.index())?.columns;
        let dims = &self.program.counters[cells.counter.index()].dims;
        let divides = |(index, dim): (&CellIndex, &CounterDim)| match (index, dim) {
            (CellIndex::Along(..), CounterDim::Items(of)) => {
                let of_k = self.matched.partitions.get(of.index())?;
                (of_k.columns == k && of_k.column_block.is_some()).then_some(*of)
            }
            (
                CellIndex::Along(..) | CellIndex::Item(_) | CellIndex::Rank(_),
                CounterDim::Items(_) | CounterDim::World | CounterDim::Count(_),
            ) => None,
        };
        cells.index.iter().zip(dims).find_map(divides)
    }

    /// Whether an op is a wait slab by slab that the products before it have waited with already.
    pub(super) fn waited_by_slab(&self, before: &[Op], op: &Op) -> bool {
        let by_slab = |op: &&Op| op.kind.slabs().is_some();
        let dots = |op: &&Op| matches!(op.kind, OpKind::Dot { .. });
        let mut waits = before.iter().rev().skip_while(dots).take_while(by_slab);
        by_slab(&op) && waits.any(|wait| wait.kind == op.kind)
    }

    /// Reports waits of one product for slabs of several widths: they take no turns.
    pub(super) fn one_width(&mut self, before: &[Op], of: PartitionId, at: Loc) {
        let Some(OpKind::Wait {
            slabs: Some(other), ..
        }) = before.last().map(|op| &op.kind)
        else {
            return;
        };
        let width = |id: PartitionId| {
            self.matched.partitions[id.index()]
                .column_block
                .unwrap_or(0)
        };
        let (one, other) = (width(*other), width(of));
        if one != other {
            let message = format!("one product waits for slabs of {one} and of {other} columns");
            self.found.push(
                mistake(at, message).hint(
                    "slabs of one width, or a wait for all of one operand before the product",
                ),
            );
        }
    }
}

fn waits_by_slab(stmt: &Stmt) -> bool {
    matches!(stmt.kind, StmtKind::Wait { by_slab: true, .. })
}
