//! A kernel that runs: its roles' items, the workers that have them, and their steps.

use super::bytes::{Fault, Lines, Memory, add, word};
use super::watch::GaveUp;
use super::work::{Launch, Place};
use crate::blocks::Summing;
use crate::data::{Tile, amax_with, evaluate};
use crate::policy::Numbers;
use crate::step::shares;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Amax, Kernel, ValueId};
use counterflow_codegen::plan::COUNTER_LINE;
use counterflow_codegen::program::{CounterId, StoreMode, TensorId};
use counterflow_codegen::region::{Owner, Rectangle, as_lines};
use counterflow_codegen::unroll::{Agent, StepKind};

/// One of a role's CTAs: it takes the steps of an item in order, then claims the next.
#[derive(Debug, Default)]
struct Worker {
    role: usize,
    /// The next step, and one past the item's last.
    item: Option<(u32, u32)>,
    accs: Vec<Option<Tile>>,
    /// Since when it has waited.
    since: Option<u64>,
}

#[derive(Debug, Default)]
struct Role {
    /// The next item to claim.
    next: u32,
    phase: u32,
    running: u32,
    /// True if the host runs it instead.
    host: bool,
}

/// A running kernel.
#[derive(Debug)]
pub(super) struct Running {
    pub launch: Launch,
    roles: Vec<Role>,
    workers: Vec<Worker>,
    /// True if waits return at once.
    drained: bool,
    /// Order in which the switch adds.
    switch: Numbers,
}

/// Outcome of trying a worker's next step.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Took {
    /// A step was taken.
    Step,
    /// Nothing: all wait.
    Nothing,
}

/// A wait that cannot end yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The rank that waits.
    pub rank: u32,
    /// Role that waits.
    pub role: String,
    /// Counter cell that it waits for.
    pub on: String,
    /// The count that is there.
    pub seen: u64,
    /// The count that it waits for.
    pub wanted: u64,
}

impl Running {
    /// With that many workers for each role. The switch adds in orders that `switch` draws.
    pub fn new(launch: Launch, switch: Numbers, mut workers: impl FnMut() -> u32) -> Running {
        let kernel = launch.plan.kernel();
        let roles: Vec<Role> = kernel
            .roles
            .iter()
            .map(|role| Role {
                host: role.kind.sequential(),
                ..Role::default()
            })
            .collect();
        let mut all = Vec::new();
        for (role, _) in roles.iter().enumerate().filter(|(_, role)| !role.host) {
            for _ in 0..workers().max(1) {
                all.push(Worker {
                    role,
                    accs: vec![None; kernel.accs.len()],
                    ..Worker::default()
                });
            }
        }
        Running {
            launch,
            roles,
            workers: all,
            drained: false,
            switch,
        }
    }

    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    pub fn role_of(&self, worker: usize) -> usize {
        self.workers[worker].role
    }

    /// True if every item is done.
    pub fn done(&self) -> bool {
        let mut roles = self.roles.iter().enumerate().filter(|(_, role)| !role.host);
        roles
            .all(|(at, role)| role.running == 0 && role.next as usize == self.agent(at).items.len())
    }

    fn agent(&self, role: usize) -> &Agent {
        self.launch.plan.agent(self.launch.rank, role)
    }

    /// Claims the next item, if it may start.
    fn claim(&mut self, worker: usize) -> bool {
        let role = self.workers[worker].role;
        let state = &self.roles[role];
        let Some(item) = self.agent(role).items.get(state.next as usize).copied() else {
            return false;
        };
        if item.phase > state.phase && state.running > 0 {
            return false;
        }
        let state = &mut self.roles[role];
        state.phase = item.phase;
        state.next += 1;
        if item.start < item.end {
            state.running += 1;
            self.workers[worker].item = Some((item.start, item.end));
            self.workers[worker].accs.fill(None);
        }
        true
    }

