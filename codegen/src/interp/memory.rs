//! Who touched what, and what is there: one record a grid cell, no numbers ([`super::data`] has those).
//!
//! By value, in the order of this run: memory nothing was written to, data of another launch, a parameter whose owner
//! is not in this launch, an element written twice. By clock, in any order of this schedule: conflicting accesses,
//! whether in one launch or in two.

use super::Check;
use super::clocks::{Clock, Epoch, HOST};
use super::failure::{FailureKind, Rect};
use super::setup::{Grid, Setup};
use crate::program::{TensorId, TensorKind};
use crate::shape::Extent;
use crate::unroll::Span;
use std::rc::Rc;

/// The launch of memory that nothing was written to.
const NEVER: u32 = u32::MAX;

/// Whose contributions a value holds: surely, and perhaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Terms {
    pub all: u128,
    pub any: u128,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Mode {
    Read,
    Write,
    Add,
}

impl Mode {
    const fn verb(self) -> &'static str {
        match self {
            Mode::Read => "reads",
            Mode::Write => "writes",
            Mode::Add => "adds to",
        }
    }
}

/// Who touches memory, and what it knows.
pub(super) struct Who<'c> {
    pub at: Epoch,
    pub clock: &'c Clock,
}

impl Who<'_> {
    fn knows(&self, other: &Epoch) -> bool {
        other.same_item(&self.at) || self.clock.covers(other)
    }
}

#[derive(Clone, Debug, Hash)]
struct Cell {
    /// Which launch's data is there, or [`NEVER`].
    launch: u32,
    /// Whether a statement wrote it in that launch, or the caller filled it for that launch.
    written: bool,
    write: Option<Epoch>,
    /// Since the write; they commute.
    adds: Vec<Epoch>,
    /// Since the write.
    reads: Vec<Epoch>,
    terms: u128,
}

const EMPTY: Cell = Cell {
    launch: NEVER,
    written: false,
    write: None,
    adds: Vec::new(),
    reads: Vec::new(),
    terms: 0,
};

/// One rank's buffer.
#[derive(Clone, Debug)]
struct Shadow {
    grid: usize,
    /// The latest launch that touched it, and by whom.
    latest: Option<Epoch>,
    /// The first grid row it holds, and how many.
    first: usize,
    rows: usize,
    columns: usize,
    cells: Vec<Cell>,
    /// The last accesses of launches in which the memory was divided otherwise, so that any of it may be any of this.
    before: Rc<Vec<Epoch>>,
}

/// Where a rank is between the caller and its launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Window {
    /// That launch is yet to start.
    Before(u32),
    /// That launch runs.
    In(u32),
}

#[derive(Clone)]
pub(super) struct Memory {
    shadows: Vec<Shadow>,
    buffers: usize,
    pub windows: Vec<Window>,
}

impl Memory {
    pub fn new(setup: &Setup<'_>) -> Memory {
        let buffers = setup.kernel.buffers.len();
        let mut shadows = Vec::with_capacity(buffers * setup.world);
        for rank in 0..setup.world as u16 {
            for buffer in 0..buffers {
                shadows.push(shadow(setup, 0, rank, TensorId(buffer as u16)));
            }
        }
        Memory {
            shadows,
            buffers,
            windows: vec![Window::Before(0); setup.world],
        }
    }

    fn index(&self, home: u16, buffer: TensorId) -> usize {
        usize::from(home) * self.buffers + buffer.index()
    }

