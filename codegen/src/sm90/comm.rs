//! A loop over chunks, as the two threads of a CTA that moves data run it: one fetches boxes, the other sends them.
//!
//! A chunk travels in batches of [`BATCH`] boxes, each sent and signalled by one CTA; batches go round the CTAs.

use super::builder::refuse;
use super::cta::{MOST_BOX_ROWS, SlotKind};
use super::everywhere::goes_everywhere;
use super::lanes::after_lanes;
use super::leaves::{Leaf, common, each_item, leaves, moved_blocks, moves_boxes, moves_scales};
use super::moves::Move;
use super::nodes::{all_empty, why};
use super::walk::{Bound, ItemsOf, Walk, WarpRole};
use crate::diag::Diagnostic;
use crate::kernel::{Kernel, Op, OpKind, Purpose, Region, visit_ops};
use crate::program::{CounterId, Side, StoreMode, Var};
use crate::undo::{Fix, undone};
use crate::warp::{Expr, Grid, LoopId, Node, Phase, SENDING, Symbol};

impl Walk<'_, '_> {
    /// A loop over chunks.
    pub fn chunks(&mut self, of: LoopId, items: ItemsOf<'_>, ops: &[Op]) -> Vec<Node> {
        let ItemsOf {
            var,
            partition,
            shard,
            ..
        } = items;
        let shard = shard.map(|shard| self.rank(shard));
        let item = self.b.kernel.partitions[partition.index()].clone();
        let rows = self.box_rows();
        let role = match self.which {
            WarpRole::Spare => "#[spare_warps]",
            WarpRole::Load
            | WarpRole::Store
            | WarpRole::Multiply
            | WarpRole::Fetch
            | WarpRole::Send
            | WarpRole::End => "#[comm]",
        };
        if item.row_block != Some(rows) {
            let message = format!("{role} moves items of `{}`", item.name);
            let hint = format!(
                "blocks of rows, at most {MOST_BOX_ROWS} of them, and as many in all loops of the role; here {rows}"
            );
            self.refuse(message, hint);
        }
        if self.b.kernel.is_sharded_along(partition, Side::Columns) {
            let message = format!(
                "{role} moves items of `{}`, whose columns are divided over the ranks",
                item.name
            );
            self.refuse(message, "chunks of what is divided by rows");
        }
        let leaves = leaves(self.b.kernel, ops);
        let kernel = self.b.kernel;
        let copies: Vec<&Leaf<'_>> = (leaves.iter())
            .filter(|leaf| moves_boxes(kernel, leaf.op))
            .collect();
        let scales = leaves.iter().any(|leaf| moves_scales(kernel, leaf.op));
        for copy in &copies {
            if let OpKind::Copy { dst, src } = &copy.op.kind
                && let Some(buffer) = [dst, src]
                    .map(|region| &self.b.kernel.buffers[region.buffer.index()])
                    .into_iter()
                    .find(|buffer| buffer.mn_major && !buffer.usage.is_scale())
            {
                let message = format!("{role} moves `{}`, which is MN-major", buffer.name);
                let at = Some(self.b.kernel.loc(copy.op.id));
                let hint = "layout nt, or nn where it is `a` of the dot; or `#[copy_engine]`, which copies tensors of any layout";
                self.b.found.push(refuse(at, message, hint));
            }
        }
        for copy in &copies {
            self.whole_blocks(copy.op);
        }
        let mut nodes = Vec::new();
        let chunk_rows = self.chunk(rows);
        let [all, columns] = self.shard_sides(partition, shard.as_ref());
        let all = all.ceil_div(chunk_rows.clone());
        let name = self.ident(var);
        let mut grid = item.column_block.map(|slab| {
            let columns = columns.clone().ceil_div(slab);
            let [rows, columns] = [("rows", all.clone()), ("columns", columns)]
                .map(|(side, of)| self.name(&mut nodes, &format!("{name}_{side}"), of));
            Grid {
                var: name.clone(),
                index: Expr::Within,
                rows,
                columns,
            }
        });
        let chunks = match &grid {
            None => self.name(&mut nodes, "chunks", all),
            Some(Grid { rows, columns, .. }) => {
                let count = rows.clone() * columns.clone();
                self.name(&mut nodes, &item.name, count)
            }
        };
        let some = self.chosen(&mut nodes, items, chunks);
        self.batched(&copies, columns, item.column_block);
        let (batch, at, items) = match self.batches.clone() {
            Expr::Const(1) => (None, Expr::Within, some.count.clone()),
            batches => {
                let batches = self.name(&mut nodes, "batches", batches);
                let items = self.name(&mut nodes, "items", some.count.clone() * batches.clone());
                (
                    Some(Expr::Within % batches.clone()),
                    Expr::Within / batches,
                    items,
                )
            }
        };
        let at = some.at(at);
        let place = |side: &str| Expr::var(format!("{name}.{side}"));
        let (row, column) = match grid {
            None => (Expr::var(format!("{name}_row")), 0.into()),
            Some(_) => (place("row"), place("column")),
        };
        let bound = Bound::Item {
            partition,
            shard,
            row,
            column,
        };
        self.bind(var, bound);
        let mut work = Vec::new();
        match &mut grid {
            None => work.push(Node::Let {
                name: format!("{name}_row"),
                value: at,
            }),
            Some(grid) => grid.index = at,
        }
        if let Some(batch) = batch {
            work.push(Node::Let {
                name: "batch".into(),
                value: batch,
            });
        }
        let mut body = Vec::new();
        // Without a box one thread does all there is, in order.
        let in_order =
            self.which == WarpRole::Spare || self.in_order || copies.is_empty() && scales;
        let moves = if in_order { None } else { self.moves(&leaves) };
        if matches!(self.which, WarpRole::Spare | WarpRole::Fetch) && !copies.is_empty() {
            self.no_late_waits(&leaves);
        }
        let mut waits = Waits::of(&leaves, self.b.kernel);
        let lag = waits.none_between() && moves.as_ref().is_some_and(|it| it.may_lag(self));
        match (self.which, &moves) {
            (WarpRole::Spare | WarpRole::Fetch, None)
                if in_order && (scales || !copies.is_empty()) =>
            {
                body = self.in_order(var, ops, !copies.is_empty());
            }
            (WarpRole::Fetch, None) if leaves.iter().all(is_wait) => body = self.waits(&leaves),
            (WarpRole::Fetch, None) => body = self.once(ops),
            (WarpRole::Fetch, Some(moves)) => {
                nodes.extend(self.hoisted(&mut waits.to_read, &items));
                waits.to_read.append(&mut waits.said);
                let (before, within) = moves.divided(waits.to_read);
                body = self.waits(&before);
                body.extend(self.inside(&moves.around, &mut |walk| {
                    let mut body = walk.waits(&within);
                    for copy in moves.all.iter().flat_map(Move::boxes) {
                        body.extend(walk.fetch(var, copy));
                    }
                    body
                }));
            }
            (WarpRole::Send, Some(moves)) => {
                nodes.extend(self.hoisted(&mut waits.to_write, &items));
                let (before, within) = moves.divided(waits.to_write);
                body = self.waits(&before);
                body.extend(self.inside(&moves.around, &mut |walk| {
                    let mut body = walk.waits(&within);
                    for one in &moves.all {
                        body.extend(walk.send(var, one, lag));
                    }
                    body
                }));
            }
            (WarpRole::Send, None) => {}
            (
                WarpRole::Load
                | WarpRole::Store
                | WarpRole::Multiply
                | WarpRole::Spare
                | WarpRole::End,
                _,
            ) => {}
        }
        self.scope.pop();
        let sends = !body.is_empty() && self.which == WarpRole::Send && lag;
        if !body.is_empty() {
            work.append(&mut body);
        } else {
            work.clear();
            grid = None;
        }
        nodes.push(Node::Items {
            of,
            count: items,
            grid,
            body: work,
        });
        if sends {
            nodes.push(why(
                "Nothing stays unsignalled across a wait for the next peer.",
            ));
            nodes.push(Node::AwaitStores { pending: 0.into() });
            nodes.push(Node::Flush { amount: 1 });
        }
        nodes
    }