    /// Takes the worker's next step, unless it must wait. A wait that gave up for the first time is told.
    pub fn take(
        &mut self,
        worker: usize,
        memory: &mut impl Memory,
        now: u64,
        told: &mut Vec<GaveUp>,
    ) -> Result<Took, Fault> {
        let Some((step, end)) = self.workers[worker].item else {
            return Ok(match self.claim(worker) {
                true => Took::Step,
                false => Took::Nothing,
            });
        };
        let role = self.workers[worker].role;
        let kind = self.agent(role).steps[step as usize].kind;
        if let StepKind::Wait {
            counter,
            cell,
            at_least,
        } = kind
            && !self.passes(worker, (counter, cell, at_least), memory, now, told)?
        {
            return Ok(Took::Nothing);
        }
        let mut accs = std::mem::take(&mut self.workers[worker].accs);
        let mut switch = self.switch.clone();
        let done = self.act(role, &kind, (&mut accs, &mut switch), memory);
        self.workers[worker].accs = accs;
        self.switch = switch;
        done?;
        self.workers[worker].item = Some((step + 1, end)).filter(|(next, end)| next < end);
        self.roles[role].running -= u32::from(step + 1 == end);
        Ok(Took::Step)
    }

    fn cell(&self, home: u32, counter: CounterId, cell: u32) -> u64 {
        let launch = &self.launch;
        let cell = u64::from(launch.first[counter.index()] + cell) * COUNTER_LINE;
        launch.cells + u64::from(home) * launch.stride + cell
    }

    fn scale(&self, counter: CounterId) -> u64 {
        u64::from(self.launch.scales[counter.index()])
    }

    /// Number that a cell has, and the one that a wait wants of it.
    fn counts(
        &self,
        (counter, cell, at_least): (CounterId, u32, Option<u32>),
        memory: &impl Memory,
    ) -> Result<(u64, u64), Fault> {
        let rank = self.launch.rank;
        let at = self.cell(rank, counter, cell);
        let plan = &self.launch.plan;
        let more = match plan.kernel().counters[counter.index()].purpose.lag() {
            0 => plan.arrivals.target(rank as u16, counter, cell, at_least),
            _ => 0,
        };
        let wanted = word(memory, at + 8)? + u64::from(more) * self.scale(counter);
        Ok((word(memory, at)?, wanted))
    }

    fn passes(
        &mut self,
        worker: usize,
        wait: (CounterId, u32, Option<u32>),
        memory: &mut impl Memory,
        now: u64,
        told: &mut Vec<GaveUp>,
    ) -> Result<bool, Fault> {
        if self.drained {
            return Ok(true);
        }
        let (seen, wanted) = self.counts(wait, memory)?;
        if seen >= wanted {
            self.workers[worker].since = None;
            return Ok(true);
        }
        let watch = self.launch.watch;
        let since = *self.workers[worker].since.get_or_insert(now);
        let at = (self.launch.rank, self.launch.stride);
        let Some(cause) = watch.cause(at, now.saturating_sub(since), memory)? else {
            return Ok(false);
        };
        self.drained = true;
        let first = self.launch.first[wait.0.index()];
        told.push(GaveUp {
            id: watch.id,
            kernel: watch.kernel,
            cause,
            rank: self.launch.rank,
            role: self.workers[worker].role as u32,
            counter: u32::from(wait.0.0),
            cell: first + wait.1,
            seen,
            wanted,
            time: now,
        });
        let world = self.launch.plan.geometry.world;
        watch.tell(world, self.launch.stride, memory)?;
        Ok(true)
    }

    /// Earliest time at which one of its waits gives up.
    pub fn deadline(&self) -> Option<u64> {
        let since = self
            .workers
            .iter()
            .filter_map(|worker| worker.since)
            .min()?;
        Some(since.saturating_add(self.launch.watch.limit))
    }

    /// Waits that cannot end yet.
    pub fn blocked(&self, memory: &impl Memory) -> Vec<Blocked> {
        let mut found = Vec::new();
        let kernel = self.launch.plan.kernel();
        for worker in &self.workers {
            let Some((step, _)) = worker.item else {
                continue;
            };
            if let StepKind::Wait {
                counter,
                cell,
                at_least,
            } = self.agent(worker.role).steps[step as usize].kind
                && let Ok((seen, wanted)) = self.counts((counter, cell, at_least), memory)
                && seen < wanted
            {
                let geometry = &self.launch.plan.geometry;
                found.push(Blocked {
                    rank: self.launch.rank,
                    role: kernel.roles[worker.role].name.clone(),
                    on: geometry.cell_name(kernel, counter, cell),
                    seen,
                    wanted,
                });
            }
        }
        found
    }