    /// Checks an access to `home`'s memory and records it; `terms` are the contributions that are written. Gives
    /// whose contributions are there afterwards.
    pub fn touch(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        (span, home): (&Span, u16),
        mode: Mode,
        terms: Terms,
    ) -> Check<Terms> {
        let launch = who.at.launch;
        bounds(setup, who, span, home, mode)?;
        let (mine, theirs) = (
            setup.plan(launch, who.at.rank).hash,
            setup.plan(launch, home).hash,
        );
        if mine != theirs {
            return Err(Box::new(FailureKind::Mismatch {
                by: setup.site(&who.at, mode.verb()),
                peer: home,
                hashes: (mine, theirs),
            }));
        }
        let buffer = &setup.kernel.buffers[span.buffer.index()];
        if buffer.is_scratch() {
            self.same_division(setup, who, span, home, mode)?;
        } else {
            self.in_launch(setup, who, span, home, mode)?;
        }
        let index = self.index(home, span.buffer);
        let shadow = &mut self.shadows[index];
        if shadow.latest.is_none_or(|latest| latest.launch <= launch) {
            shadow.latest = Some(who.at);
        }
        let grid = &setup.grids[shadow.grid][span.buffer.index()];
        let rows = Grid::cover(&grid.rows, span.rows);
        let columns = Grid::cover(&grid.columns, span.columns);
        let mut found = Terms {
            all: u128::MAX,
            any: 0,
        };
        let output = !matches!(buffer.kind, TensorKind::Scratch { .. });
        for row in rows {
            for column in columns.clone() {
                let at = (usize::from(span.slot) * shadow.rows + row - shadow.first)
                    * shadow.columns
                    + column;
                let place = || Rect {
                    rows: Extent {
                        start: grid.rows[row],
                        end: grid.rows[row + 1],
                    },
                    columns: Extent {
                        start: grid.columns[column],
                        end: grid.columns[column + 1],
                    },
                    ..setup.rect(span, home)
                };
                let cell = &mut shadow.cells[at];
                let untouched = cell.write.is_none() && mode != Mode::Read;
                if let Some(other) = shadow
                    .before
                    .iter()
                    .find(|other| untouched && !who.knows(other))
                {
                    return Err(unordered(setup, who, mode, other, "touches", place()));
                }
                match mode {
                    Mode::Read => cell.read(setup, who, &place)?,
                    Mode::Write => cell.write(setup, who, output, terms, &place)?,
                    Mode::Add => cell.add(setup, who, terms, &place)?,
                }
                found.all &= cell.terms;
                found.any |= cell.terms;
            }
        }
        Ok(found)
    }

    /// A parameter belongs to one launch of its rank at a time.
    fn in_launch(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        span: &Span,
        home: u16,
        mode: Mode,
    ) -> Check<()> {
        let launch = who.at.launch;
        let window = self.windows[usize::from(home)];
        if window == Window::In(launch) {
            return Ok(());
        }
        let what = setup.rect(span, home);
        let by = setup.site(&who.at, mode.verb());
        let (Window::Before(theirs) | Window::In(theirs)) = window;
        let kind = if theirs > launch {
            // The rank is done with this launch.
            match (mode, window) {
                (Mode::Write | Mode::Add, _) => FailureKind::LateWrite { by, what },
                (Mode::Read, Window::In(_)) => FailureKind::StaleRead {
                    by,
                    what,
                    writer: setup.site(&Epoch::host(home, theirs), "writes"),
                },
                (Mode::Read, Window::Before(_)) => FailureKind::Overwrite {
                    by: setup.site(&Epoch::host(home, theirs), "writes"),
                    what,
                    other: by,
                },
            }
        } else {
            let before = setup.site(&Epoch::host(home, theirs.saturating_sub(1)), "uses");
            match mode {
                Mode::Write | Mode::Add => FailureKind::Overwrite {
                    by,
                    what,
                    other: before,
                },
                Mode::Read if launch == 0 => FailureKind::UninitialisedRead { by, what },
                Mode::Read => FailureKind::StaleRead {
                    by,
                    what,
                    writer: before,
                },
            }
        };
        Err(Box::new(kind))
    }

