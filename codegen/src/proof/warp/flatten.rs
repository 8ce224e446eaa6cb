//! One role of one CTA in one launch, as the list of its steps: control depends on the shape and on ranks only.

mod areas;
mod barriers;

use super::case::{Case, Env};
use super::step::{Area, Ctas, FragmentStep, Kind, Step};
use crate::diag::Diagnostic;
use crate::program::Loc;
use crate::warp::{
    BLOCK_ROWS, Expr, Lanes, Node, Phase, RingId, RunBy, Scheduler, Slot, Values, Whose,
};

/// Place of a role in a ring.
#[derive(Clone, Copy, Default)]
struct Cursor {
    slot: u32,
    /// Passes over the ring.
    phase: u32,
    previous: u32,
    held: u32,
    oldest: u32,
}

pub(super) struct Flattener<'a> {
    pub(super) case: &'a Case<'a>,
    env: Env<'a>,
    cursors: Vec<Cursor>,
    /// Index among the role's runners.
    runner: u32,
    run_by: RunBy,
    /// True if all lanes of its warp make its accesses of every rank's memory, and store parts of tiles.
    all_lanes: bool,
    /// Scheduler that gives it its items.
    scheduler: Option<&'a Scheduler>,
    /// Arrivals at its order barrier that its next wait needs.
    order: u32,
    /// The statement that the nodes are of, by the last note.
    at: Option<Loc>,
    item: Option<(u32, u32)>,
    /// The tiling of the loop over items.
    pub(super) tiling: usize,
    steps: Vec<Step<'a>>,
}

/// The steps of a role in a launch of a plan, for one of its runners if it has several.
///
/// # Errors
/// A number that has no value.
pub(super) fn flatten<'a>(
    case: &'a Case<'a>,
    (plan, rank): (usize, u32),
    block: u32,
    warp: usize,
    runner: u32,
) -> Result<Vec<Step<'a>>, Box<Diagnostic>> {
    let warp = &case.pipeline.warps[warp];
    let mut flat = Flattener {
        case,
        env: Env::new(case, plan, rank, block),
        cursors: vec![Cursor::default(); case.pipeline.rings.len()],
        runner,
        run_by: warp.run_by,
        all_lanes: warp.run_by != RunBy::Groups && warp.lanes() == Lanes::All,
        scheduler: None,
        order: runner,
        at: None,
        item: None,
        tiling: 0,
        steps: Vec::new(),
    };
    flat.set("consumer", runner);
    flat.list(&case.pipeline.start);
    flat.list(&warp.body);
    flat.item = None;
    let first = matches!(warp.run_by, RunBy::Thread { warp: 0 });
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
    let role = &case.pipeline.kernel.roles[case.roles.gemm];
    match flat.env.fault(warp.name, role.at) {
        Some(found) => Err(Box::new(found)),
        None => Ok(flat.steps),
    }
}

impl<'a> Flattener<'a> {
    pub(super) fn push(&mut self, node: &'a Node, kind: Kind) {
        self.steps.push(Step {
            node,
            kind,
            at: self.at,
            item: self.item,
            tiling: self.tiling,
            role: self.scheduler.map_or(self.case.roles.gemm, |of| of.role),
        });
    }

    fn list(&mut self, nodes: &'a [Node]) {
        let at = self.at;
        nodes.iter().for_each(|node| self.node(node));
        self.at = at;
    }

    pub(super) fn value(&self, expr: &Expr) -> u32 {
        expr.eval(&self.env)
    }

    fn set(&mut self, name: &str, value: u32) {
        self.env.set(name, value);
    }

