//! One role of one CTA in one launch, as the list of its steps: control depends on the shape and on ranks only.

use super::super::{At, CONSUMERS, Deal, Expr, Map, MapId, Node, Phase, Place, RingId, Side, Slot};
use super::case::{Case, Env, WORLD, comm_ctas};
use super::step::{Area, Box4, Kind, Step};
use crate::dtype::Dtype;
use crate::pipeline::View;

/// Where a role stands in a ring.
#[derive(Clone, Copy, Default)]
struct Cursor {
    slot: u32,
    parity: u32,
    previous: u32,
    held: u32,
    oldest: u32,
}

pub(super) struct Flattener<'a> {
    case: &'a Case<'a>,
    env: Env<'a>,
    cursors: Vec<Cursor>,
    group: Option<u32>,
    deal: Deal,
    item: Option<(u32, u32)>,
    /// Maps replaced by their sibling for the short chunk.
    tails: Vec<(MapId, u32)>,
    steps: Vec<Step<'a>>,
}

/// The steps of a role, for one consumer warpgroup if it has several.
pub(super) fn flatten<'a>(
    case: &'a Case<'a>,
    rank: u32,
    block: u32,
    warp: usize,
    group: u32,
) -> Vec<Step<'a>> {
    let warp = &case.pipeline.warps[warp];
    let mut flat = Flattener {
        case,
        env: Env::new(case, rank, block),
        cursors: vec![Cursor::default(); case.pipeline.rings.len()],
        group: (warp.place == Place::Groups).then_some(group),
        deal: Deal::All,
        item: None,
        tails: Vec::new(),
        steps: Vec::new(),
    };
    flat.list(&warp.body);
    flat.item = None;
    let first = matches!(warp.place, Place::Thread { warp: 0 });
    for node in &case.pipeline.end {
        match node {
            Node::LastCta { body, advance, .. } if first => {
                let at = flat.steps.len();
                flat.push(node, Kind::Last { skip: 0 });
                flat.list(body);
                for (counter, cells) in advance {
                    for cell in 0..cells.eval(&flat.env) {
                        flat.push(
                            node,
                            Kind::CounterAdvance {
                                cell: case.first(*counter) + cell,
                            },
                        );
                    }
                }
                let skip = flat.steps.len() - at - 1;
                flat.steps[at].kind = Kind::Last { skip };
            }
            Node::LastCta { .. } => {}
            other => flat.node(other),
        }
    }
    flat.steps
}

impl<'a> Flattener<'a> {
    fn push(&mut self, node: &'a Node, kind: Kind) {
        self.steps.push(Step {
            node,
            kind,
            item: self.item,
        });
    }

    fn list(&mut self, nodes: &'a [Node]) {
        nodes.iter().for_each(|node| self.node(node));
    }

    fn value(&self, expr: &Expr) -> u32 {
        expr.eval(&self.env)
    }

    fn set(&mut self, name: &str, value: u32) {
        self.env.vars.insert(name.into(), value);
    }

