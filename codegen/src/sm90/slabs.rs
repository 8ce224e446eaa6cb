//! Waits within the steps of a product: each before the first step of the slab of K that it is for.

use super::cells::SLAB;
use super::passes::Pass;
use super::walk::Walk;
use crate::warp::{Expr, Node, Symbol, Test};

impl Walk<'_, '_> {
    /// The waits for the slab that a step begins, if it begins one. No slab is empty: what is cut into chunks has some depth.
    pub(super) fn each_slab(&mut self, pass: &Pass<'_>) -> Vec<Node> {
        let slabs = pass
            .slab_waits
            .first()
            .and_then(|leaf| leaf.op.kind.slabs());
        let width = slabs.and_then(|of| self.b.kernel.partitions[of.index()].column_block);
        let Some(width) = width else {
            return Vec::new();
        };
        let tile_k = Expr::symbol(Symbol::TileK, self.tiling().tile().k);
        let (step, each) = (self.step(), Expr::from(width) / tile_k);
        self.slab_of = slabs;
        let waits = self.waits(&pass.slab_waits);
        self.slab_of = None;
        let mut body = vec![Node::Let {
            name: SLAB.into(),
            value: step.clone() / each.clone(),
        }];
        body.extend(waits);
        vec![Node::If {
            test: Test::Equal(step % each, 0.into()),
            body,
        }]
    }
}
