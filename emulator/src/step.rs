//! One step of one worker: its effect on counters, on the record of accesses, and on numbers.

use super::blocks::Summing;
use super::counters::At;
use super::data::evaluate;
use super::emulator::{Acc, Emulator, Turn};
use super::failure::Check;
use super::failure::FailureKind;
use super::memory::{Memory, Who, bounds};
use super::setup::Setup;
use super::tags::{Tag, Tags};
use counterflow_codegen::kernel::{Kernel, RoleKind, ValueId};
use counterflow_codegen::program::StoreMode;
use counterflow_codegen::region::{Access, Owner, Rectangle, Span, as_lines};
use counterflow_codegen::shape::Extent;
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::value::AccId;
use std::ops::Range;

impl Emulator<'_> {
    /// Takes the next step of a worker that is not blocked.
    pub(super) fn step(&mut self, turn: Turn) -> Check<()> {
        let setup = self.setup;
        let worker = &mut self.workers[turn];
        let Some(active) = worker.active else {
            return Ok(());
        };
        // The accumulators and the clock are taken out while the step changes memory.
        let mut accs = std::mem::take(&mut worker.accs);
        let mut clock = worker.clock.clone();
        let at = self.epoch(&self.workers[turn]);
        let plan = setup.plan(at.launch, at.rank);
        let agent = plan.agent(u32::from(at.rank), usize::from(at.role));
        let step = agent.steps[active.step as usize];
        let who = Who { at, clock: &clock };
        match step.kind {
            StepKind::Wait {
                counter,
                cell,
                at_least,
            } => {
                let cell = At {
                    counter,
                    home: at.rank,
                    cell,
                };
                if let Some(wanted) = self.counters.wanted(setup, at.launch, cell, at_least) {
                    self.counters.acquire(setup, at, &mut clock, cell, wanted)?;
                    self.workers[turn].clock = clock;
                }
            }
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => {
                let cell = At {
                    counter,
                    home,
                    cell,
                };
                let stores = setup.kernel.roles[usize::from(at.role)].kind.sequential();
                self.counters
                    .signal(setup, &who, &clock, cell, amount, stores)?;
                self.wake(cell);
            }
            StepKind::Copy { dst, src } => {
                same_size(setup, &who, &dst, &src)?;
                let from = one_home(setup, &who, &src)?;
                // What travels is in one shard.
                bounds(setup, &who, &from, Access::Read)?;
                let tags = self.read(&who, &src)?;
                let kept = dst.kept_by(&src, at.rank);
                for home in dst.owner.ranks(setup.world as u32) {
                    if Some(home) == kept {
                        continue;
                    }
                    bounds(setup, &who, &dst.on(home), Access::Write)?;
                    self.write(&who, (&dst, home), Access::Write, &tags)?;
                    if self.data.wanted() {
                        self.data.copy(&dst.on(home), &from);
                    }
                }
            }
            StepKind::Dot { acc, a, b } => {
                if a.columns.len() != b.columns.len() {
                    same_size(setup, &who, &Rectangle { rows: a.rows, ..b }, &a)?;
                }
                let [left, right] = [a, b].map(|of| one_home(setup, &who, &of));
                let operands = [&left?, &right?];
                for (_, plane) in step.kind.planes(setup.kernel) {
                    self.read(&who, &plane)?;
                }
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.tile.first) = (true, a.rows.start);
                // The first part of K stands for all of it.
                if a.columns.start == 0 {
                    let product = Tags::one(Tag::Product(at.rank, a.tensor, b.tensor));
                    acc.tags = acc.tags.plus(&product, 1);
                }
                if self.data.wanted() {
                    let shares = shares(setup.kernel, usize::from(at.role), a.columns.len());
                    let summing = Summing::of(setup.kernel, [a.tensor, b.tensor]);
                    let scales = [a, b].map(|of| setup.kernel.operand_scales(&of));
                    let scales = scales.map(|of| of.map(|of| of.on(at.rank)));
                    self.data
                        .dot(&mut acc.tile, operands, scales, &shares, &summing);
                }
            }
            StepKind::Reduce { acc, from } => {
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.tile.first) = (true, from.rows.start);
                for home in from.owner.ranks(setup.world as u32) {
                    let owner = Owner::Rank(home);
                    let there = self.read(&who, &Rectangle { owner, ..from })?;
                    acc.tags = acc.tags.plus(&there, 1);
                }
                let scales = setup.kernel.tile_scales(&from);
                if let Some(scales) = &scales {
                    self.read(&who, scales)?;
                }
                if self.data.wanted() {
                    let block = setup.kernel.computed_scale_block(from.tensor);
                    let scales = scales.as_ref().zip(block);
                    self.data.reduce(&mut acc.tile, &from, scales, setup.world);
                }
            }
            StepKind::OwnTerm { acc, value, of } => {
                let term = &setup.kernel.values[usize::from(value.0)];
                let of_acc = |acc: AccId| accs[usize::from(acc.0)].tags.clone();
                let tags = Tags::of(term, &of_acc, at.rank, (setup.kernel, setup.world as u16));
                let values = (self.data.wanted()).then(|| self.evaluated(&accs, &of, value));
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.tile.first) = (true, of.rows.start);
                acc.tags = acc.tags.plus(&tags, 1);
                if let Some(values) = values {
                    let dtype = setup.kernel.buffers[of.tensor.index()].dtype;
                    acc.tile
                        .shaped(of.rows.len() as usize, of.columns.len() as usize);
                    acc.tile.add_own(&values, dtype);
                }
            }
            StepKind::Load { acc, from } => {
                let there = self.read(&who, &from)?;
                let here = one_home(setup, &who, &from)?;
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.tags, acc.tile.first) = (true, there, from.rows.start);
                if self.data.wanted() {
                    self.data.load(&mut acc.tile, &here);
                    acc.tile
                        .laid(setup.kernel.buffers[from.tensor.index()].usage);
                }
            }
            StepKind::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                self.store(&who, &accs, &dst, mode, value)?;
                if let Some(amax) = amax.filter(|_| self.data.wanted()) {
                    let values = self.evaluated(&accs, &dst, amax.of);
                    self.data.measure(at.rank, amax.to, &values);
                }
            }
        }
        self.workers[turn].accs = accs;
        Ok(())
    }

    /// Reads a rectangle: the sum that all of its boxes hold.
    fn read(&mut self, who: &Who<'_>, of: &Rectangle) -> Check<Tags> {
        let setup = self.setup;
        let geometry = &setup.plan(who.at.launch, who.at.rank).geometry;
        let mut found: Option<Tags> = None;
        for one in of.boxes(setup.kernel, geometry) {
            bounds(setup, who, &one, Access::Read)?;
            let mode = (Access::Read, &Tags::NOTHING);
            let there = Memory::touch(&mut self.memory, setup, who, &one, mode)?;
            found = Some(match found {
                Some(known) if known != there => Tags::one(Tag::Broken),
                Some(_) | None => there,
            });
        }
        Ok(found.unwrap_or_default())
    }

    /// Writes, or adds to, a rectangle of a rank's memory.
    fn write(
        &mut self,
        who: &Who<'_>,
        (to, home): (&Rectangle, u16),
        access: Access,
        tags: &Tags,
    ) -> Check<()> {
        let setup = self.setup;
        let geometry = &setup.plan(who.at.launch, who.at.rank).geometry;
        let owner = Owner::Rank(home);
        for one in (Rectangle { owner, ..*to }).boxes(setup.kernel, geometry) {
            bounds(setup, who, &one, access)?;
            Memory::touch(&mut self.memory, setup, who, &one, (access, tags))?;
            if access == Access::Write {
                self.data.divide(setup, who.at.launch, home, to.tensor);
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        who: &Who<'_>,
        accs: &[Acc],
        dst: &Rectangle,
        mode: StoreMode,
        id: ValueId,
    ) -> Check<()> {
        let setup = self.setup;
        let value = &setup.kernel.values[usize::from(id.0)];
        let of_acc = |acc: AccId| accs[usize::from(acc.0)].tags.clone();
        let world = (setup.kernel, setup.world as u16);
        let tags = Tags::of(value, &of_acc, who.at.rank, world);
        let how = mode.access();
        let mut values = match self.data.wanted() {
            true => self.evaluated(accs, dst, id),
            false => Vec::new(),
        };
        let made = setup.kernel.tile_scales(dst);
        let rule = made.and_then(|made| setup.kernel.rule_of(made.tensor));
        if let Some((made, rule)) = made.zip(rule) {
            let scales = rule.scale_lines(&mut values, dst.columns.len() as usize);
            let usage = setup.kernel.buffers[made.tensor.index()].usage;
            let scales = as_lines(usage, scales, dst.rows.len() as usize);
            let here = one_home(setup, who, &made)?;
            self.write(who, (&made, here.home), Access::Write, &Tags::NOTHING)?;
            if self.data.wanted() {
                self.data.write(&here, &scales, false);
            }
        }
        for home in dst.owner.ranks(setup.world as u32) {
            self.write(who, (dst, home), how, &tags)?;
            if self.data.wanted() {
                self.data.write(&dst.on(home), &values, how == Access::Add);
            }
        }
        Ok(())
    }
}

impl Emulator<'_> {
    /// Value of an expression at each element of an item.
    fn evaluated(&self, accs: &[Acc], item: &Rectangle, value: ValueId) -> Vec<f32> {
        let value = &self.setup.kernel.values[usize::from(value.0)];
        let (rows, columns) = (item.rows, item.columns.len() as usize);
        let tile = |acc: AccId| {
            let acc = &accs[usize::from(acc.0)];
            acc.live.then_some(&acc.tile)
        };
        let mut values = Vec::new();
        evaluate(value, &tile, rows, columns, &mut values);
        values
    }
}

