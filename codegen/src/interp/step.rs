//! One step of one worker: what it does to counters, to the record of memory, and to the numbers.

use super::Check;
use super::counters::At;
use super::data::evaluate;
use super::failure::FailureKind;
use super::machine::{Machine, Turn};
use super::memory::{Memory, Mode, Terms, Who, ranks};
use super::setup::{Setup, homes};
use crate::kernel::{RoleKind, ValueId};
use crate::program::{StoreMode, TensorKind};
use crate::shape::Extent;
use crate::unroll::{EVERYWHERE, Span, StepKind};
use crate::value::{AccId, Binary, Value};
use std::ops::Range;

impl Machine<'_> {
    /// Takes the next step of a worker that is not blocked.
    pub(super) fn step(&mut self, turn: Turn) -> Check<()> {
        let setup = self.setup;
        let worker = &mut self.workers[turn];
        let Some(active) = worker.active else {
            return Ok(());
        };
        // The accumulators and the clock are out of the machine while it works on its memory.
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
                let terms = self.touch(&who, &src, src.home, Mode::Read, Terms::default())?;
                for home in homes(&dst, setup.world) {
                    // A multicast reaches the sender too: what it sends lies there already.
                    if dst.home == EVERYWHERE && (Span { home, ..dst }) == src {
                        continue;
                    }
                    self.touch(&who, &dst, home, Mode::Write, terms)?;
                    if self.data.wanted() {
                        self.data.copy((home, &dst), (src.home, &src));
                    }
                }
            }
            StepKind::Dot { acc, a, b } => {
                if a.columns.len() != b.columns.len() {
                    same_size(setup, &who, &Span { rows: a.rows, ..b }, &a)?;
                }
                for span in [&a, &b] {
                    one_home(setup, &who, span)?;
                    self.touch(&who, span, span.home, Mode::Read, Terms::default())?;
                }
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.fresh) = (true, true);
                if self.data.wanted() {
                    let shares = shares(setup, usize::from(at.role), a.columns.len());
                    self.data.dot(&mut acc.tile, a.home, &a, &b, &shares);
                }
            }
            StepKind::Reduce { acc, from } => {
                let acc = &mut accs[usize::from(acc.0)];
                acc.live = true;
                let me = 1u128 << at.rank;
                for home in homes(&from, setup.world) {
                    let there = self.touch(&who, &from, home, Mode::Read, Terms::default())?;
                    acc.twice |= acc.any & there.any;
                    if acc.fresh {
                        acc.twice |= me & there.any;
                    }
                    acc.all |= there.all;
                    acc.any |= there.any;
                }
                if self.data.wanted() {
                    self.data
                        .reduce(&mut acc.tile, homes(&from, setup.world), &from);
                }
            }
            StepKind::Load { acc, from } => {
                one_home(setup, &who, &from)?;
                let there = self.touch(&who, &from, from.home, Mode::Read, Terms::default())?;
                let acc = &mut accs[usize::from(acc.0)];
                (acc.live, acc.fresh) = (true, false);
                (acc.all, acc.any) = (there.all, there.any);
                if self.data.wanted() {
                    self.data.load(&mut acc.tile, from.home, &from);
                }
            }
            StepKind::Store { dst, mode, value } => {
                self.store(&who, &accs, &dst, mode, value)?;
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
        terms: Terms,
    ) -> Check<Terms> {
        let there = Memory::touch(&mut self.memory, self.setup, who, (span, home), mode, terms)?;
        if mode == Mode::Write {
            self.data
                .divide(self.setup, who.at.launch, home, span.buffer);
        }
        Ok(there)
    }

    fn store(
        &mut self,
        who: &Who<'_>,
        accs: &[super::machine::Acc],
        dst: &Span,
        mode: StoreMode,
        value: ValueId,
    ) -> Check<()> {
        let setup = self.setup;
        let value = &setup.kernel.values[usize::from(value.0)];
        let sum = contributions(value, accs, 1 << who.at.rank);
        let kind = setup.kernel.buffers[dst.buffer.index()].kind;
        if sum.twice != 0 && matches!(kind, TensorKind::Scattered | TensorKind::Reduced) {
            let home = homes(dst, setup.world).start;
            return Err(Box::new(FailureKind::Contribution {
                launch: who.at.launch as usize,
                what: setup.rect(dst, home),
                missing: Vec::new(),
                twice: ranks(sum.twice),
            }));
        }
        let how = match mode {
            StoreMode::Write => Mode::Write,
            StoreMode::Add => Mode::Add,
        };
        let (rows, columns) = (dst.rows.len() as usize, dst.columns.len() as usize);
        let mut values = Vec::new();
        if self.data.wanted() {
            let tile = |acc: AccId| {
                let acc = &accs[usize::from(acc.0)];
                acc.live.then_some(&acc.tile)
            };
            evaluate(value, &tile, rows, columns, &mut values);
        }
        for home in homes(dst, setup.world) {
            self.touch(who, dst, home, how, sum.terms)?;
            if self.data.wanted() {
                self.data.write(home, dst, &values, how == Mode::Add);
            }
        }
        Ok(())
    }
}

/// Which columns of an operand each CTA multiplies, where several share the steps of a product: as the pipeline divides
/// them.
fn shares(setup: &Setup<'_>, role: usize, depth: u32) -> Vec<Range<usize>> {
    let RoleKind::Gemm(kind) = setup.kernel.roles[role].kind else {
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

/// Whose contributions an expression holds.
#[derive(Clone, Copy, Default)]
struct Sum {
    terms: Terms,
    /// This rank's, from a product of this item.
    fresh: bool,
    twice: u128,
}

/// Only sums can count a contribution twice; other functions of it hold it once.
fn contributions(value: &Value, accs: &[super::machine::Acc], me: u128) -> Sum {
    fn of(value: &Value, accs: &[super::machine::Acc], me: u128) -> Sum {
        match value {
            Value::Acc(id) => {
                let acc = &accs[usize::from(id.0)];
                Sum {
                    terms: Terms {
                        all: acc.all,
                        any: acc.any,
                    },
                    fresh: acc.fresh,
                    twice: acc.twice,
                }
            }
            Value::Arg(_) | Value::Const(_) => Sum::default(),
            Value::Unary(_, a) | Value::Cast(_, a) => of(a, accs, me),
            Value::Binary(binary, a, b) => {
                let (a, b) = (of(a, accs, me), of(b, accs, me));
                let mut both = union(a, b);
                if matches!(binary, Binary::Add) {
                    both.twice |= a.terms.any & b.terms.any;
                    if a.fresh {
                        both.twice |= me & b.terms.any;
                    }
                    if b.fresh {
                        both.twice |= me & a.terms.any;
                    }
                }
                both
            }
            Value::Select(_, parts) => parts
                .iter()
                .map(|part| of(part, accs, me))
                .fold(Sum::default(), union),
            Value::Call(_, values) => values
                .iter()
                .map(|value| of(value, accs, me))
                .fold(Sum::default(), union),
        }
    }
    let mut sum = of(value, accs, me);
    if sum.fresh {
        sum.terms.all |= me;
        sum.terms.any |= me;
    }
    sum
}

fn union(a: Sum, b: Sum) -> Sum {
    Sum {
        terms: Terms {
            all: a.terms.all | b.terms.all,
            any: a.terms.any | b.terms.any,
        },
        fresh: a.fresh || b.fresh,
        twice: a.twice | b.twice,
    }
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

/// Only sums read from every rank at once.
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
