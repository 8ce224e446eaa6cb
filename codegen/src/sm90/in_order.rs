//! Items that copy, as one thread does all of them in order: waits, copies and signals as they are written. Spare warps have no
//! second thread, and an item that copies on what it has just copied needs none.
//!
//! A box is loaded, and stored as soon as it has landed; while it leaves, the next one comes.

use super::builder::refuse;
use super::cta::SlotKind;
use super::lanes::after_lanes;
use super::leaves::{Around, Leaf};
use super::leaves::{moved_blocks, moves_scales};
use super::rings::{spare_staging, staging};
use super::walk::{Walk, WarpRole};
use crate::kernel::{Op, OpKind, Purpose, Region};
use crate::program::{Home, StoreMode, Var};
use crate::warp::{Expr, Node, Phase, RingId};

impl Walk<'_, '_> {
    /// All of a batch of an item.
    pub(super) fn in_order(&mut self, var: Var, ops: &[Op], batched: bool) -> Vec<Node> {
        self.ops_in_order((var, batched), ops, &mut false)
    }

    /// Waits come before all that their item sends, also around a loop. Each of its batches does all of the item, and a wait
    /// is for all batches of another: the first would wait for what stands behind it in its own thread. How many batches
    /// there are, the launch says. Credits are not given by items.
    pub(super) fn no_late_waits(&mut self, leaves: &[Leaf<'_>]) {
        let sends =
            |leaf: &&Leaf<'_>| matches!(leaf.op.kind, OpKind::Copy { .. } | OpKind::Signal { .. });
        let first = leaves.iter().position(|leaf| sends(&leaf));
        for (index, leaf) in leaves.iter().enumerate() {
            let OpKind::Wait { cells, .. } = &leaf.op.kind else {
                continue;
            };
            let data = self.b.kernel.counters[cells.counter.index()].purpose == Purpose::Data;
            let behind = first.is_some_and(|first| first < index);
            let again = leaves
                .iter()
                .filter(sends)
                .any(|send| share_a_loop(leaf, send));
            if data && (behind || again) {
                let at = self.b.kernel.loc(leaf.op.id);
                let message = "a wait behind a copy or a signal of its own item";
                let hint = "put the wait into a loop of its own after the copies, or at the start of the next item: an \
                            item travels in batches, of which the first would wait for those behind it";
                self.b.found.push(refuse(Some(at), message, hint));
            }
        }
    }

    /// The ops of a list. Fences that TMA needs after earlier waits and stores may still be due.
    fn ops_in_order(
        &mut self,
        (var, batched): (Var, bool),
        ops: &[Op],
        unfenced: &mut bool,
    ) -> Vec<Node> {
        let mut nodes = Vec::new();
        for op in ops {
            match &op.kind {
                OpKind::ForRanks {
                    var: rank,
                    order,
                    body,
                } => {
                    // What a step leaves, the next one finds.
                    *unfenced |= acquires(body);
                    let at = self.at.replace(self.b.kernel.loc(op.id));
                    let node = self.ranks(*rank, order, |walk| {
                        walk.ops_in_order((var, batched), body, unfenced)
                    });
                    self.at = at;
                    nodes.extend(node);
                }
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                } => {
                    let test = self.cond(cond);
                    let (before, mut after) = (*unfenced, *unfenced);
                    for (body, test) in [(then, test.clone()), (otherwise, test.negate())] {
                        let mut here = before;
                        nodes.extend(self.when(test, |walk| {
                            walk.ops_in_order((var, batched), body, &mut here)
                        }));
                        after |= here;
                    }
                    *unfenced = after;
                }
                OpKind::Wait {
                    cells, at_least, ..
                } => {
                    nodes.push(self.note(op));
                    let wait = self.wait(cells, *at_least);
                    nodes.extend(wait);
                    *unfenced = true;
                }
                OpKind::Signal { cells, amount } => {
                    nodes.push(self.note(op));
                    if batched {
                        self.by_batches(cells.counter);
                    }
                    let signal = self.signal(cells, *amount, false);
                    nodes.extend(signal);
                }
                OpKind::Copy { .. } if moves_scales(self.b.kernel, op) => {
                    nodes.push(self.note(op));
                    nodes.extend(self.scales(var, op, batched));
                }
                OpKind::Copy { dst, src } => {
                    nodes.push(self.note(op));
                    if *unfenced {
                        nodes.extend(self.after_waits());
                    }
                    let of_blocks = moved_blocks(self.b.kernel, op).is_some();
                    nodes.extend(self.boxes(var, dst, src, of_blocks));
                    *unfenced = true;
                }
                // Nothing else is in an item of a role that moves data.
                OpKind::Dot { .. }
                | OpKind::Reduce { .. }
                | OpKind::Load { .. }
                | OpKind::Store { .. } => {}
            }
        }
        nodes
    }

