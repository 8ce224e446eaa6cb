//! Branches inside items become branches around their loops. A condition on ranks that are bound outside of an item has one
//! answer for all items of its loop. So all warps of a CTA take the branch together, between items.

use crate::kernel::{Block, Kernel, Op, OpKind};
use crate::program::{Loc, Var};
use crate::rank::Cond;

/// Lifts branches out of items: each item does without branches on ranks that are bound outside of it.
pub(super) fn lifted(kernel: &Kernel, body: &[Block]) -> Vec<Block> {
    body.iter().flat_map(|block| one(kernel, block)).collect()
}

fn one(kernel: &Kernel, block: &Block) -> Vec<Block> {
    match block {
        Block::ForRanks {
            at,
            var,
            order,
            body,
        } => vec![Block::ForRanks {
            at,
            var: *var,
            order: order.clone(),
            body: lifted(kernel, body),
        }],
        Block::If {
            at,
            cond,
            then,
            otherwise,
        } => vec![Block::If {
            at,
            cond: cond.clone(),
            then: lifted(kernel, then),
            otherwise: lifted(kernel, otherwise),
        }],
        Block::Items {
            at,
            var,
            partition,
            shard,
            order,
            selection,
            body,
        } => {
            let Some((cond, if_at)) = asked(kernel, body, &mut Vec::new()) else {
                return vec![block.clone()];
            };
            let taken = |holds: bool| {
                let body = taken(body, &cond, holds);
                // What does nothing for any item is no loop.
                if body.is_empty() {
                    return Vec::new();
                }
                let items = Block::Items {
                    at,
                    var: *var,
                    partition: *partition,
                    shard: shard.clone(),
                    order: *order,
                    selection: selection.clone(),
                    body,
                };
                one(kernel, &items)
            };
            vec![Block::If {
                at: if_at,
                then: taken(true),
                otherwise: taken(false),
                cond: cond.clone(),
            }]
        }
        Block::Once { .. } | Block::Join => vec![block.clone()],
    }
}

/// The first branch of an item with a condition on ranks that are bound outside of the item.
fn asked(kernel: &Kernel, body: &[Op], inner: &mut Vec<Var>) -> Option<(Cond, Loc)> {
    body.iter().find_map(|op| match &op.kind {
        OpKind::If {
            cond,
            then,
            otherwise,
        } => {
            let exprs = cond.exprs();
            let mut vars = exprs.iter().flat_map(|expr| expr.vars());
            if vars.any(|var| inner.contains(&var)) {
                let mut within = |body: &[Op]| asked(kernel, body, inner);
                within(then).or_else(|| within(otherwise))
            } else {
                Some((cond.clone(), kernel.loc(op.id)))
            }
        }
        OpKind::ForRanks { var, body, .. } => {
            inner.push(*var);
            let found = asked(kernel, body, inner);
            inner.pop();
            found
        }
        OpKind::Wait { .. }
        | OpKind::Signal { .. }
        | OpKind::Copy { .. }
        | OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. } => None,
    })
}

/// Ops of an item if it is known whether a condition holds.
fn taken(body: &[Op], known: &Cond, holds: bool) -> Vec<Op> {
    let mut ops = Vec::new();
    for op in body {
        let kind = match &op.kind {
            OpKind::If {
                cond,
                then,
                otherwise,
            } if cond == known => {
                let of = if holds { then } else { otherwise };
                ops.extend(taken(of, known, holds));
                continue;
            }
            OpKind::If {
                cond,
                then,
                otherwise,
            } => OpKind::If {
                cond: cond.clone(),
                then: taken(then, known, holds),
                otherwise: taken(otherwise, known, holds),
            },
            OpKind::ForRanks { var, order, body } => {
                let body = taken(body, known, holds);
                // A loop that does nothing is none.
                if body.is_empty() {
                    continue;
                }
                OpKind::ForRanks {
                    var: *var,
                    order: order.clone(),
                    body,
                }
            }
            other @ (OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Dot { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. }) => other.clone(),
        };
        ops.push(Op { id: op.id, kind });
    }
    ops
}
