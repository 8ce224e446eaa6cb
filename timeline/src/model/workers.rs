//! Workers: the CTAs, spare warps and copy engines that claim items and take their steps in order.

use super::event::EventKind;
use super::links::Transfer;
use super::sim::{Action, Sim, Waiting};
use super::state::{Did, Fetch, Mode, Worker};
use super::volume::{Crossing, EVERYWHERE, crossing, end};
use counterflow_codegen::kernel::{OpId, RoleKind};
use counterflow_codegen::program::{Side, StoreMode};
use counterflow_codegen::region::{Owner, Rectangle};
use counterflow_codegen::unroll::StepKind;

/// Bytes of a tile's operands that a CTA reads at a time.
const PART: u64 = 64 << 10;

impl Sim<'_> {
    /// Takes a worker's steps until one takes time or cannot start.
    pub(super) fn run(&mut self, w: usize) {
        let plan = self.plan;
        loop {
            let Some((item, first)) = self.workers[w].item else {
                if self.claim(w) {
                    continue;
                }
                return;
            };
            let agent = self.workers[w].agent as usize;
            let cursor = self.workers[w].cursor;
            if self.agents[agent].done < first {
                self.workers[w]
                    .blocked
                    .get_or_insert((self.now, EventKind::Join));
                self.agents[agent].joining.push(w as u32);
                return;
            }
            if cursor == self.workers[w].end {
                self.leave(w, item);
                continue;
            }
            let step = &plan.agents[agent].steps[cursor as usize];
            let did = self.step(w, step.op, &step.kind);
            if let Did::Blocked(why) = did {
                self.workers[w].blocked.get_or_insert((self.now, why));
                return;
            }
            self.unblocked(w, step.op);
            self.workers[w].cursor += 1;
            if let Did::Started = did {
                return;
            }
        }
    }

    /// Claims the next item. False if there is none.
    fn claim(&mut self, w: usize) -> bool {
        loop {
            let agent = self.workers[w].agent;
            let state = &mut self.agents[agent as usize];
            let Some(item) = self.plan.agents[agent as usize]
                .items
                .get(state.next as usize)
            else {
                match self.workers[w].then.take() {
                    Some(gemm) => {
                        self.workers[w].agent = gemm;
                        continue;
                    }
                    None => {
                        self.workers[w].done = true;
                        self.finished = self.finished.max(self.now);
                        return false;
                    }
                }
            };
            if item.phase != state.phase.0 {
                state.phase = (item.phase, state.next);
            }
            let worker = &mut self.workers[w];
            let (which, index) = (state.next, state.batch);
            worker.item = Some((which, state.phase.1));
            (worker.cursor, worker.end) = (item.start, item.end);
            worker.fresh = true;
            let batch = self.batch(agent, which, index);
            self.workers[w].batch = batch;
            let state = &mut self.agents[agent as usize];
            state.batch = (index + 1) % batch.of();
            state.next += u32::from(state.batch == 0);
            return true;
        }
    }

    /// The worker has finished an item, except for what its store lane still has to store.
    fn leave(&mut self, w: usize, item: u32) {
        let worker = &mut self.workers[w];
        let of = (worker.agent, item);
        worker.item = None;
        if !self.close_lane(w, of) && self.is_last(w, (item, None)) {
            self.complete(of.0 as usize);
        }
    }

    pub(super) fn complete(&mut self, agent: usize) {
        self.finished = self.finished.max(self.now);
        let state = &mut self.agents[agent];
        state.done += 1;
        if state.joining.is_empty() {
            return;
        }
        // Those that are still too early wait again. They run as separate events, since this may run inside one.
        for worker in std::mem::take(&mut state.joining) {
            self.at(self.now, Action::Run(worker));
        }
    }

    fn step(&mut self, w: usize, op: OpId, step: &StepKind) -> Did {
        let rank = self.workers[w].rank;
        match step {
            StepKind::Wait {
                counter,
                cell,
                at_least,
            } => {
                let lag = self.kernel.counters[counter.index()].purpose.lag();
                if self.mode == Mode::Whole && lag == 0 {
                    let target = self.plan.arrivals.target(rank, *counter, *cell, *at_least);
                    let index = self.plan.arrivals.index(rank, *counter, *cell);
                    if self.cells[index] < target {
                        let (worker, counter) = (w as u32, *counter);
                        self.waiting.entry(index).or_default().push(Waiting {
                            worker,
                            counter,
                            target,
                        });
                        return Did::Blocked(EventKind::Wait);
                    }
                }
                Did::Step
            }
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => {
                if self.mode == Mode::GemmAlone || self.hand_over(w) {
                    return Did::Step;
                }
                let Worker { item, cursor, .. } = self.workers[w];
                let item = item.map_or(0, |(item, _)| item);
                if self.is_last(w, (item, Some(cursor))) {
                    let index = self.plan.arrivals.index(*home, *counter, *cell);
                    self.signal(w, false, *home, index, *amount);
                }
                Did::Step
            }
            StepKind::Copy { src, .. } => {
                if self.mode == Mode::GemmAlone {
                    return Did::Step;
                }
                let batch = self.workers[w].batch;
                match crossing(self.kernel, rank, step) {
                    Some(moved) => self.transfer(
                        w,
                        op,
                        Crossing {
                            bytes: batch.share(moved.bytes),
                            ..moved
                        },
                    ),
                    None => {
                        let bytes = batch.share(src.bytes(self.kernel));
                        self.local(w, op, EventKind::Local, 2 * bytes)
                    }
                }
            }
            StepKind::Dot { a, b, .. } => {
                let fresh = std::mem::replace(&mut self.workers[w].fresh, false);
                let mut fetch = Fetch {
                    op,
                    left: 0,
                    since: self.now,
                    until: self.now + self.costs.dot(op, a, b, fresh),
                };
                for (span, rows) in [(a, true), (b, false)] {
                    self.first_touch(rank, (op, span, rows), &mut fetch);
                }
                self.workers[w].fetch = fetch;
                self.fetch(w);
                Did::Started
            }
            StepKind::Reduce { from, .. } => {
                if self.mode == Mode::GemmAlone {
                    return Did::Step;
                }
                self.read(w, op, EventKind::Reduce, (step, from))
            }
            StepKind::OwnTerm { .. } => Did::Step,
            StepKind::Load { from, .. } => {
                let usage = self.kernel.buffers[from.tensor.index()].usage;
                let repeats = usage.is_same_in(Side::Rows) || usage.is_same_in(Side::Columns);
                // The next tile finds it in the cache.
                if repeats && from.owner == Owner::Rank(rank) && !self.touches(rank, from) {
                    return Did::Step;
                }
                self.read(w, op, EventKind::Load, (step, from))
            }
            StepKind::Store { dst, mode, .. } => {
                if self.gemm(w) && !self.hand_over(w) {
                    return self.open_lane(w);
                }
                if self.gemm(w) {
                    return Did::Step;
                }
                self.write(w, op, dst, *mode, false)
            }
        }
    }

    fn gemm(&self, w: usize) -> bool {
        matches!(self.role(w), RoleKind::Gemm(_))
    }

    fn role(&self, w: usize) -> RoleKind {
        let agent = &self.plan.agents[self.workers[w].agent as usize];
        self.kernel.roles[usize::from(agent.role)].kind
    }

    /// Records the wait that just ended, if there was one.
    fn unblocked(&mut self, w: usize, op: OpId) {
        if let Some((since, kind)) = self.workers[w].blocked.take()
            && since < self.now
        {
            self.record(w, kind, op, (since, self.now), None);
        }
    }

    /// True if this is the first read of a rectangle that begins there.
    fn touches(&mut self, rank: u16, of: &Rectangle) -> bool {
        let key = (rank, of.tensor.0, of.rows.start, of.columns.start);
        self.touched.insert(key, ()).is_none()
    }

    /// First reads of memory: what tiles share is read once and stays in the cache. What other CTAs read at the same time holds up none
    /// of them more than the others, so it is read at once.
    fn first_touch(
        &mut self,
        rank: u16,
        (op, of, rows): (OpId, &Rectangle, bool),
        fetch: &mut Fetch,
    ) {
        if !self.touches(rank, of) {
            return;
        }
        let bytes = of.bytes(self.kernel);
        if self.costs.is_alone(op, rows) {
            fetch.left += bytes;
            return;
        }
        let (asked, rate) = (self.costs.asked(bytes), self.costs.operand_rate());
        let end = self.servers.memory(self.now, rank, asked, rate);
        fetch.until = fetch.until.max(end);
    }

    /// Reads the next part of a tile's operands. CTAs take turns part by part, and so share memory evenly, as on the machine: those of
    /// a wave end together, and the few of a last one have it to themselves, as far as a CTA can draw on it.
    pub(super) fn fetch(&mut self, w: usize) {
        let Worker { rank, fetch, .. } = self.workers[w];
        let bytes = fetch.left.min(PART);
        let rate = self.costs.operand_rate();
        let end = match bytes {
            0 => self.now,
            _ => self.servers.memory(self.now, rank, bytes, rate),
        };
        self.workers[w].fetch.left -= bytes;
        if fetch.left > bytes {
            self.at(end, Action::Fetch(w as u32));
            return;
        }
        let end = end.max(fetch.until);
        self.record(w, EventKind::Dot, fetch.op, (fetch.since, end), None);
        self.at(end, Action::Run(w as u32));
    }

    fn local(&mut self, w: usize, op: OpId, kind: EventKind, bytes: u64) -> Did {
        let rank = self.workers[w].rank;
        let end = self
            .servers
            .memory(self.now, rank, bytes, self.costs.sm_rate());
        if kind != EventKind::Load {
            self.record(w, kind, op, (self.now, end), None);
        }
        self.at(end, Action::Run(w as u32));
        Did::Started
    }

    /// Reads a tile, and its scales if it has some.
    fn read(
        &mut self,
        w: usize,
        op: OpId,
        kind: EventKind,
        (step, from): (&StepKind, &Rectangle),
    ) -> Did {
        match crossing(self.kernel, self.workers[w].rank, step) {
            Some(moved) if self.mode != Mode::GemmAlone => self.transfer(w, op, moved),
            Some(_) | None => self.local(w, op, kind, self.kernel.tile_bytes(from)),
        }
    }

    /// Writes a tile, and the scales that are made of it.
    pub(super) fn write(
        &mut self,
        w: usize,
        op: OpId,
        dst: &Rectangle,
        mode: StoreMode,
        lane: bool,
    ) -> Did {
        let rank = self.workers[w].rank;
        let (bytes, dst) = (self.kernel.tile_bytes(dst), end(dst.owner));
        let own = dst == rank || self.plan.geometry.world == 1;
        if own || self.mode == Mode::GemmAlone {
            // An add in place reads the old contents.
            let adds = mode == StoreMode::Add && own;
            let moved = if adds { 2 * bytes } else { bytes };
            let end = self
                .servers
                .memory(self.now, rank, moved, self.costs.sm_rate());
            let action = if lane {
                Action::Lane(w as u32)
            } else {
                Action::Run(w as u32)
            };
            self.at(end, action);
            return Did::Started;
        }
        let ends = [rank, dst];
        let push = self.path(self.role(w), true, mode == StoreMode::Add, ends);
        self.send(Transfer {
            worker: w as u32,
            lane,
            op,
            src: rank,
            dst,
            turns: false,
            bytes,
            left: bytes,
            path: push,
            start: self.now,
        });
        Did::Started
    }

    /// A transfer that the worker waits for.
    fn transfer(&mut self, w: usize, op: OpId, Crossing { src, dst, bytes }: Crossing) -> Did {
        // A copy engine has no multicast: it goes to one rank after another.
        let turns = dst == EVERYWHERE && self.role(w).sequential();
        let dst = if turns { u16::from(src == 0) } else { dst };
        let push = src == self.workers[w].rank && src != EVERYWHERE;
        self.send(Transfer {
            worker: w as u32,
            lane: false,
            op,
            src,
            dst,
            turns,
            bytes,
            left: bytes,
            path: self.path(self.role(w), push, false, [src, dst]),
            start: self.now,
        });
        Did::Started
    }
}