    fn node(&mut self, node: &'a Node) {
        match node {
            Node::Note(_)
            | Node::Accumulators
            | Node::MmaFence
            | Node::SyncWarp
            | Node::LastCta { .. } => {}
            Node::Let { name, value } => {
                let value = self.value(value);
                self.set(name, value);
            }
            Node::Deal(deal) => {
                self.deal = *deal;
                self.env.first = 0;
                self.env.index = self.start();
                let fresh = Cursor::default();
                // A role's rings are its own from here: the emitter declares their cursors at the deal.
                self.cursors.iter_mut().for_each(|cursor| *cursor = fresh);
            }
            Node::Ranks {
                step,
                count,
                var,
                rank,
                body,
            } => {
                for at in 0..self.value(count) {
                    self.set(step, at);
                    let rank = self.value(rank);
                    self.set(var, rank);
                    self.list(body);
                }
            }
            Node::Others { var, body } => {
                for rank in (0..WORLD)
                    .filter(|rank| *rank != self.env.rank)
                    .collect::<Vec<_>>()
                {
                    self.set(var, rank);
                    self.list(body);
                }
            }
            Node::Items { count, body } => {
                let count = self.value(count);
                while self.env.index.wrapping_sub(self.env.first) < count {
                    self.list(body);
                    self.env.index = self.next();
                }
                self.env.first += count;
                self.item = None;
            }
            Node::Place {
                var,
                order,
                index,
                rows,
                columns,
            } => {
                let [index, rows, columns] = [index, rows, columns].map(|expr| self.value(expr));
                let (row, column) = order.at(index, rows, columns);
                self.set(&format!("{var}.row"), row);
                self.set(&format!("{var}.column"), column);
                self.item = Some((row, column));
            }
            Node::For {
                var,
                from,
                to,
                by,
                body,
                ..
            } => {
                let (mut at, to, by) = (self.value(from), self.value(to), self.value(by).max(1));
                while at < to {
                    self.set(var, at);
                    self.list(body);
                    at += by;
                }
            }
            Node::If { test, body } => {
                if test.eval(&self.env) {
                    self.list(body);
                }
            }
            Node::Await { ring, side, phase } => {
                let cursor = self.cursors[usize::from(ring.0)];
                let parity = match phase {
                    Phase::ThisLap => cursor.parity,
                    Phase::LapBefore => cursor.parity ^ 1,
                };
                self.push(
                    node,
                    Kind::Await {
                        barrier: self.barrier(*ring, *side, cursor.slot),
                        parity,
                    },
                );
            }
            Node::Expect { ring, bytes } => {
                let cursor = self.cursors[usize::from(ring.0)];
                let kind = Kind::Expect {
                    barrier: self.barrier(*ring, Side::Full, cursor.slot),
                    bytes: self.value(bytes),
                };
                self.push(node, kind);
            }
            Node::Arrive { ring, side, slot } => {
                let cursor = self.cursors[usize::from(ring.0)];
                let slot = match slot {
                    Slot::Current => cursor.slot,
                    Slot::Previous => cursor.previous,
                };
                let count = if self.group.is_some() { 4 } else { 1 };
                self.push(
                    node,
                    Kind::Arrive {
                        barrier: self.barrier(*ring, *side, slot),
                        count,
                    },
                );
            }
            Node::Advance { ring, .. } => {
                let slots = self.case.pipeline.ring(*ring).slots;
                let cursor = &mut self.cursors[usize::from(ring.0)];
                cursor.previous = cursor.slot;
                cursor.slot += 1;
                if cursor.slot == slots {
                    cursor.slot = 0;
                    cursor.parity ^= 1;
                }
            }
            Node::GiveBack { ring, held } => {
                while self.cursors[usize::from(ring.0)].held > *held {
                    let cursor = self.cursors[usize::from(ring.0)];
                    self.push(
                        node,
                        Kind::Arrive {
                            barrier: self.barrier(*ring, Side::Empty, cursor.oldest),
                            count: 1,
                        },
                    );
                    let slots = self.case.pipeline.ring(*ring).slots;
                    let cursor = &mut self.cursors[usize::from(ring.0)];
                    cursor.held -= 1;
                    cursor.oldest = (cursor.oldest + 1) % slots;
                }
            }
            Node::Load {
                ring,
                part,
                index,
                map,
                at,
            } => {
                let cursor = self.cursors[usize::from(ring.0)];
                let boxed = self.case.pipeline.map(*map);
                let bytes = self.box_bytes(boxed);
                let place = self.value(index) * self.place_bytes(*map);
                let area = self.area(*ring, *part, cursor.slot, place, bytes);
                let from = self.global(*map, at);
                self.push(
                    node,
                    Kind::Load {
                        area,
                        barrier: self.barrier(*ring, Side::Full, cursor.slot),
                        bytes,
                        from,
                    },
                );
            }
            Node::Store { ring, map, at, .. } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let boxed = self.case.pipeline.map(*map);
                let bytes = self.box_bytes(boxed);
                let area = self.area(*ring, 0, slot, 0, bytes);
                let to = self.global(*map, at);
                self.push(node, Kind::Store { area, to });
                self.cursors[usize::from(ring.0)].held += 1;
            }
            Node::Tail { map, chunk } => {
                let chunk = self.value(chunk);
                self.tails.retain(|(known, _)| known != map);
                self.tails.push((*map, chunk));
            }
            Node::Commit => self.push(node, Kind::Commit),
            Node::AwaitRead { pending } => self.push(
                node,
                Kind::AwaitRead {
                    pending: *pending as usize,
                },
            ),
            Node::AwaitStores { pending } => self.push(
                node,
                Kind::AwaitStores {
                    pending: *pending as usize,
                },
            ),
            Node::Mma { ring, fresh } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let parts = &self.case.pipeline.ring(*ring).parts;
                // Each group reads its half of x and all of w.
                let half = parts[0].bytes / CONSUMERS;
                let x = self.area(*ring, 0, slot, self.group.unwrap_or(0) * half, half);
                let w = self.area(*ring, 1, slot, 0, parts[1].bytes);
                self.push(
                    node,
                    Kind::Mma {
                        areas: [x, w],
                        row: self.group.unwrap_or(0) * (self.case.pipeline.tile.rows / CONSUMERS),
                        fresh: self.value(fresh) == 0,
                    },
                );
            }
            Node::MmaCommit => self.push(node, Kind::MmaCommit),
            Node::MmaWait { pending } => self.push(
                node,
                Kind::MmaWait {
                    pending: *pending as usize,
                },
            ),
            Node::ReadPanel {
                ring,
                acc,
                slot_part,
                index,
                dtype,
                ..
            } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let area = self.half(*ring, *slot_part, slot, self.value(index), *dtype);
                self.push(node, Kind::ReadPanel { area, acc: *acc });
            }
            Node::ReadVector {
                acc,
                tensor,
                column,
                ..
            } => {
                let (acc, tensor, column) = (*acc, *tensor, self.value(column));
                self.push(
                    node,
                    Kind::ReadVector {
                        acc,
                        tensor,
                        column,
                    },
                );
            }
            Node::Apply { epilogue, part } => {
                let (epilogue, part) = (*epilogue, self.value(part));
                self.push(node, Kind::Apply { epilogue, part });
            }
            Node::WritePanel {
                ring,
                part,
                epilogue,
                dtype,
            } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let area = self.half(*ring, 0, slot, 0, *dtype);
                self.push(
                    node,
                    Kind::Plain {
                        area,
                        write: true,
                        part: self.value(part),
                        epilogue: *epilogue,
                    },
                );
            }
            Node::AddPanel {
                ring,
                slot_part,
                index,
                part,
            } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let dtype = self.case.pipeline.dtype;
                let area = self.half(*ring, *slot_part, slot, self.value(index), dtype);
                self.push(
                    node,
                    Kind::Plain {
                        area,
                        write: false,
                        part: self.value(part),
                        epilogue: None,
                    },
                );
            }
            Node::FenceShared => self.push(node, Kind::FenceShared),
            Node::FenceGlobal => self.push(node, Kind::FenceGlobal),
            Node::CounterWait { counter, cell, lag } => {
                let cell = self.case.first(*counter) + self.value(cell);
                self.push(node, Kind::CounterWait { cell, lag: *lag });
            }
            Node::CounterAdvance { counter, cell } => {
                let cell = self.case.first(*counter) + self.value(cell);
                self.push(node, Kind::CounterAdvance { cell });
            }
            Node::CounterAdd {
                counter,
                rank,
                cell,
                amount,
            } => {
                let (rank, cell) = (
                    self.value(rank),
                    self.case.first(*counter) + self.value(cell),
                );
                self.push(
                    node,
                    Kind::CounterAdd {
                        rank,
                        cell,
                        amount: u64::from(*amount),
                    },
                );
            }
            Node::Defer {
                counter,
                rank,
                cell,
                amount,
            } => {
                let (rank, cell) = (
                    self.value(rank),
                    self.case.first(*counter) + self.value(cell),
                );
                self.push(
                    node,
                    Kind::Defer {
                        rank,
                        cell,
                        amount: u64::from(*amount),
                    },
                );
            }
            Node::Flush { .. } => self.push(node, Kind::Flush),
            Node::SyncCta => self.push(node, Kind::SyncCta),
        }
    }

    fn start(&self) -> u32 {
        let (block, blocks) = crate::pipeline::Values::block(&self.env);
        let comm = comm_ctas(self.case.pipeline);
        match self.deal {
            Deal::All | Deal::Comm => block,
            Deal::Others => block.saturating_sub(comm),
            // One wave is done by the others alone.
            Deal::Join if block >= comm => block - comm,
            Deal::Join => blocks - comm + block,
        }
    }

    fn next(&self) -> u32 {
        let (block, blocks) = crate::pipeline::Values::block(&self.env);
        let comm = comm_ctas(self.case.pipeline);
        let (index, others) = (self.env.index, blocks - comm);
        match self.deal {
            Deal::All => index + blocks,
            Deal::Comm => index + comm,
            Deal::Others => index + others,
            Deal::Join if index >= others => index + blocks,
            Deal::Join => others + block,
        }
    }

    /// A barrier's number in its CTA.
    fn barrier(&self, ring: RingId, side: Side, slot: u32) -> usize {
        let before: u32 = self.case.pipeline.rings[..usize::from(ring.0)]
            .iter()
            .map(|ring| ring.slots * 2)
            .sum();
        let side = match side {
            Side::Full => 0,
            Side::Empty => self.case.pipeline.ring(ring).slots,
        };
        (before + side + slot) as usize
    }

    fn area(&self, ring: RingId, part: usize, slot: u32, offset: u32, bytes: u32) -> Area {
        let start = self.case.pipeline.ring(ring).part_at(part, slot) + offset;
        Area {
            start,
            end: start + bytes,
        }
    }

    fn box_bytes(&self, map: &Map) -> u32 {
        let dtype = self.case.pipeline.kernel.buffers[map.tensor.index()].dtype;
        map.box_rows * map.box_columns * dtype.bytes()
    }

    /// From a box of a part to the next: blocks lie one after another, panels each in a place for the widest type.
    fn place_bytes(&self, map: MapId) -> u32 {
        let pipeline = self.case.pipeline;
        if pipeline.rows_contiguous(map) {
            self.box_bytes(pipeline.map(map))
        } else {
            pipeline.tile.rows * 128
        }
    }

    /// This group's rows of a panel.
    fn half(&self, ring: RingId, part: usize, slot: u32, index: u32, dtype: Dtype) -> Area {
        let pipeline = self.case.pipeline;
        let half = pipeline.tile.rows * pipeline.panel_columns * dtype.bytes() / CONSUMERS;
        let place = index * pipeline.tile.rows * 128;
        self.area(
            ring,
            part,
            slot,
            place + self.group.unwrap_or(0) * half,
            half,
        )
    }

    /// What a box covers, clipped as the map clips it.
    fn global(&self, id: MapId, at: &At) -> Box4 {
        let map = self.case.pipeline.map(id);
        let [column, row, chunk, rank] =
            [&at.column, &at.row, &at.chunk, &at.rank].map(|expr| self.value(expr));
        let buffer = &self.case.pipeline.kernel.buffers[map.tensor.index()];
        let home = match map.view {
            View::Flat | View::Chunks => self.env.rank,
            View::SharedChunks | View::SharedSlots | View::SharedChunk => rank,
        };
        let (mut rows, allowed) = self.case.rows(map.tensor, map.view, chunk, home);
        let tail = self.tails.iter().rev().find(|(known, _)| *known == id);
        if let Some((_, of)) = tail
            && *of == chunk
        {
            rows = rows.min(allowed);
        }
        let columns = self.case.plan.geometry.size(buffer.columns);
        Box4 {
            tensor: map.tensor,
            rank: home,
            chunk,
            rows: (row.min(rows), (row + map.box_rows).min(rows)),
            columns: (column.min(columns), (column + map.box_columns).min(columns)),
            origin: (row, column),
            allowed,
            view: map.view,
        }
    }
}
