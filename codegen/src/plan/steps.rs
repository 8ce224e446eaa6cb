//! K steps that are shared: a CTA or a part without any is refused, with the numbers.

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Block, GemmKind, Kernel, OpKind, visit};
use crate::shape::Geometry;
use crate::variant::Arch;

/// Refuses a product with fewer K steps than CTAs that share them.
pub(super) fn each_shared(
    kernel: &Kernel,
    geometry: &Geometry,
    body: &[Block],
    kind: &GemmKind,
    found: &mut Vec<Diagnostic>,
) {
    if kind.split <= 1 || kernel.variant.arch == Arch::Cpu {
        return;
    }
    visit(body, &mut |op| {
        if let OpKind::Dot { a, .. } = &op.kind {
            let depth = geometry.size(kernel.buffers[a.buffer.index()].columns);
            let steps = depth.div_ceil(kind.k.max(1));
            if steps < kind.split {
                found.push(
                    Diagnostic::new(
                        Rule::Resources,
                        kernel.loc(op.id),
                        format!(
                            "{} CTAs share {steps} steps of {} of a K of {depth}",
                            kind.split, kind.k
                        ),
                    )
                    .hint(format!("a step each: `split` is at most {steps}")),
                );
            }
        }
    });
}

/// Refuses parts of K without a step, where each item has one part.
pub(super) fn each_part(
    kernel: &Kernel,
    geometry: &Geometry,
    body: &[Block],
    kind: &GemmKind,
    found: &mut Vec<Diagnostic>,
) {
    if kernel.variant.arch == Arch::Cpu {
        return;
    }
    for block in body {
        match block {
            Block::ForSplits { count, body, .. } => visit(body, &mut |op| {
                if let OpKind::Dot { a, .. } = &op.kind {
                    let depth = geometry.size(kernel.buffers[a.buffer.index()].columns);
                    let steps = |part| geometry.split(depth, part, *count).len().div_ceil(kind.k);
                    let last = count.saturating_sub(1);
                    if steps(last) == 0 {
                        let message = format!(
                            "part {last} of a K of {depth} in {count} has no step of {}: each part has {}",
                            kind.k,
                            steps(0)
                        );
                        found.push(
                            Diagnostic::new(Rule::Resources, kernel.loc(op.id), message)
                                .hint("whole steps, and one at least: fewer parts, or a deeper K"),
                        );
                    }
                }
            }),
            Block::ForRanks { body, .. } => each_part(kernel, geometry, body, kind, found),
            Block::If {
                then, otherwise, ..
            } => {
                each_part(kernel, geometry, then, kind, found);
                each_part(kernel, geometry, otherwise, kind, found);
            }
            Block::Items { .. } | Block::Once { .. } | Block::Join => {}
        }
    }
}