    /// Moves the bases of this rank's cells on, as the last CTA of a launch does.
    pub fn end(&self, memory: &mut impl Memory) -> Result<(), Fault> {
        let (plan, rank) = (&self.launch.plan, self.launch.rank);
        for index in 0..self.launch.first.len() {
            let counter = CounterId(index as u16);
            for cell in 0..plan.geometry.counter_cells(counter) {
                let more = plan.arrivals.of(rank as u16, counter, cell);
                let base = self.cell(rank, counter, cell) + 8;
                add(memory, base, u64::from(more) * self.scale(counter))?;
            }
        }
        Ok(())
    }

    fn place(&self, tensor: TensorId, home: u16) -> Result<u64, Fault> {
        let name = || &self.launch.plan.kernel().buffers[tensor.index()].name;
        let place = self.launch.places.get(tensor.index()).copied().flatten();
        match place {
            Some(Place { own, .. }) if u32::from(home) == self.launch.rank => Ok(own),
            Some(Place {
                shared: Some(base), ..
            }) => Ok(base + u64::from(home) * self.launch.stride),
            Some(_) => Err(Fault(format!("{} is not in the heap", name()))),
            None => Err(Fault(format!("{} has no memory", name()))),
        }
    }

    fn lines(&self, of: &Rectangle, home: u16) -> Result<Lines, Fault> {
        let plan = &self.launch.plan;
        let start = self.place(of.tensor, home)?;
        Ok(Lines::of(plan.kernel(), plan, &of.on(home), start))
    }

    /// Lines of a rectangle in the memory of the one rank that has it: only a sum reads from every rank at once.
    fn lines_of(&self, of: &Rectangle) -> Result<Lines, Fault> {
        match of.owner {
            Owner::Rank(home) => self.lines(of, home),
            Owner::Everywhere => Err(Fault("a rectangle of every rank has one home".into())),
        }
    }

    /// The numbers of a rectangle, row by row, box by box.
    fn read(&self, of: &Rectangle, memory: &impl Memory) -> Result<Tile, Fault> {
        let plan = &self.launch.plan;
        let mut tile = Tile::default();
        for one in of.boxes(plan.kernel(), &plan.geometry) {
            let start = self.place(one.buffer, one.home)?;
            tile.below(Lines::of(plan.kernel(), plan, &one, start).read(memory)?);
        }
        Ok(tile)
    }