    /// The boxes of a copy, up to their arrival.
    fn boxes(&mut self, var: Var, dst: &Region, src: &Region, of_blocks: bool) -> Vec<Node> {
        let ring = self.staging();
        let [(from, from_at), (to, to_at)] = [src, dst].map(|region| match of_blocks {
            true => self.box_of_blocks(var, region),
            false => self.staging_at(var, region),
        });
        self.copies_a_part(dst);
        self.b.stores_by(to);
        let bytes = match of_blocks {
            true => self.bytes_of_blocks(src.buffer),
            false => self.box_bytes(),
        };
        let body = vec![
            // The places of all but the latest boxes are free.
            Node::AwaitRead {
                pending: Expr::from(self.staging_places() - 1),
            },
            Node::Expect {
                barrier: ring.full(),
                bytes,
            },
            Node::Load {
                ring,
                part: 0,
                index: 0.into(),
                slice: 0.into(),
                map: from,
                at: from_at,
                multicast: false,
                partial_boxes: None,
            },
            Node::Await {
                barrier: ring.full(),
                phase: Phase::ThisPhase,
            },
            Node::Store {
                ring,
                slice: 0.into(),
                map: to,
                at: to_at,
                mode: StoreMode::Write,
                shard_end: None,
            },
            Node::Commit,
            Node::Advance { ring, keep: false },
        ];
        let everywhere = dst.home == Home::Everywhere;
        let body = after_lanes(body, everywhere);
        let mut nodes = match of_blocks {
            true => body,
            false => vec![self.batch(body)],
        };
        nodes.push(Node::AwaitStores { pending: 0.into() });
        nodes.extend(everywhere.then_some(Node::FenceAlias));
        nodes
    }

    /// The ring that its boxes pass through.
    pub(super) fn staging(&self) -> RingId {
        match self.which {
            WarpRole::Spare => spare_staging(self.b.cta),
            WarpRole::Load
            | WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::End => staging(self.b.cta),
        }
    }

    /// Number of boxes that staging has room for.
    fn staging_places(&self) -> u32 {
        let of = match self.which {
            WarpRole::Spare => SlotKind::SpareStaging,
            WarpRole::Load
            | WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::End => SlotKind::Staging,
        };
        self.b.cta.region(of).map_or(1, |region| region.slots)
    }
}

/// True if a step of a loop over ranks in the item does one, and the next step the other.
fn share_a_loop(one: &Leaf<'_>, other: &Leaf<'_>) -> bool {
    let loops = |leaf: &Leaf<'_>| -> Vec<Var> {
        let around = leaf.around.iter();
        around
            .filter_map(|around| match around {
                Around::Ranks(var, ..) => Some(*var),
                Around::If(..) => None,
            })
            .collect()
    };
    loops(one).iter().any(|var| loops(other).contains(var))
}

/// True if some of those ops wait or copy.
fn acquires(ops: &[Op]) -> bool {
    let mut found = false;
    crate::kernel::visit_ops(ops, &mut |op| {
        found |= matches!(op.kind, OpKind::Wait { .. } | OpKind::Copy { .. });
    });
    found
}
