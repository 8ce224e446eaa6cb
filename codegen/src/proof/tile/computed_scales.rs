//! The part of guarantee 3 that scales which stores make of an output need, whatever the shape: every store of it makes them, of
//! whole blocks, and nobody else is at them or at what they are of.
//!
//! That each is written once is coverage, as of other outputs: a store writes the scales of its item's blocks.

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Block, Kernel, Op, OpKind, Region, visit, visit_ops};
use crate::program::{Home, PartitionId, StoreMode, TensorId};

/// Finds statements that leave out, divide or use scales that a launch makes.
pub(super) fn check(kernel: &Kernel) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for role in &kernel.roles {
        visit(&role.body, &mut |op| found.extend(misused(kernel, op)));
        divided(kernel, &role.body, &mut found);
    }
    found
}

fn misused(kernel: &Kernel, op: &Op) -> Option<Diagnostic> {
    let name = |tensor: TensorId| &kernel.buffers[tensor.index()].name;
    match &op.kind {
        OpKind::Store { dst, mode, .. } => {
            let added = *mode == StoreMode::Add && kernel.computed_scale_of(dst.buffer).is_some();
            let name = name(dst.buffer);
            return added.then(|| {
                let message =
                    format!("`{name}` is added to, but its scales are of what is stored at once");
                Diagnostic::new(Rule::Coverage, kernel.loc(op.id), message).hint(
                    "one sum in what is stored: `y[t] = dot(..) + ..`; or another type for it",
                )
            });
        }
        // A sum of partial sums reads their scales, too.
        OpKind::Reduce { from, .. } if is_partial(kernel, from) => return None,
        OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::ForRanks { .. }
        | OpKind::If { .. } => {}
    }
    let made = |tensor: &TensorId| {
        kernel.buffers[tensor.index()]
            .usage
            .computed_scale_of()
            .is_some()
            || kernel.computed_scale_of(*tensor).is_some()
    };
    let mut used = op.kind.regions().map(|(of, _)| of.buffer);
    let tensor = used.find(made)?;
    let (what, hint) = match kernel.buffers[tensor.index()].is_scratch() {
        true => (
            "is used without its scales",
            "a sum of its slots, `partial[others()][t].sum()`, which reads them, too",
        ),
        false => (
            "is used in the launch that makes its scales",
            "a launch after this one reads it, with its scales; or an output of another type",
        ),
    };
    let message = format!("`{}` {what}", name(tensor));
    Some(Diagnostic::new(Rule::Race, kernel.loc(op.id), message).hint(hint))
}

/// True if a sum is of tiles that have scales, in one rank's memory at a time.
fn is_partial(kernel: &Kernel, from: &Region) -> bool {
    kernel.sends_scales_of(from.buffer) && from.home != Home::Everywhere
}

/// Items that begin or end within a block.
fn divided(kernel: &Kernel, body: &[Block], found: &mut Vec<Diagnostic>) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => divided(kernel, body, found),
            Block::If {
                then, otherwise, ..
            } => {
                divided(kernel, then, found);
                divided(kernel, otherwise, found);
            }
            Block::Items {
                partition, body, ..
            } => visit_ops(body, &mut |op| {
                found.extend(divides(kernel, *partition, op))
            }),
            Block::Once { .. } | Block::Join => {}
        }
    }
}

fn divides(kernel: &Kernel, partition: PartitionId, op: &Op) -> Option<Diagnostic> {
    let rule = kernel.rule()?;
    let block = rule.block();
    let tile = if let OpKind::Store { dst, .. } = &op.kind
        && kernel.computed_scale_of(dst.buffer).is_some()
    {
        dst
    } else if let OpKind::Reduce { from, .. } = &op.kind
        && is_partial(kernel, from)
    {
        from
    } else {
        return None;
    };
    let partition = &kernel.partitions[partition.index()];
    let columns = partition.column_block?;
    if columns.is_multiple_of(block.columns) {
        return None;
    }
    let message = format!(
        "`{}` has scales of {block}, and tiles of {columns} columns",
        kernel.buffers[tile.buffer.index()].name
    );
    let hint = format!(
        "a multiple of {} columns: a tile makes the scales of whole blocks",
        block.columns
    );
    Some(Diagnostic::new(Rule::Coverage, kernel.loc(op.id), message).hint(hint))
}
