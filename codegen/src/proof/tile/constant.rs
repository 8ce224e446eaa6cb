//! Tensors that a variant declares constant: dependent launches read them while earlier launches run, so no launch may write
//! them, and no peer.

use crate::diag::{Diagnostic, Rule};
use crate::kernel::{Kernel, OpKind, visit};
use crate::program::{Loc, TensorId};

/// Finds declared tensors that a kernel does not have, or that a launch or a peer writes.
pub(super) fn check(kernel: &Kernel) -> Vec<Diagnostic> {
    let declared = kernel.variant.constants.iter();
    declared.filter_map(|name| refused(kernel, name)).collect()
}

fn refused(kernel: &Kernel, name: &str) -> Option<Diagnostic> {
    let mut buffers = kernel.buffers.iter();
    let Some(at) = buffers.position(|buffer| buffer.name == name) else {
        let message = format!("{} has no tensor `{name}` to be constant", kernel.name);
        let fixed = kernel.buffers.iter().filter(|it| it.usage.is_fixed());
        let names = fixed.map(|it| it.name.as_str()).collect::<Vec<_>>();
        let found = Diagnostic::new(Rule::Shape, None, message);
        return Some(found.hint(format!("its inputs are {}", names.join(", "))));
    };
    if kernel.buffers[at].usage.is_fixed() {
        return None;
    }
    let message = format!("`{name}` is declared constant, but a launch writes it");
    let written = first_write(kernel, TensorId(at as u16));
    Some(
        Diagnostic::new(Rule::Race, written, message)
            .note(
                None,
                "constant operands are loaded while the launches before may still run",
            )
            .hint("only an input that stays on its rank may be constant, such as weights"),
    )
}

/// The first statement that writes a tensor, on whatever rank.
fn first_write(kernel: &Kernel, tensor: TensorId) -> Option<Loc> {
    let mut first = None;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| {
            let writes = match &op.kind {
                OpKind::Copy { dst, .. } | OpKind::Store { dst, .. } => dst.buffer == tensor,
                OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. } => false,
            };
            if writes {
                first.get_or_insert(kernel.loc(op.id));
            }
        });
    }
    first
}
