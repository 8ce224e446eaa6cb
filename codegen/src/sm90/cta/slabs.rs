//! Slabs of K that a product waits for, one after another.

use super::asked::{TileRequest, loops};
use super::finding::refuse;
use crate::diag::Diagnostic;
use crate::kernel::visit_ops;

/// A slab is whole steps: its wait stands before the first of them.
pub(super) fn slabs_of_steps(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (kernel, k) = (asked.kernel, asked.kind.k.max(1));
    let mut found = Vec::new();
    for role in &kernel.roles {
        for each in loops(&role.body) {
            if each.items != asked.items {
                continue;
            }
            visit_ops(each.body, &mut |op| {
                let Some(of) = op.kind.slabs() else {
                    return;
                };
                let width = kernel.partitions[of.index()].column_block.unwrap_or(0);
                if !width.is_multiple_of(k) {
                    let message = format!("a wait for slabs of {width} columns, in K steps of {k}");
                    let hint = format!("a multiple of {k} columns");
                    found.push(refuse(kernel.loc(op.id), message, hint));
                }
            });
        }
    }
    found
}
