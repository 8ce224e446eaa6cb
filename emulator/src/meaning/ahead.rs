//! Products of several statements, computed together: their blocks keep all cores busy, where those of one tile do not.

use super::Ranks;
use super::walk::{Act, Rect};
use crate::blocks::Blocks;
use crate::known::Known;
use crate::product::add_products;
use counterflow_codegen::program::TensorId;
use counterflow_codegen::value::AccId;
use std::collections::HashSet;

/// Elements of products that are kept together.
const MOST: usize = 1 << 22;

/// Statements that are prepared together.
struct Stretch<'s> {
    /// Number of them.
    acts: usize,
    /// Operands of each product among them that is the first term of its sums. `None` for others.
    alone: Vec<Option<(&'s Rect, &'s Rect)>>,
}

impl Ranks<'_> {
    /// Computes products among the first of these statements, and says how many statements those are.
    pub(super) fn multiply_ahead(
        &mut self,
        agent: usize,
        rank: u32,
        acts: &[Act<'_>],
    ) -> Result<usize, String> {
        let Stretch { acts, alone } = self.stretch(agent, acts);
        let mut sums = Vec::new();
        let mut products = Vec::new();
        for (a, b) in alone.iter().flatten() {
            sums.push(Known::zero(a.rows.len(), b.rows.len()));
            products.push(self.multiplied(rank, a, b)?);
        }
        add_products(&mut sums, &products);
        drop(products);
        let mut sums = sums.into_iter();
        let each = alone
            .iter()
            .map(|operands| operands.and_then(|_| sums.next()));
        self.ahead = each.collect();
        Ok(acts)
    }

    /// The statements until the first product of what one of them writes, or until there are many products.
    fn stretch<'s>(&self, agent: usize, acts: &'s [Act<'_>]) -> Stretch<'s> {
        let mut filled: HashSet<AccId> = self.accs[agent].keys().copied().collect();
        let mut written: HashSet<usize> = HashSet::new();
        let mut alone = Vec::new();
        let mut elements = 0;
        for (at, act) in acts.iter().enumerate() {
            match act {
                Act::Wait { .. } | Act::Signal { .. } => {}
                Act::Item => filled.clear(),
                Act::Copy { dst, .. } => {
                    written.insert(dst.tensor);
                }
                Act::Sum { acc, .. } | Act::Load { acc, .. } => {
                    filled.insert(*acc);
                }
                Act::Store { dst, amax, .. } => {
                    let made = self.program.computed_scale_of(TensorId(dst.tensor as u16));
                    let beside = made.map(|(plane, _)| plane.index());
                    let measured = amax.map(|amax| amax.to.index());
                    written.extend([Some(dst.tensor), beside, measured].into_iter().flatten());
                }
                Act::Dot { acc, a, b } => {
                    let scale = |of: &Rect| Blocks::of(self.program, TensorId(of.tensor as u16));
                    let reads = [a, b].into_iter().flat_map(|of| {
                        let scale = scale(of).map(|blocks| blocks.scale.index());
                        [Some(of.tensor), scale].into_iter().flatten()
                    });
                    let stale = reads.into_iter().any(|tensor| written.contains(&tensor));
                    if at > 0 && (stale || elements >= MOST) {
                        return Stretch { acts: at, alone };
                    }
                    elements += a.rows.len() * b.rows.len();
                    alone.push(filled.insert(*acc).then_some((a, b)));
                }
            }
        }
        Stretch {
            acts: acts.len(),
            alone,
        }
    }
}
