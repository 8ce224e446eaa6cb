//! The record of accesses: one entry for each grid cell, without numbers ([`super::data`] has those).
//!
//! Found by value, in this run: reads of unwritten memory, data of another launch, a parameter whose owner is not in
//! this launch, an element written twice. Found by clock, in any order of this schedule: conflicting accesses, in one
//! launch or in two.

mod bounds;
mod cell;
mod launch;
mod who;

use super::clocks::{Epoch, HOST};
use super::failure::{Check, FailureKind, Rect};
use super::setup::{Cuts, Setup};
use super::tags::{Tag, Tags};
use cell::{Cell, EMPTY, unordered};
use counterflow_codegen::program::TensorId;
use counterflow_codegen::region::{Access, Span};
use counterflow_codegen::shape::Extent;
use std::rc::Rc;
use who::NEVER;

pub(super) use bounds::bounds;
pub(super) use who::Who;

/// One rank's buffer.
#[derive(Clone, Debug)]
struct Shadow {
    grid: usize,
    /// The latest launch that accessed it, and by whom.
    latest: Option<Epoch>,
    /// The first grid row it holds, and how many.
    first: usize,
    rows: usize,
    columns: usize,
    cells: Vec<Cell>,
    /// The last accesses of launches with another division of this memory. Any of them may overlap any cell.
    before: Rc<Vec<Epoch>>,
}

/// Place of a rank between the caller and its launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Window {
    /// The launch is yet to start.
    Before(u32),
    /// The launch runs.
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

    /// Checks an access to a box that is in its memory, and records it. `tags` are the written sum. Gives the sum that is there afterwards.
    pub fn touch(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        span: &Span,
        (mode, tags): (Access, &Tags),
    ) -> Check<Tags> {
        let (launch, home) = (who.at.launch, span.home);
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
            self.before_end(setup, who, span, mode)?;
            self.same_division(setup, who, span, mode)?;
        } else {
            self.in_launch(setup, who, span, mode)?;
        }
        let index = self.index(home, span.buffer);
        let shadow = &mut self.shadows[index];
        if shadow.latest.is_none_or(|latest| latest.launch <= launch) {
            shadow.latest = Some(who.at);
        }
        let grid = &setup.grids[shadow.grid][span.buffer.index()];
        let rows = Cuts::cover(&grid.rows, span.rows);
        let columns = Cuts::cover(&grid.columns, span.columns);
        let mut found: Option<Tags> = None;
        let output = !buffer.is_scratch();
        let once = buffer.usage.is_added_to();
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
                    ..setup.rect(span)
                };
                let cell = &mut shadow.cells[at];
                let untouched = cell.write.is_none() && mode != Access::Read;
                if let Some(other) = shadow
                    .before
                    .iter()
                    .find(|other| untouched && !who.knows(other))
                {
                    return Err(unordered(setup, who, mode, other, "touches", place()));
                }
                match mode {
                    Access::Read => cell.read(setup, who, &place)?,
                    Access::Write => cell.write(setup, who, output, tags, &place)?,
                    Access::Add => cell.add(setup, who, once, tags, &place)?,
                }
                match &found {
                    None => found = Some(cell.tags.clone()),
                    Some(known) if *known == cell.tags => {}
                    Some(_) => found = Some(Tags::one(Tag::Broken)),
                }
            }
        }
        Ok(found.unwrap_or_default())
    }

    /// A parameter belongs to one launch of its rank at a time.
    fn in_launch(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        span: &Span,
        mode: Access,
    ) -> Check<()> {
        let (launch, home) = (who.at.launch, span.home);
        let window = self.windows[usize::from(home)];
        if window == Window::In(launch) {
            return Ok(());
        }
        let what = setup.rect(span);
        let by = setup.site(&who.at, mode.verb());
        let (Window::Before(theirs) | Window::In(theirs)) = window;
        let kind = if theirs > launch {
            // The rank is done with this launch.
            match (mode, window) {
                (Access::Write | Access::Add, _) => FailureKind::LateWrite { by, what },
                (Access::Read, Window::In(_)) => FailureKind::StaleRead {
                    by,
                    what,
                    writer: setup.site(&Epoch::host(home, theirs), "writes"),
                },
                (Access::Read, Window::Before(_)) => FailureKind::Overwrite {
                    by: setup.site(&Epoch::host(home, theirs), "writes"),
                    what,
                    other: by,
                },
            }
        } else {
            let before = setup.site(&Epoch::host(home, theirs.saturating_sub(1)), "uses");
            match mode {
                Access::Write | Access::Add => FailureKind::Overwrite {
                    by,
                    what,
                    other: before,
                },
                Access::Read if launch == 0 => FailureKind::UninitialisedRead { by, what },
                Access::Read => FailureKind::StaleRead {
                    by,
                    what,
                    writer: before,
                },
            }
        };
        Err(Box::new(kind))
    }

    /// A write to a rank's scratch must come before the rank's launch ends.
    fn before_end(&self, setup: &Setup<'_>, who: &Who<'_>, span: &Span, mode: Access) -> Check<()> {
        let (Window::Before(now) | Window::In(now)) = self.windows[usize::from(span.home)];
        if mode == Access::Read || now <= who.at.launch {
            return Ok(());
        }
        Err(Box::new(FailureKind::LateWrite {
            by: setup.site(&who.at, mode.verb()),
            what: setup.rect(span),
        }))
    }

    /// Scratch that a launch of another shape divides differently counts as one cell: its first access must come after
    /// every earlier access, and finds nothing there.
    fn same_division(
        &mut self,
        setup: &Setup<'_>,
        who: &Who<'_>,
        span: &Span,
        mode: Access,
    ) -> Check<()> {
        let home = span.home;
        let index = self.index(home, span.buffer);
        let grid = setup.grid_index(who.at.launch, home);
        let old = &mut self.shadows[index];
        if old.grid == grid {
            return Ok(());
        }
        if let Some(latest) = old.latest.filter(|latest| latest.launch > who.at.launch) {
            let what = setup.rect(span);
            return Err(Box::new(match mode {
                Access::Read => FailureKind::StaleRead {
                    by: setup.site(&who.at, mode.verb()),
                    what,
                    writer: setup.site(&latest, "writes"),
                },
                Access::Write | Access::Add => FailureKind::Overwrite {
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
        // The last step of each item, and the last launch of each rank, which comes after its earlier ones.
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
}

fn shadow(setup: &Setup<'_>, launch: u32, rank: u16, buffer: TensorId) -> Shadow {
    let index = setup.grid_index(launch, rank);
    let grid = &setup.grids[index][buffer.index()];
    let held = Cuts::cover(&grid.rows, setup.held(launch, rank, buffer));
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
