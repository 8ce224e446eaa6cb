//! One step of one worker: its effect on counters, on the record of accesses, and on numbers.

use super::blocks::Summing;
use super::counters::At;
use super::data::evaluate;
use super::emulator::{Acc, Emulator, Turn};
use super::failure::Check;
use super::failure::FailureKind;
use super::memory::{Memory, Mode, Who};
use super::setup::{Setup, homes};
use super::tags::{Tag, Tags};
use crate::kernel::{Kernel, RoleKind, ValueId};
use crate::program::StoreMode;
use crate::shape::Extent;
use crate::unroll::{EVERYWHERE, Span, StepKind, as_lines};
use crate::value::AccId;
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
                one_home(setup, &who, &src)?;
                let tags = self.touch(&who, &src, src.home, Mode::Read, &Tags::NOTHING)?;
                for home in homes(&dst, setup.world) {
                    // A multicast reaches the sender too, where the data already is.
                    if dst.home == EVERYWHERE && (Span { home, ..dst }) == src {
                        continue;
                    }
                    self.touch(&who, &dst, home, Mode::Write, &tags)?;
                    if self.data.wanted() {
                        self.data.copy((home, &dst), (src.home, &src));
                    }
                }
            }
            StepKind::Dot { acc, a, b } => {
                if a.columns.len() != b.columns.len() {
                    same_size(setup, &who, &Span { rows: a.rows, ..b }, &a)?;
                }
                let scales = [a, b].map(|operand| setup.kernel.scales_read(&operand));
                for span in [a, b].into_iter().chain(scales.into_iter().flatten()) {
                    one_home(setup, &who, &span)?;
                    self.touch(&who, &span, span.home, Mode::Read, &Tags::NOTHING)?;
                }
                let acc = &mut accs[usize::from(acc.0)];
                acc.live = true;
                let product = Tags::one(Tag::Product(at.rank, a.buffer, b.buffer));
                acc.tags = acc.tags.plus(&product, 1);
                if self.data.wanted() {
                    let shares = shares(setup.kernel, usize::from(at.role), a.columns.len());
                    let summing = Summing::of(setup.kernel, [a.buffer, b.buffer]);
                    let operands = [&a, &b];
                    self.data
                        .dot(&mut acc.tile, a.home, operands, &shares, &summing);
                }
            }
            StepKind::Reduce { acc, from } => {
                let acc = &mut accs[usize::from(acc.0)];
                acc.live = true;
                for home in homes(&from, setup.world) {
                    let there = self.touch(&who, &from, home, Mode::Read, &Tags::NOTHING)?;
                    acc.tags = acc.tags.plus(&there, 1);
                }
                let scales = setup.kernel.scales_of_tile(&from);
                if let Some(scales) = &scales {
                    self.touch(&who, scales, scales.home, Mode::Read, &Tags::NOTHING)?;
                }
                if self.data.wanted() {
                    let homes = homes(&from, setup.world);
                    self.data
                        .reduce(&mut acc.tile, homes, &from, scales.as_ref());
                }
            }
            StepKind::OwnTerm { acc, value, of } => {
                let term = &setup.kernel.values[usize::from(value.0)];
                let of_acc = |acc: AccId| accs[usize::from(acc.0)].tags.clone();
                let tags = Tags::of(term, &of_acc, at.rank, (setup.kernel, setup.world as u16));
                let values = (self.data.wanted()).then(|| self.evaluated(&accs, &of, value));
                let acc = &mut accs[usize::from(acc.0)];
                acc.live = true;
                acc.tags = acc.tags.plus(&tags, 1);
                if let Some(values) = values {
                    let dtype = setup.kernel.buffers[of.buffer.index()].dtype;
                    acc.tile
                        .shaped(of.rows.len() as usize, of.columns.len() as usize);
                    acc.tile.add_own(&values, dtype);
                }
            }
            StepKind::Load { acc, from } => {
                one_home(setup, &who, &from)?;
                let there = self.touch(&who, &from, from.home, Mode::Read, &Tags::NOTHING)?;
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.tags) = (true, there);
                if self.data.wanted() {
                    self.data.load(&mut acc.tile, from.home, &from);
                    acc.tile
                        .laid(setup.kernel.buffers[from.buffer.index()].usage);
                }
            }
            StepKind::Store {
                dst,
                mode,
                value,
                amax,
                scales,
            } => {
                self.store(&who, &accs, (&dst, scales.as_ref()), mode, value)?;
                if let Some(amax) = amax.filter(|_| self.data.wanted()) {
                    let values = self.evaluated(&accs, &dst, amax.of);
                    self.data.measure(at.rank, amax.to, &values);
                }
            }
        }
        self.workers[turn].accs = accs;
        Ok(())
    }

    fn touch(
        &mut self,
        who: &Who<'_>,
        span: &Span,
        home: u16,
        mode: Mode,
        tags: &Tags,
    ) -> Check<Tags> {
        let there = Memory::touch(&mut self.memory, self.setup, who, (span, home), mode, tags)?;
        if mode == Mode::Write {
            self.data
                .divide(self.setup, who.at.launch, home, span.buffer);
        }
        Ok(there)
    }

    fn store(
        &mut self,
        who: &Who<'_>,
        accs: &[Acc],
        (dst, made): (&Span, Option<&Span>),
        mode: StoreMode,
        id: ValueId,
    ) -> Check<()> {
        let setup = self.setup;
        let value = &setup.kernel.values[usize::from(id.0)];
        let of_acc = |acc: AccId| accs[usize::from(acc.0)].tags.clone();
        let world = (setup.kernel, setup.world as u16);
        let tags = Tags::of(value, &of_acc, who.at.rank, world);
        let how = match mode {
            StoreMode::Write => Mode::Write,
            StoreMode::Add => Mode::Add,
        };
        let mut values = match self.data.wanted() {
            true => self.evaluated(accs, dst, id),
            false => Vec::new(),
        };
        if let Some((made, rule)) = made.zip(made.and_then(|it| setup.kernel.rule_of(it.buffer))) {
            let scales = rule.scale_lines(&mut values, dst.columns.len() as usize);
            let usage = setup.kernel.buffers[made.buffer.index()].usage;
            let scales = as_lines(usage, scales, dst.rows.len() as usize);
            self.touch(who, made, made.home, Mode::Write, &Tags::NOTHING)?;
            if self.data.wanted() {
                self.data.write(made.home, made, &scales, false);
            }
        }
        for home in homes(dst, setup.world) {
            self.touch(who, dst, home, how, &tags)?;
            if self.data.wanted() {
                self.data.write(home, dst, &values, how == Mode::Add);
            }
        }
        Ok(())
    }
}

impl Emulator<'_> {
    /// What an expression is at each element of an item.
    fn evaluated(&self, accs: &[Acc], item: &Span, value: ValueId) -> Vec<f32> {
        let value = &self.setup.kernel.values[usize::from(value.0)];
        let (rows, columns) = (item.rows.len() as usize, item.columns.len() as usize);
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

fn same_size(setup: &Setup<'_>, who: &Who<'_>, dst: &Span, src: &Span) -> Check<()> {
    if (dst.rows.len(), dst.columns.len()) == (src.rows.len(), src.columns.len()) {
        return Ok(());
    }
    Err(Box::new(FailureKind::OutOfBounds {
        by: setup.site(&who.at, "reads"),
        what: setup.rect(src, src.home),
        inside: (dst.rows, dst.columns),
    }))
}

/// Only a sum reads from every rank at once.
fn one_home(setup: &Setup<'_>, who: &Who<'_>, span: &Span) -> Check<()> {
    if span.home != EVERYWHERE {
        return Ok(());
    }
    Err(Box::new(FailureKind::OutOfBounds {
        by: setup.site(&who.at, "reads"),
        what: setup.rect(span, EVERYWHERE),
        inside: (Extent::default(), Extent::default()),
    }))
}