    /// Scratch that a launch of another shape divides otherwise is all one to it: whoever comes first must know that
    /// every earlier access is done, and finds nothing there.
    fn same_division(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        span: &Span,
        home: u16,
        mode: Mode,
    ) -> Check<()> {
        let index = self.index(home, span.buffer);
        let grid = setup.grid_index(who.at.launch, home);
        let old = &mut self.shadows[index];
        if old.grid == grid {
            return Ok(());
        }
        if let Some(latest) = old.latest.filter(|latest| latest.launch > who.at.launch) {
            let what = setup.rect(span, home);
            return Err(Box::new(match mode {
                Mode::Read => FailureKind::StaleRead {
                    by: setup.site(&who.at, mode.verb()),
                    what,
                    writer: setup.site(&latest, "writes"),
                },
                Mode::Write | Mode::Add => FailureKind::Overwrite {
                    by: setup.site(&who.at, mode.verb()),
                    what,
                    other: setup.site(&latest, "touches"),
                },
            }));
        }
        let mut before: Vec<Epoch> = old.before.to_vec();
        for cell in &old.cells {
            before.extend(cell.write);
            before.extend(cell.adds.iter().chain(&cell.reads));
        }
        before.retain(|at| at.role != HOST);
        // Of each item its last step; of each rank its last launch, which comes after its earlier ones.
        before.sort_unstable_by_key(|at| (at.rank, at.launch, at.role, at.item, at.step));
        let mut kept: Vec<Epoch> = Vec::with_capacity(before.len());
        for (index, at) in before.iter().enumerate() {
            let next = before.get(index + 1);
            let last_of_item = next.is_none_or(|next| !next.same_item(at));
            let last_launch = before[index..]
                .iter()
                .take_while(|other| other.rank == at.rank)
                .last()
                .is_some_and(|last| last.launch == at.launch);
            if last_of_item && last_launch {
                kept.push(*at);
            }
        }
        *old = Shadow {
            before: Rc::new(kept),
            ..shadow(setup, who.at.launch, home, span.buffer)
        };
        Ok(())
    }

    /// Before a launch, the caller fills a rank's inputs, and nothing is in its outputs.
    pub fn start(&mut self, setup: &Setup<'_>, rank: u16, launch: u32) {
        self.windows[usize::from(rank)] = Window::In(launch);
        for (index, buffer) in setup.kernel.buffers.iter().enumerate() {
            if buffer.is_scratch() {
                continue;
            }
            let id = TensorId(index as u16);
            let plan = setup.plan(launch, rank);
            let own = match buffer.kind {
                TensorKind::Gathered => plan.geometry.chunk(buffer.rows, u32::from(rank)),
                TensorKind::Local | TensorKind::Vector => setup.held(launch, rank, id),
                TensorKind::Out
                | TensorKind::Scattered
                | TensorKind::Reduced
                | TensorKind::Scratch { .. } => Extent::default(),
            };
            let mut new = shadow(setup, launch, rank, id);
            let grid = &setup.grids[new.grid][index];
            let terms = if setup.inputs_contribute {
                1 << rank
            } else {
                0
            };
            for (at, cell) in new.cells.iter_mut().enumerate() {
                cell.write = Some(Epoch::host(rank, launch));
                let row = grid.rows[new.first + at / new.columns];
                if own.start <= row && row < own.end {
                    cell.launch = launch;
                    cell.written = true;
                    cell.terms = terms;
                }
            }
            let at = self.index(rank, id);
            self.shadows[at] = new;
        }
    }