    fn fetch(&mut self, var: Var, copy: &Leaf<'_>) -> Vec<Node> {
        let OpKind::Copy { src, .. } = &copy.op.kind else {
            return Vec::new();
        };
        let note = self.note(copy.op);
        let of_blocks = moved_blocks(self.b.kernel, copy.op).is_some();
        let ((map, at), bytes) = match of_blocks {
            true => (
                self.box_of_blocks(var, src),
                self.bytes_of_blocks(src.buffer),
            ),
            false => (self.staging_at(var, src), self.box_bytes()),
        };
        let body = vec![
            Node::Await {
                barrier: self.staging().empty(),
                phase: Phase::PreviousPhase,
            },
            Node::Expect {
                barrier: self.staging().full(),
                bytes,
            },
            Node::Load {
                ring: self.staging(),
                part: 0,
                index: 0.into(),
                slice: 0.into(),
                map,
                at,
                multicast: false,
                partial_boxes: None,
            },
            Node::Advance {
                ring: self.staging(),
                keep: false,
            },
        ];
        self.each_box(note, of_blocks, body)
    }

    /// Repeats work for each box of a batch, or does it for the one of its scales.
    fn each_box(&self, note: Node, one: bool, body: Vec<Node>) -> Vec<Node> {
        match one {
            true => [vec![note], body].concat(),
            false => vec![note, self.batch(body)],
        }
    }

