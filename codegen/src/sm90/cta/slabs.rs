//! Slabs of K that a product waits for, one after another.

use super::asked::{TileRequest, loops};
use super::finding::refuse;
use super::wgmma::Mode;
use crate::diag::Diagnostic;
use crate::kernel::visit_ops;

/// Accumulators of a thread in ping-pong beside waits within a product: measured, 144 spill.
const MOST_IN_PING_PONG: u32 = 128;

/// A slab is whole steps: its wait stands before the first of them. All products of an item go through the same steps.
pub(super) fn slabs_of_steps(asked: &TileRequest<'_>) -> Vec<Diagnostic> {
    let (kernel, k) = (asked.kernel, asked.kind.k.max(1));
    let (mut found, mut first) = (Vec::new(), None);
    let all = kernel.roles.iter().flat_map(|role| loops(&role.body));
    for each in all.filter(|each| each.items == asked.items) {
        visit_ops(each.body, &mut |op| {
            let Some(of) = op.kind.slabs() else {
                return;
            };
            let width = kernel.partitions[of.index()].column_block.unwrap_or(0);
            let at = kernel.loc(op.id);
            if !width.is_multiple_of(k) {
                let message = format!("a wait for slabs of {width} columns, in K steps of {k}");
                let hint = format!("a multiple of {k} columns");
                found.push(refuse(at, message, hint));
            }
            if asked.wgmma.mode == Mode::PingPong && asked.wgmma.accumulators() > MOST_IN_PING_PONG
            {
                let message = format!("a wait slab by slab in {} in ping-pong", asked.tiles());
                let hint = "128 rows by up to 128 columns, or no ping-pong";
                found.push(refuse(at, message, hint));
            }
            let other = *first.get_or_insert(width);
            if width != other {
                let message = format!("slabs of {other} and of {width} columns in one item");
                let hint = "slabs of one width, or a loop for each product";
                found.push(refuse(at, message, hint));
            }
        });
    }
    found
}