    /// At the end of a launch, the caller takes a rank's parameters back: everything must be there, and nobody may
    /// touch them any more.
    pub fn end(&mut self, setup: &Setup<'_>, rank: u16, launch: u32, clock: &Clock) -> Check<()> {
        let everyone = u128::MAX >> (128 - setup.world);
        for (index, buffer) in setup.kernel.buffers.iter().enumerate() {
            if buffer.is_scratch() {
                continue;
            }
            let shadow = &self.shadows[self.index(rank, TensorId(index as u16))];
            let grid = &setup.grids[shadow.grid][index];
            let output = !matches!(buffer.kind, TensorKind::Local | TensorKind::Vector);
            let sum = matches!(buffer.kind, TensorKind::Scattered | TensorKind::Reduced);
            for (at, cell) in shadow.cells.iter().enumerate() {
                let (row, column) = (shadow.first + at / shadow.columns, at % shadow.columns);
                let place = || Rect {
                    buffer: buffer.name.clone(),
                    home: rank,
                    slot: 0,
                    rows: Extent {
                        start: grid.rows[row],
                        end: grid.rows[row + 1],
                    },
                    columns: Extent {
                        start: grid.columns[column],
                        end: grid.columns[column + 1],
                    },
                };
                if output && cell.launch == NEVER {
                    return Err(Box::new(FailureKind::NeverWritten {
                        launch: launch as usize,
                        what: place(),
                    }));
                }
                let late = |at: &&Epoch| !clock.covers(at);
                if let Some(at) = cell.write.iter().chain(&cell.adds).find(late) {
                    return Err(Box::new(FailureKind::LateWrite {
                        by: setup.site(at, "writes"),
                        what: place(),
                    }));
                }
                if let Some(at) = cell.reads.iter().find(late) {
                    return Err(Box::new(FailureKind::Overwrite {
                        by: setup.site(&Epoch::host(rank, launch + 1), "takes back"),
                        what: place(),
                        other: setup.site(at, "reads"),
                    }));
                }
                if sum && cell.terms != everyone {
                    return Err(Box::new(FailureKind::Contribution {
                        launch: launch as usize,
                        what: place(),
                        missing: ranks(everyone & !cell.terms),
                        twice: Vec::new(),
                    }));
                }
            }
        }
        self.windows[usize::from(rank)] = Window::Before(launch + 1);
        Ok(())
    }

    /// Adds everything that decides later checks to a digest. Reads and adds commute, so their order is left out.
    pub fn digest(&self, into: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.windows.hash(into);
        for shadow in &self.shadows {
            shadow.grid.hash(into);
            for cell in &shadow.cells {
                let key = |at: &Epoch| (at.rank, at.role, at.launch, at.item, at.step);
                let mut cell = cell.clone();
                cell.reads.sort_unstable_by_key(key);
                cell.adds.sort_unstable_by_key(key);
                cell.hash(into);
            }
        }
    }
}

pub(super) fn ranks(mask: u128) -> Vec<u16> {
    (0..128).filter(|rank| mask >> rank & 1 == 1).collect()
}

fn shadow(setup: &Setup<'_>, launch: u32, rank: u16, buffer: TensorId) -> Shadow {
    let index = setup.grid_index(launch, rank);
    let grid = &setup.grids[index][buffer.index()];
    let held = Grid::cover(&grid.rows, setup.held(launch, rank, buffer));
    let columns = grid.columns.len() - 1;
    let slots = setup.kernel.buffers[buffer.index()].slots(setup.world as u32) as usize;
    Shadow {
        grid: index,
        latest: None,
        first: held.start,
        rows: held.len(),
        columns,
        cells: vec![EMPTY; slots * held.len() * columns],
        before: Rc::new(Vec::new()),
    }
}

/// Rows must be held, and within one chunk; the slot and columns must be there.
fn bounds(setup: &Setup<'_>, who: &Who<'_>, span: &Span, home: u16, mode: Mode) -> Check<()> {
    let fail = |inside: (Extent, Extent)| {
        Err(Box::new(FailureKind::OutOfBounds {
            by: setup.site(&who.at, mode.verb()),
            what: setup.rect(span, home),
            inside,
        }))
    };
    let nothing = Extent::default();
    if usize::from(home) >= setup.world {
        return fail((nothing, nothing));
    }
    let buffer = &setup.kernel.buffers[span.buffer.index()];
    let geometry = &setup.plan(who.at.launch, who.at.rank).geometry;
    let mut rows = geometry.held(buffer, u32::from(home));
    let columns = Extent {
        start: 0,
        end: geometry.size(buffer.columns),
    };
    if u32::from(span.slot) >= buffer.slots(setup.world as u32) {
        return fail((nothing, nothing));
    }
    if geometry.chunks(buffer.rows) > 1 {
        let chunk = geometry.chunk(
            buffer.rows,
            span.rows.start / geometry.chunk_rows(buffer.rows),
        );
        rows = Extent {
            start: rows.start.max(chunk.start),
            end: rows.end.min(chunk.end),
        };
    }
    let inside =
        |inner: Extent, outer: Extent| inner.start >= outer.start && inner.end <= outer.end;
    if span.rows.is_empty()
        || span.columns.is_empty()
        || (inside(span.rows, rows) && inside(span.columns, columns))
    {
        Ok(())
    } else {
        fail((rows, columns))
    }
}

