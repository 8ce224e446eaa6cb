//! The ops of an item one after another, each with what is around it, and what roles that move data do with them.

use crate::encoding::ScaleBlock;
use crate::kernel::{Block, Kernel, Op, OpKind, Turn, visit_ops};
use crate::order::RankOrder;
use crate::program::{CellIndex, Loc, Pick, Var};
use crate::rank::Cond;

/// Block around an op within its item.
#[derive(Clone, PartialEq)]
pub(super) enum Around {
    /// A loop over ranks, and where it was written.
    Ranks(Var, RankOrder, Loc),
    /// A branch: what is asked, and whether it holds.
    If(Cond, bool),
}

/// A leaf op of an item, with the loops over ranks and the branches around it.
#[derive(Clone)]
pub(super) struct Leaf<'a> {
    pub around: Vec<Around>,
    pub op: &'a Op,
    /// True if it waits for one slot after another, each before the sum behind it adds that slot.
    pub slot_by_slot: bool,
    /// True if it waits for one slab of K after another, each before the products behind it read that slab.
    pub slab_by_slab: bool,
}

/// The leaf ops of an item in order.
pub(super) fn leaves<'a>(kernel: &Kernel, body: &'a [Op]) -> Vec<Leaf<'a>> {
    fn go<'a>(kernel: &Kernel, body: &'a [Op], around: &mut Vec<Around>, out: &mut Vec<Leaf<'a>>) {
        for turn in kernel.turns(body) {
            match turn {
                Turn::One(op) => one(kernel, op, around, out),
                Turn::Slots { waits, sum, .. } => {
                    let leaf = |op, slot_by_slot| Leaf {
                        around: around.clone(),
                        op,
                        slot_by_slot,
                        slab_by_slab: false,
                    };
                    out.extend(waits.iter().map(|wait| leaf(wait, true)));
                    out.push(leaf(sum, false));
                }
                Turn::Slabs { waits, dots, .. } => {
                    let leaf = |op, slab_by_slab| Leaf {
                        around: around.clone(),
                        op,
                        slot_by_slot: false,
                        slab_by_slab,
                    };
                    out.extend(waits.iter().map(|wait| leaf(wait, true)));
                    out.extend(dots.iter().map(|dot| leaf(dot, false)));
                }
            }
        }
    }
    fn one<'a>(kernel: &Kernel, op: &'a Op, around: &mut Vec<Around>, out: &mut Vec<Leaf<'a>>) {
        match &op.kind {
            OpKind::ForRanks { var, order, body } => {
                around.push(Around::Ranks(*var, order.clone(), kernel.loc(op.id)));
                go(kernel, body, around, out);
                around.pop();
            }
            OpKind::If {
                cond,
                then,
                otherwise,
            } => {
                for (body, holds) in [(then, true), (otherwise, false)] {
                    around.push(Around::If(cond.clone(), holds));
                    go(kernel, body, around, out);
                    around.pop();
                }
            }
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Copy { .. }
            | OpKind::Dot { .. }
            | OpKind::Reduce { .. }
            | OpKind::Load { .. }
            | OpKind::Store { .. } => out.push(Leaf {
                around: around.clone(),
                op,
                slot_by_slot: false,
                slab_by_slab: false,
            }),
        }
    }
    let mut out = Vec::new();
    go(kernel, body, &mut Vec::new(), &mut out);
    out
}

/// True if all items of a loop make the same wait.
pub(super) fn common(leaf: &Leaf<'_>) -> bool {
    let one = |index: &CellIndex| matches!(index, CellIndex::Rank(Pick::One(_)));
    matches!(&leaf.op.kind, OpKind::Wait { cells, .. } if leaf.around.is_empty() && cells.index.iter().all(one))
}

/// Blocks that the scales which an op copies belong to, if they are scales of blocks.
pub(super) fn moved_blocks(kernel: &Kernel, op: &Op) -> Option<ScaleBlock> {
    let OpKind::Copy { src, .. } = &op.kind else {
        return None;
    };
    kernel.buffers[src.buffer.index()].usage.blocks()
}

/// True if an op copies the scales of rows.
pub(super) fn moves_scales(kernel: &Kernel, op: &Op) -> bool {
    let scale = matches!(&op.kind, OpKind::Copy { src, .. } if kernel.buffers[src.buffer.index()].usage.is_scale());
    scale && moved_blocks(kernel, op).is_none()
}

/// True if an op copies what boxes carry.
pub(super) fn moves_boxes(kernel: &Kernel, op: &Op) -> bool {
    matches!(op.kind, OpKind::Copy { .. }) && !moves_scales(kernel, op)
}

/// Calls `f` with what is done for one item, or between loops.
pub(super) fn each_item(body: &[Block], f: &mut impl FnMut(&[Op])) {
    for block in body {
        match block {
            Block::ForRanks { body, .. } => each_item(body, f),
            Block::If {
                then, otherwise, ..
            } => {
                each_item(then, f);
                each_item(otherwise, f);
            }
            Block::Items { body, .. } | Block::Once { body } => f(body),
            Block::Join => {}
        }
    }
}

/// True if an item copies.
pub(super) fn copies(ops: &[Op]) -> bool {
    let mut found = false;
    visit_ops(ops, &mut |op| {
        found |= matches!(op.kind, OpKind::Copy { .. })
    });
    found
}

/// True if some item of a role that moves data is not [`regular`]: then one thread does all of its items in order.
pub(super) fn in_order(kernel: &Kernel, body: &[Block]) -> bool {
    let mut found = false;
    each_item(body, &mut |ops| {
        found |= copies(ops) && !regular(kernel, &leaves(kernel, ops))
    });
    found
}

/// True if one warp may load while another stores. Such an item waits first, then copies in at most one loop over ranks, signals
/// behind each copy, and copies nothing that it wrote itself. It announces no scales before its first box, which tells the
/// sending thread that the waits are over.
fn regular(kernel: &Kernel, leaves: &[Leaf<'_>]) -> bool {
    let is_copy = |leaf: &&Leaf<'_>| matches!(leaf.op.kind, OpKind::Copy { .. });
    let Some(first) = leaves.iter().find(is_copy) else {
        return true;
    };
    let around = &first.around;
    let (mut written, mut boxes, mut announced) = (Vec::new(), false, false);
    leaves.iter().all(|leaf| match &leaf.op.kind {
        OpKind::Copy { dst, src } => {
            let relays = written.contains(&(src.buffer, &src.home));
            written.push((dst.buffer, &dst.home));
            let late = announced && !boxes;
            boxes |= moves_boxes(kernel, leaf.op);
            !(relays || late && boxes) && leaf.around == *around
        }
        OpKind::Signal { .. } => {
            announced = true;
            !written.is_empty() && leaf.around.starts_with(around)
        }
        OpKind::Wait { .. } => written.is_empty(),
        OpKind::Dot { .. }
        | OpKind::Reduce { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. }
        | OpKind::ForRanks { .. }
        | OpKind::If { .. } => true,
    })
}
