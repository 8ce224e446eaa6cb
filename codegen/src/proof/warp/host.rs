//! The host's part of a launch: what it enqueues for a copy engine, one after another, as the steps of an agent.

use super::case::Case;
use super::step::{Box4, Kind, Step};
use crate::diag::Diagnostic;
use crate::region::Span;
use crate::unroll::{self, StepKind};
use crate::warp::{Node, View};

/// A stream's operation stands for no node of a warp's.
static NONE: Node = Node::SyncWarp;

/// Steps of a rank's stream in a launch of a shape; none without a copy engine.
///
/// # Errors
/// A rank or cell that is out of bounds.
pub(super) fn steps<'a>(
    case: &Case<'a>,
    of: usize,
    rank: u32,
) -> Result<Vec<Step<'a>>, Box<Diagnostic>> {
    let Some(role) = case.roles.host else {
        return Ok(Vec::new());
    };
    let (plan, counters) = (case.plan(of), &case.pipeline.kernel.counters);
    let agent = unroll::agent(&case.pipeline.kernel, &plan.geometry, rank, role)?;
    let mut steps = Vec::new();
    for step in &agent.steps {
        let mut kinds = Vec::new();
        match step.kind {
            StepKind::Wait {
                counter,
                cell,
                at_least,
            } => {
                let arrivals = plan.arrivals.target(rank as u16, counter, cell, at_least);
                kinds.push(Kind::CounterWait {
                    cell: case.first(counter) + cell,
                    lag: counters[counter.index()].purpose.lag(),
                    at_least: Some(u64::from(arrivals) * case.scale(of, counter)),
                });
                // A stream's operations come after a wait before them for all that touches memory.
                kinds.push(Kind::FenceGlobal);
            }
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => kinds.push(Kind::CounterAdd {
                rank: home.into(),
                cell: case.first(counter) + cell,
                amount: u64::from(amount) * case.scale(of, counter),
            }),
            StepKind::Copy { dst, src } => {
                let kernel = &case.pipeline.kernel;
                for (dst, src) in dst.copied_from(&src, kernel, &plan.geometry) {
                    let [from, to] = [src, dst].map(|span| located(case, of, &span));
                    kinds.push(Kind::HostCopy { from, to });
                }
            }
            // A copy engine computes nothing: lowering refuses these in its loops.
            StepKind::Dot { .. }
            | StepKind::Reduce { .. }
            | StepKind::OwnTerm { .. }
            | StepKind::Load { .. }
            | StepKind::Store { .. } => {}
        }
        let at = Some(case.pipeline.kernel.loc(step.op));
        steps.extend(kinds.into_iter().map(|kind| Step {
            node: &NONE,
            kind,
            at,
            item: None,
            role,
            tiling: 0,
        }));
    }
    Ok(steps)
}

/// A rectangle of a rank's buffer, as a box.
fn located(case: &Case<'_>, plan: usize, span: &Span) -> Box4 {
    let buffer = &case.pipeline.kernel.buffers[span.buffer.index()];
    let (geometry, home) = (case.geometry(plan), u32::from(span.home));
    let slot_rows = geometry.held_shards(buffer) * geometry.shard_rows(buffer.rows);
    let before = u32::from(span.slot) * slot_rows;
    let held = geometry.held(buffer, home).start;
    let [first, last] = [span.rows.start, span.rows.end].map(|row| row - held);
    let (view, shard) = match buffer.usage.has_slots() {
        true => (View::SharedSlots, u32::from(span.slot)),
        false => (View::Flat, 0),
    };
    Box4 {
        plan,
        tensor: span.buffer,
        rank: home,
        shard,
        rows: (first, last),
        columns: (span.columns.start, span.columns.end),
        origin: (first, span.columns.start),
        spills: None,
        view,
        lines: (before + first, before + last),
        all: (span.rows.start, span.rows.end),
    }
}