    fn act(
        &self,
        role: usize,
        kind: &StepKind,
        (accs, switch): (&mut [Option<Tile>], &mut Numbers),
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        let kernel: &Kernel = self.launch.plan.kernel();
        let world = self.launch.plan.geometry.world;
        match kind {
            StepKind::Wait { .. } => {}
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => {
                let at = self.cell(u32::from(*home), *counter, *cell);
                add(memory, at, u64::from(*amount) * self.scale(*counter))?;
            }
            StepKind::Copy { dst, src } => {
                let from = self.lines_of(src)?;
                let kept = dst.kept_by(src, self.launch.rank as u16);
                let homes = dst.owner.ranks(world);
                for home in homes.filter(|home| Some(*home) != kept) {
                    self.lines(dst, home)?.copy(&from, memory)?;
                }
            }
            StepKind::Dot { acc, a, b } => {
                let (left, right) = (self.read(a, memory)?, self.read(b, memory)?);
                let shares = shares(kernel, role, a.columns.len());
                let summing = Summing::of(kernel, [a.tensor, b.tensor]);
                let tile = accs[usize::from(acc.0)].get_or_insert_default();
                tile.first = a.rows.start;
                let [of_left, of_right] = [a, b].map(|of| kernel.buffers[of.tensor.index()].dtype);
                let Some(interval) = summing.promoted else {
                    tile.dot((&left.view(), of_left), (&right.view(), of_right), &shares);
                    return Ok(());
                };
                let mut factors = [None, None];
                for ((blocks, of), factors) in summing.scales.iter().zip([a, b]).zip(&mut factors) {
                    if let Some((blocks, scales)) = blocks.zip(kernel.operand_scales(of)) {
                        let plane = self.read(&scales, memory)?;
                        *factors = Some(blocks.factors(of.rows, &plane.view()));
                    }
                }
                let (left, right) = (left.view(), right.view());
                let factors = (interval, &factors);
                tile.promoted_dot((&left, of_left), (&right, of_right), &shares, factors);
            }
            StepKind::Reduce { acc, from } => {
                let mut order: Vec<u16> = from.owner.ranks(world).collect();
                switch.shuffle(&mut order);
                let parts = order.into_iter();
                let parts = parts.map(|home| self.lines(from, home)?.read(memory));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                let dtype = kernel.buffers[from.tensor.index()].dtype;
                let tile = accs[usize::from(acc.0)].get_or_insert_default();
                tile.first = from.rows.start;
                tile.shaped(from.rows.len() as usize, from.columns.len() as usize);
                let scales = kernel
                    .tile_scales(from)
                    .zip(kernel.computed_scale_block(from.tensor));
                if let (Some((scales, block)), [codes]) = (scales, &*parts) {
                    let scales = self.lines_of(&scales)?.read(memory)?;
                    tile.reduce_scaled(&codes.view(), &scales.view(), block.columns);
                    return Ok(());
                }
                tile.reduce(parts.iter().map(Tile::view), dtype);
            }
            StepKind::OwnTerm { acc, value, of } => {
                let (rows, columns) = (of.rows.len() as usize, of.columns.len() as usize);
                let mut term = Vec::new();
                let tile =
                    |acc: counterflow_codegen::value::AccId| accs[usize::from(acc.0)].as_ref();
                let value = &kernel.values[usize::from(value.0)];
                evaluate(value, &tile, of.rows, columns, &mut term);
                let tile = accs[usize::from(acc.0)].get_or_insert_default();
                tile.first = of.rows.start;
                tile.shaped(rows, columns);
                tile.add_own(&term, kernel.buffers[of.tensor.index()].dtype);
            }
            StepKind::Load { acc, from } => {
                let mut tile = self.read(from, memory)?;
                tile.first = from.rows.start;
                tile.laid(kernel.buffers[from.tensor.index()].usage);
                accs[usize::from(acc.0)] = Some(tile);
            }
            StepKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let (rows, columns) = (dst.rows.len() as usize, dst.columns.len() as usize);
                let mut values = Vec::new();
                let tile =
                    |acc: counterflow_codegen::value::AccId| accs[usize::from(acc.0)].as_ref();
                let evaluated = |value: ValueId, values: &mut Vec<f32>| {
                    let value = &kernel.values[usize::from(value.0)];
                    evaluate(value, &tile, dst.rows, columns, values);
                };
                if let Some(Amax { of, to }) = amax {
                    evaluated(*of, &mut values);
                    let me = self.launch.rank as u16;
                    memory.update(self.place(*to, me)?, 4, &mut |_, place| {
                        let amax = amax_with(Dtype::F32.read(place), &values);
                        Dtype::F32.write(amax, place);
                    })?;
                }
                evaluated(*value, &mut values);
                let scales = kernel.tile_scales(dst);
                let rule = scales.and_then(|made| kernel.rule_of(made.tensor));
                if let Some((made, rule)) = scales.zip(rule) {
                    let plane = &kernel.buffers[made.tensor.index()];
                    let scales = rule.scale_lines(&mut values, columns);
                    let lines = self.lines_of(&made)?;
                    lines.write(memory, &as_lines(plane.usage, scales, rows), false)?;
                    let here = made.on(self.launch.rank as u16);
                    if self.launch.plan.touched(kernel, &here) != here {
                        lines.clear_rest(memory)?;
                    }
                }
                for home in dst.owner.ranks(world) {
                    let lines = self.lines(dst, home)?;
                    lines.write(memory, &values, *mode == StoreMode::Add)?;
                }
            }
        }
        Ok(())
    }
}