    /// With `lag`, nobody is waited for between the items of a loop.
    fn send(&mut self, var: Var, one: &Move<'_, '_>, lag: bool) -> Vec<Node> {
        let mut nodes = Vec::new();
        for copy in one.boxes() {
            nodes.extend(self.send_boxes(var, copy));
        }
        // Behind the boxes, that is behind what the fetching thread has waited for.
        for leaf in &one.scales {
            nodes.push(self.note(leaf.op));
            nodes.extend(self.scales(var, leaf.op, true));
        }
        if lag {
            // All but this batch's boxes are complete: the batch before can be announced.
            let batch = self.boxes.clone();
            nodes.push(Node::AwaitStores {
                pending: match one.blocks.len() as u32 {
                    0 => batch,
                    blocks => batch + blocks,
                },
            });
            nodes.push(Node::Flush { amount: 1 });
        } else {
            nodes.push(Node::AwaitStores { pending: 0.into() });
        }
        nodes.extend(one.boxes().any(goes_everywhere).then_some(Node::FenceAlias));
        for leaf in &one.signals {
            if let OpKind::Signal { cells, amount } = &leaf.op.kind {
                nodes.push(self.note(leaf.op));
                self.by_batches(cells.counter);
                nodes.extend(
                    self.inside(&leaf.around, &mut |walk| walk.signal(cells, *amount, lag)),
                );
            }
        }
        nodes
    }

    fn send_boxes(&mut self, var: Var, copy: &Leaf<'_>) -> Vec<Node> {
        let OpKind::Copy { dst, .. } = &copy.op.kind else {
            return Vec::new();
        };
        let note = self.note(copy.op);
        self.copies_a_part(dst);
        let of_blocks = moved_blocks(self.b.kernel, copy.op).is_some();
        let (map, at) = match of_blocks {
            true => self.box_of_blocks(var, dst),
            false => self.staging_at(var, dst),
        };
        self.b.stores_by(map);
        let body = vec![
            Node::Await {
                barrier: self.staging().full(),
                phase: Phase::ThisPhase,
            },
            Node::Store {
                ring: self.staging(),
                slice: 0.into(),
                map,
                at,
                mode: StoreMode::Write,
                shard_end: None,
            },
            Node::Commit,
            Node::Advance {
                ring: self.staging(),
                keep: false,
            },
            Node::AwaitRead { pending: sending() },
            Node::Release {
                ring: self.staging(),
                held: sending(),
            },
        ];
        let body = after_lanes(body, goes_everywhere(copy));
        self.each_box(note, of_blocks, body)
    }

    /// Each batch of an item signals a counter by itself.
    pub(super) fn by_batches(&mut self, counter: CounterId) {
        let batches = self.batches.clone();
        let mut scaled = self.b.scale.iter();
        match scaled.find(|(known, _)| *known == counter) {
            None => self.b.scale.push((counter, batches)),
            Some((_, known)) if *known == batches => {}
            Some(_) => self.refuse(
                "a counter that is signalled after copies of several widths",
                "a counter for each",
            ),
        }
    }

