//! Facts that the rules look up in a plan: the signals of a cell, the accesses of a block of memory, and their order.

use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::region::{Access, Rectangle, Span};
use crate::shape::Extent;
use crate::unroll::StepKind;
use std::collections::BTreeSet;

/// A step of an agent's item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct At {
    pub agent: u32,
    pub item: u32,
    pub step: u32,
}

/// A signal into a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    pub at: At,
    pub amount: u32,
    /// Number that its agent adds to the cell behind it, in program order. Counted where a wait is for less than all.
    follows: u32,
}

/// One access to one block of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub at: At,
    pub access: Access,
}

/// A plan with its signals by cell and its accesses by block of memory.
///
/// A block is a rectangle of one slot of one rank's buffer that no access divides: the finest common grid of all items
/// that access the buffer.
pub(super) struct Facts<'a> {
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    roles: u32,
    signal_start: Vec<u32>,
    signals: Vec<Signal>,
    /// The largest count that a wait of this launch wants of each cell.
    waited: Vec<u32>,
    cuts: Vec<Cuts>,
    /// First block of each (buffer, home, slot); one more at the end.
    areas: Vec<Area>,
    touch_start: Vec<u32>,
    touches: Vec<Touch>,
}

/// Rows and columns at which accesses divide a buffer, and the division before each.
#[derive(Default)]
struct Cuts {
    rows: Vec<u32>,
    columns: Vec<u32>,
    row_index: Vec<u32>,
    column_index: Vec<u32>,
    /// True if anybody writes it, or reads it although it starts empty. An input that nobody writes has no races.
    written: bool,
    first_area: u32,
}

/// The blocks of one slot of one rank's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub buffer: u16,
    pub home: u16,
    pub slot: u16,
    first_block: u32,
    first_row: u32,
    rows: u32,
    columns: u32,
}