    fn node(&mut self, node: &'a Node) {
        match node {
            Node::Accumulators => {
                let tiling = self.case.pipeline.tiling_of(self.tiling);
                if tiling.promotion().is_some() {
                    self.push(node, Kind::Fragment(FragmentStep::StartProducts));
                }
            }
            Node::Note(note) => self.at = note.loc,
            Node::MmaFence | Node::LastCta { .. } => {}
            // Of a warp whose lanes each do a part of its accesses.
            Node::SyncWarp if self.all_lanes => self.push(node, Kind::SyncWarp),
            Node::SyncWarp => {}
            Node::Let { name, value } => {
                let value = self.value(value);
                self.set(name, value);
            }
            Node::Schedule { scheduler, body } => {
                let scheduler = self.case.pipeline.scheduler(*scheduler);
                self.scheduler = Some(scheduler);
                self.env.first = 0;
                self.env.index = scheduler.first(self.runner, &self.env);
                // A role's rings are its own from here: the emitter declares their cursors here.
                let rings = &self.case.pipeline.rings;
                let fresh = rings.iter().map(|ring| Cursor {
                    slot: if ring.sets > 1 {
                        self.runner * ring.slots
                    } else {
                        0
                    },
                    ..Cursor::default()
                });
                self.cursors = fresh.collect();
                self.list(body);
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
            Node::Others { var, own, body } => {
                for rank in 0..self.case.world {
                    self.set(var, rank);
                    match own {
                        _ if rank != self.env.rank => self.list(body),
                        Some(own) => self.fragment(node, own),
                        None => {}
                    }
                }
            }
            Node::Items {
                of,
                count,
                grid,
                body,
            } => {
                let count = self.value(count);
                let scheduler = self.case.pipeline.scheduler(of.scheduler);
                self.tiling = self.case.pipeline.item_loop(*of).tiling;
                while self.env.within() < count {
                    if let Some(grid) = grid {
                        let [index, rows, columns] = [&grid.index, &grid.rows, &grid.columns]
                            .map(|number| self.value(number));
                        let order = self.case.pipeline.order(*of);
                        let (row, column) = order.at(index, rows, columns);
                        self.env.set_of(&grid.var, ".row", row);
                        self.env.set_of(&grid.var, ".column", column);
                        self.item = Some((row, column));
                    }
                    self.list(body);
                    self.env.index = scheduler.next(self.env.index, self.run_by, &self.env);
                }
                self.env.first += count;
                (self.item, self.tiling) = (None, 0);
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
            Node::Await { barrier, phase } => {
                let cursor = self.cursors[usize::from(barrier.ring.0)];
                let phases = match phase {
                    Phase::ThisPhase => cursor.phase + 1,
                    Phase::PreviousPhase => cursor.phase,
                    Phase::Staggered => cursor.phase + self.runner,
                };
                self.push(
                    node,
                    Kind::Await {
                        barrier: self.barrier(*barrier, cursor.slot),
                        phases,
                    },
                );
            }
            Node::TestWait { ring } => {
                let (barrier, phases) = self.full(*ring);
                self.push(node, Kind::TestWait { barrier, phases });
            }
            Node::AwaitTested { ring } => {
                let (barrier, phases) = self.full(*ring);
                self.push(node, Kind::Await { barrier, phases });
            }
            Node::Expect { barrier, bytes } => {
                let slot = self.slot(barrier.ring, Slot::Current);
                let kind = Kind::Expect {
                    barrier: self.barrier(*barrier, slot),
                    bytes: self.value(bytes),
                };
                self.push(node, kind);
            }
            Node::Arrive { barrier, slot } => {
                let slot = self.slot(barrier.ring, *slot);
                let count = if self.run_by == RunBy::Groups { 4 } else { 1 };
                let ctas = self.arrival_ctas(*barrier);
                self.push(
                    node,
                    Kind::Arrive {
                        barrier: self.barrier(*barrier, slot),
                        count,
                        ctas,
                    },
                );
            }
            Node::Advance { ring, .. } => {
                self.cursors[usize::from(ring.0)].previous = self.cursors[usize::from(ring.0)].slot;
                self.advance(*ring);
            }
            Node::Ahead { ring, body } => {
                let before = self.cursors[usize::from(ring.0)];
                self.list(body);
                self.cursors[usize::from(ring.0)] = before;
            }
            Node::Skip { ring, by } => {
                for _ in 0..self.value(by) {
                    self.advance(*ring);
                }
            }
            Node::AwaitOrder => {
                let barrier = self.order_barrier(self.runner);
                let phases = self.order;
                self.order += 1;
                self.push(node, Kind::Await { barrier, phases });
            }
            Node::ArriveOrder => {
                let barrier = self.order_barrier(self.runner ^ 1);
                self.push(
                    node,
                    Kind::Arrive {
                        barrier,
                        count: 4,
                        ctas: Ctas::one(self.rank()),
                    },
                );
            }
            Node::Release { ring, held } => {
                let held = self.value(held);
                while self.cursors[usize::from(ring.0)].held > held {
                    let cursor = self.cursors[usize::from(ring.0)];
                    self.push(
                        node,
                        Kind::Arrive {
                            barrier: self.barrier(ring.empty(), cursor.oldest),
                            count: 1,
                            ctas: Ctas::one(self.rank()),
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
                slice,
                map,
                at,
                multicast,
                partial_boxes,
            } => {
                let cursor = self.cursors[usize::from(ring.0)];
                let boxed = self.box_bytes(self.case.pipeline.map(*map));
                if at.whose == Whose::Everywhere {
                    let place =
                        self.value(index) * self.place_bytes(*map) + self.value(slice) * boxed;
                    let area = self.area(*ring, *part, cursor.slot, place, boxed);
                    let from = self.everywhere(*map, at, false);
                    return self.push(node, Kind::SumEverywhere { area, from });
                }
                let half = if *multicast {
                    self.env.var("multicast_rank")
                } else {
                    0
                };
                let place =
                    self.value(index) * self.place_bytes(*map) + (self.value(slice) + half) * boxed;
                let ctas = match multicast {
                    false => Ctas::one(self.rank()),
                    true => Ctas::of(self.case.pipeline.cta.multicast_group(), None),
                };
                // The box, or those of its partial boxes.
                let (map, all) = match partial_boxes {
                    Some(partial_boxes)
                        if self.value(&partial_boxes.rows) != self.value(&partial_boxes.all) =>
                    {
                        (partial_boxes.map, self.value(&partial_boxes.rows))
                    }
                    Some(_) | None => (*map, self.case.pipeline.map(*map).box_rows),
                };
                let loaded = self.case.pipeline.map(map);
                let (rows, bytes) = (loaded.box_rows, self.box_bytes(loaded));
                for row in (0..all).step_by(rows as usize) {
                    let place = place + row / rows * bytes;
                    let kind = Kind::Load {
                        ctas,
                        area: self.area(*ring, *part, cursor.slot, place, bytes),
                        barrier: self.barrier(ring.full(), cursor.slot),
                        bytes,
                        from: self.global(map, at, row),
                    };
                    self.push(node, kind);
                }
            }
            Node::Store {
                ring,
                slice,
                map,
                at,
                shard_end,
                ..
            } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let boxed = self.case.pipeline.map(*map);
                let bytes = self.box_bytes(boxed);
                let area = self.area(*ring, 0, slot, self.value(slice) * bytes, bytes);
                let kind = match (&at.whose, shard_end) {
                    (Whose::Rank(_), None) => Kind::Store {
                        area,
                        to: self.stored_to(*map, at),
                    },
                    (Whose::Rank(_), Some(end)) => Kind::StorePart {
                        area,
                        to: self.part_of_shard(*map, at, end),
                    },
                    (Whose::Everywhere, _) => Kind::StoreEverywhere {
                        area,
                        to: self.everywhere(*map, at, true),
                    },
                };
                self.push(node, kind);
                self.cursors[usize::from(ring.0)].held += 1;
            }
            Node::Commit => self.push(node, Kind::Commit),
            Node::AwaitRead { pending } => self.push(
                node,
                Kind::AwaitRead {
                    pending: self.value(pending) as usize,
                },
            ),
            Node::AwaitStores { pending } => self.push(
                node,
                Kind::AwaitStores {
                    pending: self.value(pending) as usize,
                },
            ),
            Node::Mma {
                ring,
                multiply,
                piece,
                fresh,
            } => {
                let slot = self.cursors[usize::from(ring.0)].slot;
                let pipeline = self.case.pipeline;
                let line = pipeline.tile().k * pipeline.dtype().bytes();
                // Each group reads its share of what is on the instruction's M side, and all of the other operand.
                let tiling = pipeline.tiling_of(self.tiling);
                let shared = usize::from(tiling.swap_ab());
                let multiply = &tiling.multiplies()[*multiply];
                // On the N side the instruction goes on where an operand ends, whatever lies there.
                let mut behind = 0;
                for (product, on_n) in (multiply.first..).zip(&multiply.on_n) {
                    let (x, w) = tiling.sides(multiply.on_m, *on_n);
                    let bytes =
                        [x, w].map(|part| pipeline.ring(*ring).part(self.tiling, part).bytes);
                    let (m, n) = (shared, 1 - shared);
                    let mut read = bytes.map(|bytes| (0, bytes));
                    read[m] = self.share(bytes[m]);
                    if let (Some(piece), Some(promotion)) = (piece, tiling.promotion()) {
                        let block = BLOCK_ROWS * line;
                        read[m].0 += piece.block * block;
                        read[m].1 = promotion.together * block;
                        let part = promotion.n * line;
                        read[n] = (piece.part * part, part);
                    }
                    let area = |side: usize| {
                        let (part, before) = if side == m {
                            (multiply.on_m, 0)
                        } else {
                            (multiply.on_n[0], behind)
                        };
                        self.area(*ring, part, slot, before + read[side].0, read[side].1)
                    };
                    let kind = Kind::Mma {
                        product,
                        piece: *piece,
                        areas: [area(0), area(1)],
                        before: read.map(|(offset, _)| offset / line),
                        barrier: self.barrier(ring.full(), slot),
                        fresh: self.value(fresh) == 0,
                    };
                    self.push(node, kind);
                    behind += bytes[n];
                }
            }
            Node::MmaCommit => self.push(node, Kind::MmaCommit),
            Node::MmaWait { pending } => self.push(
                node,
                Kind::MmaWait {
                    pending: *pending as usize,
                },
            ),
            Node::Fragment(op) => self.fragment(node, op),
            Node::FenceShared => self.push(node, Kind::FenceShared),
            Node::CopyScales {
                tensor,
                from,
                to,
                row,
                rows,
            } => {
                let (first, rows) = (self.value(row), self.value(rows));
                let [from, to] = [from, to].map(|rank| {
                    let rank = self.value(rank);
                    self.case
                        .scales(self.env.plan, (*tensor, rank), (first, first + rows))
                });
                self.push(node, Kind::CopyScales { from, to });
            }
            Node::FenceGlobal => self.push(node, Kind::FenceGlobal),
            Node::FenceAlias => self.push(node, Kind::FenceAlias),
            Node::CounterWait {
                counter,
                cell,
                lag,
                at_least,
            } => {
                let cell = self.case.first(*counter) + self.value(cell);
                let (lag, at_least) = (*lag, at_least.map(u64::from));
                self.push(
                    node,
                    Kind::CounterWait {
                        cell,
                        lag,
                        at_least,
                    },
                );
            }
            Node::CounterAdvance { counter, cell } => {
                let cell = self.case.first(*counter) + self.value(cell);
                self.push(node, Kind::CounterAdvance { cell });
            }
            Node::CounterAdd {
                counter,
                whose,
                cell,
                amount,
            } => {
                let ranks = match whose {
                    Whose::Rank(rank) => {
                        let rank = self.value(rank);
                        rank..rank + 1
                    }
                    Whose::Everywhere => 0..self.case.world,
                };
                let cell = self.case.first(*counter) + self.value(cell);
                let amount = u64::from(*amount);
                for rank in ranks {
                    self.push(node, Kind::CounterAdd { rank, cell, amount });
                }
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
            Node::AwaitLaunches => self.push(node, Kind::AwaitLaunches),
            Node::SyncCta => self.push(node, Kind::Sync { everywhere: false }),
            Node::SyncCluster => self.push(node, Kind::Sync { everywhere: true }),
        }
    }

    pub(super) fn area(
        &self,
        ring: RingId,
        part: usize,
        slot: u32,
        offset: u32,
        bytes: u32,
    ) -> Area {
        let buffer = self.case.pipeline.ring(ring).buffer.as_ref();
        let start = buffer.map_or(0, |buffer| {
            buffer.part_at(buffer.part(self.tiling, part), slot)
        });
        let start = start + offset;
        Area {
            start,
            end: start + bytes,
        }
    }

    fn advance(&mut self, ring: RingId) {
        let slots = self.case.pipeline.ring(ring).slots;
        let cursor = &mut self.cursors[usize::from(ring.0)];
        cursor.slot += 1;
        if cursor.slot.is_multiple_of(slots) {
            cursor.slot -= slots;
            cursor.phase += 1;
        }
    }
}