    /// At the end of fetching: every box has left, so the memory is free for the stages, if there are any.
    pub fn drained(&mut self) -> Vec<Node> {
        if !self.b.cta.computes() {
            return Vec::new();
        }
        let slots = self
            .b
            .cta
            .region(SlotKind::Staging)
            .map_or(0, |region| region.slots);
        vec![
            why("All staging buffers were sent: stages and subtiles may lie over them."),
            all_empty(
                self.staging(),
                Expr::symbol(Symbol::Slots(SlotKind::Staging), slots),
            ),
        ]
    }

    /// At the end of sending, when all stores are complete: the slots still held go back.
    pub fn all_released(&mut self) -> Vec<Node> {
        if !self.b.cta.computes() {
            return Vec::new();
        }
        vec![
            why("All stores are complete: the last staging buffers are released."),
            Node::Release {
                ring: self.staging(),
                held: 0.into(),
            },
        ]
    }
}

/// Stores of the sending thread that may still read their staging buffers.
fn sending() -> Expr {
    Expr::symbol(Symbol::Sending, SENDING)
}

/// An item's waits: which of its thread makes them, and before what.
struct Waits<'a> {
    /// The fetching thread's: credits to read.
    to_read: Vec<Leaf<'a>>,
    /// The fetching thread's: what the schedule says.
    said: Vec<Leaf<'a>>,
    /// The sending thread's: credits to write.
    to_write: Vec<Leaf<'a>>,
}

impl<'a> Waits<'a> {
    /// A credit that guards nothing but what is written may come as late as the write: meanwhile boxes are fetched. All
    /// other waits are the fetching thread's, for whichever side of the copy they are.
    ///
    /// So they come before the write, too. A box is sent when the phase of its full barrier is over. The fetching thread
    /// arrives there after the wait, and the proxy fence that follows the wait stands before that arrival: what the wait
    /// acquired is before the box's store, for the async proxy as well.
    fn of(leaves: &[Leaf<'a>], kernel: &Kernel) -> Waits<'a> {
        let mut waits = Waits {
            to_read: Vec::new(),
            said: Vec::new(),
            to_write: Vec::new(),
        };
        for leaf in leaves {
            let OpKind::Wait { cells, .. } = &leaf.op.kind else {
                continue;
            };
            let purpose = kernel.counters[cells.counter.index()].purpose;
            let guards_a_read = leaves.iter().any(|leaf| {
                let OpKind::Copy { src, .. } = &leaf.op.kind else {
                    return false;
                };
                // Boxes of scales are fetched too, by the credit of their tensor.
                let of = match moves_boxes(kernel, leaf.op) {
                    true => kernel.lent_with(src.buffer),
                    false => src.buffer,
                };
                let src = Region {
                    buffer: of,
                    ..src.clone()
                };
                purpose.lets_read(&src, &cells.index)
            });
            let of = match purpose {
                Purpose::Data => &mut waits.said,
                Purpose::Ready(_) | Purpose::Returned(_) | Purpose::Free(_)
                    if guards_a_read && !undone(Fix::WarpOrder) =>
                {
                    &mut waits.to_read
                }
                Purpose::Ready(_) | Purpose::Returned(_) | Purpose::Free(_) => &mut waits.to_write,
            };
            of.push(leaf.clone());
        }
        waits
    }

    /// True if neither thread waits for anybody between the items of a loop.
    fn none_between(&self) -> bool {
        let mut credits = self.to_read.iter().chain(&self.to_write);
        self.said.is_empty() && credits.all(common)
    }
}

/// Counters that are signalled batch by batch, and by something else too, which is counted once.
pub(super) fn counted_twice(kernel: &Kernel, scaled: &[(CounterId, Expr)]) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for role in kernel.roles.iter().filter(|role| !role.kind.sequential()) {
        each_item(&role.body, &mut |ops| {
            let mut copies = false;
            visit_ops(ops, &mut |op| copies |= moves_boxes(kernel, op));
            if copies {
                return;
            }
            visit_ops(ops, &mut |op| {
                if let OpKind::Signal { cells, .. } = &op.kind
                    && scaled.iter().any(|(counter, _)| *counter == cells.counter)
                {
                    let name = &kernel.counters[cells.counter.index()].name;
                    let message = format!("`{name}` is signalled by copies and without one");
                    let at = Some(kernel.loc(op.id));
                    found.push(refuse(at, message, "a counter for each"));
                }
            });
        });
    }
    found
}

fn is_wait(leaf: &Leaf<'_>) -> bool {
    matches!(leaf.op.kind, OpKind::Wait { .. })
}
