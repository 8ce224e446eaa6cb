//! Results of a candidate: their place, their operands, and the numbers beside them.

use super::beside::Beside;
use super::variants::Planned;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Kernel, OpKind, visit};
use counterflow_codegen::program::{AtEnd, Pick, Scaling};
use counterflow_codegen::rule::ScaleRule;
use counterflow_codegen::shape::Extent;
use counterflow_runtime::Communicator;
use counterflow_runtime::gpus::Memory;

/// Output of a candidate on a rank, and its address.
pub(super) struct Written<'a> {
    pub memory: &'a Memory,
    pub dtype: Dtype,
    /// Rows of the whole result.
    pub rows: Extent,
    /// True if those rows are at the start of the memory, whichever they are.
    pub at_front: bool,
    pub holds: Holds,
    /// Memory beside it.
    pub beside: Beside<&'a Memory>,
    /// Codes with scales of their own, where products are such: those of the result, or those that are added.
    pub codes: Option<Codes>,
}

/// Products as codes with scales of 1×128.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Codes {
    pub rule: ScaleRule,
    /// Numbers in a line of the plane that the launch makes.
    pub pitch: u32,
    /// Rows of a shard, if the rank that has it adds its own products as they are.
    pub shard: Option<u32>,
}

/// Origin of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// This rank's product.
    Own,
    /// The sum of all ranks' products.
    Sum,
    /// All ranks' products, in a slot for each of so many rows.
    Each { slot: u32 },
}

impl Holds {
    pub(super) fn of(planned: &Planned<'_>) -> Holds {
        let (plan, y) = (&planned.plan, planned.built.roles.y);
        let buffer = &planned.built.kernel.buffers[y.index()];
        match buffer.usage.at_end {
            AtEnd::Sum { .. } => Holds::Sum,
            AtEnd::Sent => Holds::Each {
                slot: plan.geometry.shard_rows(buffer.rows),
            },
            AtEnd::Nothing
            | AtEnd::Gathered
            | AtEnd::Computed
            | AtEnd::Own
            | AtEnd::Accumulated => Holds::Own,
        }
    }
}

impl<'a> Written<'a> {
    /// All of this rank's product, by others than us.
    pub(super) fn all(
        (memory, dtype): (&'a Memory, Dtype),
        rows: u32,
        beside: Beside<&'a Memory>,
    ) -> Written<'a> {
        Written {
            memory,
            dtype,
            rows: Extent {
                start: 0,
                end: rows,
            },
            at_front: true,
            holds: Holds::Own,
            beside,
            codes: None,
        }
    }

    /// A schedule's kernel's result.
    pub(super) fn of(
        rank: &Communicator,
        planned: &Planned<'_>,
        memory: &'a Memory,
        beside: &'a Beside<Memory>,
    ) -> Written<'a> {
        let (built, plan) = (planned.built, &planned.plan);
        let tensor = built.roles.y;
        let y = &built.kernel.buffers[tensor.index()];
        Written {
            memory,
            dtype: y.dtype,
            rows: plan.geometry.held(y, rank.rank()),
            at_front: y.shard_only(),
            holds: Holds::of(planned),
            beside: beside.used(built.roles.beside),
            codes: Codes::of(planned),
        }
    }
}

impl Codes {
    /// Codes of a schedule's kernel.
    pub(super) fn of(planned: &Planned<'_>) -> Option<Codes> {
        let (built, plan) = (planned.built, &planned.plan);
        let kernel = &built.kernel;
        let scale = kernel.encoding(built.roles.y).scale;
        if let (Some(Scaling::Computed(rule)), Some(made)) = (scale, built.roles.beside.made) {
            let pitch = plan.pitch(kernel, made) / u64::from(Dtype::F32.bytes());
            return Some(Codes {
                rule,
                pitch: pitch as u32,
                shard: None,
            });
        }
        let rows = kernel.buffers[built.roles.y.index()].rows;
        Some(Codes {
            rule: kernel.quantised_reduction()?,
            pitch: 0,
            shard: adds_others(kernel).then(|| plan.geometry.shard_rows(rows)),
        })
    }
}

/// True if what a rank adds of memory is what others stored there.
fn adds_others(kernel: &Kernel) -> bool {
    let mut others = true;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Reduce { from, .. } => others &= from.slot == Some(Pick::Others),
            OpKind::Load { .. }
            | OpKind::Store { .. }
            | OpKind::Dot { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. } => {}
        });
    }
    others
}
