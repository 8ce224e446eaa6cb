//! K steps that are shared: a CTA without any is refused, with the numbers.

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