/// The columns of an operand that each CTA multiplies, if several share the K steps: divided as in the pipeline.
pub(super) fn shares(kernel: &Kernel, role: usize, depth: u32) -> Vec<Range<usize>> {
    let RoleKind::Gemm(kind) = kernel.roles[role].kind else {
        return Vec::new();
    };
    if kind.split <= 1 {
        return Vec::new();
    }
    let steps = depth.div_ceil(kind.k.max(1));
    let start = |share: u32| (steps * share / kind.split * kind.k).min(depth) as usize;
    (0..kind.split)
        .map(|share| start(share)..start(share + 1))
        .collect()
}

fn same_size(setup: &Setup<'_>, who: &Who<'_>, dst: &Rectangle, src: &Rectangle) -> Check<()> {
    if (dst.rows.len(), dst.columns.len()) == (src.rows.len(), src.columns.len()) {
        return Ok(());
    }
    let home = src.owner.ranks(setup.world as u32).start;
    Err(Box::new(FailureKind::OutOfBounds {
        by: setup.site(&who.at, "reads"),
        what: setup.rect(&src.on(home)),
        inside: (dst.rows, dst.columns),
    }))
}

/// Span in the memory of one rank: only a sum reads from every rank at once.
fn one_home(setup: &Setup<'_>, who: &Who<'_>, of: &Rectangle) -> Check<Span> {
    match of.owner {
        Owner::Rank(home) => Ok(of.on(home)),
        Owner::Everywhere => Err(Box::new(FailureKind::OutOfBounds {
            by: setup.site(&who.at, "reads"),
            what: setup.rect(&of.on(who.at.rank)),
            inside: (Extent::default(), Extent::default()),
        })),
    }
}