impl<'a> Facts<'a> {
    pub fn new(kernel: &'a Kernel, plan: &'a Plan) -> Facts<'a> {
        let mut facts = Facts::of_signals(kernel, plan);
        // Each step's boxes are worked out once, here.
        let mut boxes = Vec::new();
        facts.each_step(|at, kind| {
            facts.boxes(at, kind, |span, access| boxes.push((at, span, access)));
        });
        facts.cut_buffers(&boxes);
        facts.lay_out_areas();
        facts.index_touches(&boxes);
        facts
    }

    /// Without the accesses.
    pub fn of_signals(kernel: &'a Kernel, plan: &'a Plan) -> Facts<'a> {
        let mut facts = Facts {
            kernel,
            plan,
            roles: kernel.roles.len() as u32,
            signal_start: Vec::new(),
            signals: Vec::new(),
            waited: Vec::new(),
            cuts: Vec::new(),
            areas: Vec::new(),
            touch_start: Vec::new(),
            touches: Vec::new(),
        };
        facts.index_signals();
        facts
    }

    /// The rank of an agent.
    pub fn rank(&self, agent: u32) -> u32 {
        agent / self.roles
    }

    /// The index of an agent's role.
    pub fn role(&self, agent: u32) -> usize {
        (agent % self.roles) as usize
    }

    /// The phase of an item.
    pub fn phase(&self, at: At) -> u32 {
        self.plan.agents[at.agent as usize].items[at.item as usize].phase
    }

    /// The steps that stand before one in its item.
    pub fn in_item_before(&self, at: At) -> impl Iterator<Item = At> + use<> {
        let item = self.plan.agents[at.agent as usize].items[at.item as usize];
        (item.start..at.step).map(move |step| At { step, ..at })
    }

    /// The step itself.
    pub fn step(&self, at: At) -> StepKind {
        self.plan.agents[at.agent as usize].steps[at.step as usize].kind
    }

    /// The signals into a cell, by its index among all cells.
    pub fn signals(&self, cell: usize) -> &[Signal] {
        &self.signals[self.signal_start[cell] as usize..self.signal_start[cell + 1] as usize]
    }

    /// The signals that must precede the end of the wait `at`: those without which the count cannot reach its target.
    /// A wait joins no others.
    pub fn joined(&self, at: At) -> impl Iterator<Item = At> + '_ {
        let (signals, spare) = if let StepKind::Wait {
            counter,
            cell,
            at_least,
        } = self.step(at)
        {
            let home = self.rank(at.agent) as u16;
            let arrivals = self.plan.arrivals.of(home, counter, cell);
            let target = self.plan.arrivals.target(home, counter, cell, at_least);
            let signals = self.signals(self.plan.arrivals.index(home, counter, cell));
            (signals, arrivals.saturating_sub(target))
        } else {
            (&[][..], 0)
        };
        // Without a signal, those that follow it are not there either.
        signals
            .iter()
            .filter(move |signal| signal.amount + signal.follows > spare)
            .map(|signal| signal.at)
    }

    /// True if a step is a signal to `rank` that must precede the end of some wait there.
    pub fn is_waited_for(&self, at: At, rank: u32) -> bool {
        if let StepKind::Signal {
            counter,
            home,
            cell,
            amount,
        } = self.step(at)
        {
            let index = self.plan.arrivals.index(home, counter, cell);
            let mut signals = self.signals(index).iter();
            let follows = signals
                .find(|signal| signal.at == at)
                .map_or(0, |it| it.follows);
            let spare = self.plan.arrivals.of(home, counter, cell) - amount - follows;
            u32::from(home) == rank && self.waited[index] > spare
        } else {
            false
        }
    }

    /// Every step of every item, agent by agent.
    pub fn each_step(&self, mut f: impl FnMut(At, StepKind)) {
        for (agent, steps) in self.plan.agents.iter().enumerate() {
            for (item, range) in steps.items.iter().enumerate() {
                for step in range.start..range.end {
                    let at = At {
                        agent: agent as u32,
                        item: item as u32,
                        step,
                    };
                    f(at, steps.steps[step as usize].kind);
                }
            }
        }
    }

    fn index_signals(&mut self) {
        let arrivals = &self.plan.arrivals;
        let mut start = vec![0u32; arrivals.len() + 1];
        let mut waited = vec![0u32; arrivals.len()];
        let mut in_part: BTreeSet<usize> = BTreeSet::new();
        let mut found = Vec::new();
        self.each_step(|at, kind| match kind {
            StepKind::Signal {
                counter,
                home,
                cell,
                amount,
            } => {
                let index = arrivals.index(home, counter, cell);
                start[index + 1] += 1;
                let follows = 0;
                found.push((
                    index,
                    Signal {
                        at,
                        amount,
                        follows,
                    },
                ));
            }
            StepKind::Wait {
                counter,
                cell,
                at_least,
            } => {
                if self.kernel.counters[counter.index()].purpose.lag() == 0 {
                    let home = self.rank(at.agent) as u16;
                    let target = arrivals.target(home, counter, cell, at_least);
                    let index = arrivals.index(home, counter, cell);
                    waited[index] = target.max(waited[index]);
                    if target < arrivals.of(home, counter, cell) {
                        in_part.insert(index);
                    }
                }
            }
            StepKind::Copy { .. }
            | StepKind::Dot { .. }
            | StepKind::Reduce { .. }
            | StepKind::OwnTerm { .. }
            | StepKind::Load { .. }
            | StepKind::Store { .. } => {}
        });
        for index in 1..start.len() {
            start[index] += start[index - 1];
        }
        let mut next = start.clone();
        let nobody = Signal {
            at: At {
                agent: 0,
                item: 0,
                step: 0,
            },
            amount: 0,
            follows: 0,
        };
        let mut signals = vec![nobody; found.len()];
        for (index, signal) in found {
            signals[next[index] as usize] = signal;
            next[index] += 1;
        }
        for cell in in_part {
            self.follow(&mut signals[start[cell] as usize..start[cell + 1] as usize]);
        }
        (self.signal_start, self.signals, self.waited) = (start, signals, waited);
    }

    /// Says of each signal of a cell how much its agent adds behind it, as [`in_program_order`] says.
    fn follow(&self, signals: &mut [Signal]) {
        let place = |signal: &Signal| {
            let At { agent, item, step } = signal.at;
            (agent, self.phase(signal.at), item, step)
        };
        let mut order: Vec<usize> = (0..signals.len()).collect();
        order.sort_by_key(|at| place(&signals[*at]));
        let same = |one: &usize, other: &usize| signals[*one].at == signals[*other].at;
        let order: Vec<&[usize]> = order.chunk_by(same).collect();
        // From the last one: of the agent's later phases, of this phase, of this item.
        let (mut later, mut phase, mut item) = (0, 0, 0);
        let mut next = None;
        for alike in order.into_iter().rev() {
            let here = place(&signals[alike[0]]);
            if let Some((agent, of, within, _)) = next
                && (agent, of, within) != (here.0, here.1, here.2)
            {
                item = 0;
                if (agent, of) != (here.0, here.1) {
                    later = if agent == here.0 { later + phase } else { 0 };
                    phase = 0;
                }
            }
            next = Some(here);
            for at in alike {
                signals[*at].follows = later + item;
            }
            let amount: u32 = alike.iter().map(|at| signals[*at].amount).sum();
            item += amount;
            phase += amount;
        }
    }

    fn cut_buffers(&mut self, boxes: &[(At, Span, Access)]) {
        let geometry = &self.plan.geometry;
        let mut cuts: Vec<Cuts> = self
            .kernel
            .buffers
            .iter()
            .map(|buffer| Cuts {
                row_index: vec![0; geometry.size(buffer.rows) as usize + 1],
                column_index: vec![0; geometry.size(buffer.columns) as usize + 1],
                ..Cuts::default()
            })
            .collect();
        for (_, span, access) in boxes {
            // Scratch starts empty: a read of what nobody writes must be found.
            let empty = self.kernel.buffers[span.buffer.index()].is_scratch();
            cuts[span.buffer.index()].written |= empty || *access != Access::Read;
        }
        let mark = |extent: Extent, index: &mut [u32]| {
            index[extent.start as usize] = 1;
            index[extent.end as usize] = 1;
        };
        for (_, span, _) in boxes {
            let cut = &mut cuts[span.buffer.index()];
            if cut.written {
                mark(span.rows, &mut cut.row_index);
                mark(span.columns, &mut cut.column_index);
            }
        }
        for (buffer, cut) in self.kernel.buffers.iter().zip(&mut cuts) {
            if !cut.written {
                continue;
            }
            // The end state is checked shard by shard, and what nobody accesses must be found too.
            for shard in 0..geometry.shards(buffer.rows) {
                mark(geometry.shard(buffer.rows, shard), &mut cut.row_index);
            }
            mark(
                Extent {
                    start: 0,
                    end: geometry.size(buffer.columns),
                },
                &mut cut.column_index,
            );
            cut.rows = number(&mut cut.row_index);
            cut.columns = number(&mut cut.column_index);
        }
        self.cuts = cuts;
    }

    fn lay_out_areas(&mut self) {
        let world = self.plan.geometry.world;
        let mut first_block = 0;
        for (index, buffer) in self.kernel.buffers.iter().enumerate() {
            let cut = &mut self.cuts[index];
            cut.first_area = self.areas.len() as u32;
            if !cut.written {
                continue;
            }
            for home in 0..world {
                let held = self.plan.geometry.held(buffer, home);
                let first_row = cut.row_index[held.start as usize];
                let rows = cut.row_index[held.end as usize] - first_row;
                let columns = cut.columns.len() as u32 - 1;
                for slot in 0..buffer.slots(world) {
                    let (buffer, home, slot) = (index as u16, home as u16, slot as u16);
                    self.areas.push(Area {
                        buffer,
                        home,
                        slot,
                        first_block,
                        first_row,
                        rows,
                        columns,
                    });
                    first_block += rows * columns;
                }
            }
        }
    }

    fn index_touches(&mut self, boxes: &[(At, Span, Access)]) {
        let blocks = self.blocks() as usize;
        let mut start = vec![0u32; blocks + 1];
        for (_, span, _) in boxes {
            self.each_block(span, |block| start[block as usize + 1] += 1);
        }
        for index in 1..start.len() {
            start[index] += start[index - 1];
        }
        let mut next = start.clone();
        let nobody = Touch {
            at: At {
                agent: 0,
                item: 0,
                step: 0,
            },
            access: Access::Read,
        };
        let mut touches = vec![nobody; start[blocks] as usize];
        for (at, span, access) in boxes {
            let touch = Touch {
                at: *at,
                access: *access,
            };
            self.each_block(span, |block| {
                touches[next[block as usize] as usize] = touch;
                next[block as usize] += 1;
            });
        }
        (self.touch_start, self.touches) = (start, touches);
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.areas
            .last()
            .map_or(0, |area| area.first_block + area.rows * area.columns)
    }

    /// The areas of memory.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// The blocks of an area.
    pub fn blocks_of(&self, area: &Area) -> std::ops::Range<u32> {
        area.first_block..area.first_block + area.rows * area.columns
    }

    /// The rows and columns of a block.
    pub fn rectangle(&self, area: &Area, block: u32) -> (Extent, Extent) {
        let cut = &self.cuts[usize::from(area.buffer)];
        let index = block - area.first_block;
        let row = (area.first_row + index / area.columns) as usize;
        let column = (index % area.columns) as usize;
        (
            Extent {
                start: cut.rows[row],
                end: cut.rows[row + 1],
            },
            Extent {
                start: cut.columns[column],
                end: cut.columns[column + 1],
            },
        )
    }

    /// The accesses to a block.
    pub fn touches(&self, block: u32) -> &[Touch] {
        let block = block as usize;
        &self.touches[self.touch_start[block] as usize..self.touch_start[block + 1] as usize]
    }

    /// Blocks of a box. Of a buffer that somebody writes.
    pub fn area_of(&self, span: &Span) -> &Area {
        let slots = self.kernel.buffers[span.buffer.index()].slots(self.plan.geometry.world);
        let slot = u32::from(span.home) * slots + u32::from(span.slot);
        &self.areas[(self.cuts[span.buffer.index()].first_area + slot) as usize]
    }

    /// Calls `f` with the boxes that a step touches.
    pub fn boxes(&self, at: At, kind: StepKind, mut f: impl FnMut(Span, Access)) {
        let me = self.rank(at.agent) as u16;
        let boxes = kind.boxes(self.kernel, &self.plan.geometry, me);
        boxes.for_each(|(access, span)| f(span, access));
    }

    /// Calls `f` with every block of a rectangle, box by box.
    pub fn blocks_in(&self, of: &Rectangle, mut f: impl FnMut(u32)) {
        for one in of.boxes(self.kernel, &self.plan.geometry) {
            self.each_block(&one, &mut f);
        }
    }

    /// Calls `f` with every block of a box.
    pub fn each_block(&self, span: &Span, mut f: impl FnMut(u32)) {
        let cut = &self.cuts[span.buffer.index()];
        if !cut.written || span.rows.is_empty() || span.columns.is_empty() {
            return;
        }
        let area = self.area_of(span);
        let row =
            |at: u32| cut.row_index[at as usize].clamp(area.first_row, area.first_row + area.rows);
        let column = |at: u32| cut.column_index[at as usize];
        for row in row(span.rows.start)..row(span.rows.end) {
            let line = area.first_block + (row - area.first_row) * area.columns;
            (column(span.columns.start)..column(span.columns.end))
                .for_each(|column| f(line + column));
        }
    }
}

/// True if program order alone puts `a` before `b`, or they are the same step.
pub(super) fn in_program_order(facts: &Facts<'_>, a: At, b: At) -> bool {
    a.agent == b.agent
        && if a.item == b.item {
            a.step <= b.step
        } else {
            facts.phase(a) < facts.phase(b)
        }
}

/// Turns marks into positions of divisions, and each marked position into the number of its division.
fn number(index: &mut [u32]) -> Vec<u32> {
    let mut cuts = Vec::new();
    for (position, mark) in index.iter_mut().enumerate() {
        if *mark != 0 {
            *mark = cuts.len() as u32;
            cuts.push(position as u32);
        }
    }
    cuts
}