fn unordered(
    setup: &Setup<'_>,
    who: &Who<'_>,
    mode: Mode,
    other: &Epoch,
    did: &'static str,
    what: Rect,
) -> Box<FailureKind> {
    let by = setup.site(&who.at, mode.verb());
    let same = other.launch == who.at.launch && other.role != HOST;
    let other = setup.site(other, did);
    Box::new(if same || mode == Mode::Read {
        FailureKind::MissingAcquire { by, what, other }
    } else {
        FailureKind::Overwrite { by, what, other }
    })
}

impl Cell {
    /// Data must be there, of this launch, and known to be.
    fn see(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Mode,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        if self.launch == NEVER {
            return Err(Box::new(FailureKind::UninitialisedRead {
                by: setup.site(&who.at, mode.verb()),
                what: place(),
            }));
        }
        if self.launch != who.at.launch {
            let writer = self.write.unwrap_or(who.at);
            return Err(Box::new(FailureKind::StaleRead {
                by: setup.site(&who.at, mode.verb()),
                what: place(),
                writer: setup.site(&writer, "writes"),
            }));
        }
        if let Some(write) = self.write.filter(|write| !who.knows(write)) {
            return Err(unordered(setup, who, mode, &write, "writes", place()));
        }
        Ok(())
    }

    fn after_reads(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Mode,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        match self.reads.iter().find(|read| !who.knows(read)) {
            Some(read) => Err(unordered(setup, who, mode, read, "reads", place())),
            None => Ok(()),
        }
    }

    fn after_adds(
        &self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        mode: Mode,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        match self.adds.iter().find(|add| !who.knows(add)) {
            Some(add) => Err(unordered(setup, who, mode, add, "adds to", place())),
            None => Ok(()),
        }
    }

    fn read(&mut self, setup: &Setup<'_>, who: &Who<'_>, place: &impl Fn() -> Rect) -> Check<()> {
        self.see(setup, who, Mode::Read, place)?;
        self.after_adds(setup, who, Mode::Read, place)?;
        match self.reads.last_mut() {
            Some(last) if last.same_item(&who.at) => *last = who.at,
            _ => self.reads.push(who.at),
        }
        Ok(())
    }

    fn add(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        terms: Terms,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        self.see(setup, who, Mode::Add, place)?;
        self.after_reads(setup, who, Mode::Add, place)?;
        let twice = self.terms & terms.any;
        if twice != 0 {
            return Err(Box::new(FailureKind::Contribution {
                launch: who.at.launch as usize,
                what: place(),
                missing: Vec::new(),
                twice: ranks(twice),
            }));
        }
        self.adds.push(who.at);
        self.terms |= terms.all;
        Ok(())
    }

    fn write(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        output: bool,
        terms: Terms,
        place: &impl Fn() -> Rect,
    ) -> Check<()> {
        if output && self.written && self.launch == who.at.launch {
            let first = self.write.unwrap_or(who.at);
            return Err(Box::new(FailureKind::WrittenTwice {
                by: setup.site(&who.at, "writes"),
                what: place(),
                first: setup.site(&first, "writes"),
            }));
        }
        self.after_reads(setup, who, Mode::Write, place)?;
        self.after_adds(setup, who, Mode::Write, place)?;
        if let Some(write) = self.write.filter(|write| !who.knows(write)) {
            return Err(unordered(
                setup,
                who,
                Mode::Write,
                &write,
                "writes",
                place(),
            ));
        }
        self.launch = who.at.launch;
        self.written = true;
        self.write = Some(who.at);
        self.adds.clear();
        self.reads.clear();
        self.terms = terms.all;
        Ok(())
    }
}
