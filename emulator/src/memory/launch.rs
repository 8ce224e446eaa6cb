//! The caller's accesses to a rank's parameters before and after a launch.

use super::{Memory, NEVER, Window, shadow};
use crate::clocks::{Clock, Epoch};
use crate::failure::{Check, FailureKind, Rect};
use crate::setup::Setup;
use crate::tags::{Tag, Tags};
use counterflow_codegen::program::{AtEnd, AtStart, TensorId};
use counterflow_codegen::shape::Extent;

impl Memory {
    /// Before a launch, the caller fills a rank's inputs, accumulated outputs and amaxes. Its other outputs are empty.
    pub fn start(&mut self, setup: &Setup<'_>, rank: u16, launch: u32) {
        self.windows[usize::from(rank)] = Window::In(launch);
        for (index, buffer) in setup.kernel.buffers.iter().enumerate() {
            if buffer.is_scratch() {
                continue;
            }
            let id = TensorId(index as u16);
            let plan = setup.plan(launch, rank);
            let own = match buffer.usage.at_start() {
                AtStart::Shard => plan.geometry.owned(buffer.rows, u32::from(rank)),
                AtStart::Whole => setup.held(launch, rank, id),
                AtStart::Nothing => Extent::default(),
            };
            let mut new = shadow(setup, launch, rank, id);
            let grid = &setup.grids[new.grid][index];
            let tags = if buffer.usage.is_input() {
                Tags::one(Tag::Input(rank, id))
            } else {
                Tags::NOTHING
            };
            for (at, cell) in new.cells.iter_mut().enumerate() {
                cell.write = Some(Epoch::host(rank, launch));
                let row = grid.rows[new.first + at / new.columns % new.rows];
                if own.start <= row && row < own.end {
                    cell.launch = launch;
                    cell.written = true;
                    cell.tags = tags.clone();
                }
            }
            let at = self.index(rank, id);
            self.shadows[at] = new;
        }
    }

    /// At the end of a launch, the caller takes a rank's parameters back: everything must be there, and nobody may
    /// access them any more. No write to its scratch may be in flight either, since other kernels share that memory.
    pub fn end(&mut self, setup: &Setup<'_>, rank: u16, launch: u32, clock: &Clock) -> Check<()> {
        for (index, buffer) in setup.kernel.buffers.iter().enumerate() {
            let scratch = buffer.is_scratch();
            let shadow = &self.shadows[self.index(rank, TensorId(index as u16))];
            let grid = &setup.grids[shadow.grid][index];
            let output = !buffer.usage.is_fixed();
            let geometry = &setup.plan(launch, rank).geometry;
            let owner = |row: u32| geometry.owner(geometry.shard_at(buffer.rows, row)) as u16;
            for (at, cell) in shadow.cells.iter().enumerate() {
                let (line, column) = (at / shadow.columns, at % shadow.columns);
                let (slot, row) = (line / shadow.rows, shadow.first + line % shadow.rows);
                let place = || Rect {
                    buffer: buffer.name.clone(),
                    home: rank,
                    slot: slot as u16,
                    rows: Extent {
                        start: grid.rows[row],
                        end: grid.rows[row + 1],
                    },
                    columns: Extent {
                        start: grid.columns[column],
                        end: grid.columns[column + 1],
                    },
                };
                // The next launch may have begun to fill scratch. Data of this launch must have arrived.
                let late = |at: &&Epoch| at.launch <= launch && !clock.covers(at);
                if let Some(at) = cell.write.iter().chain(&cell.adds).find(late) {
                    return Err(Box::new(FailureKind::LateWrite {
                        by: setup.site(at, "writes"),
                        what: place(),
                    }));
                }
                if scratch {
                    continue;
                }
                let added = !buffer.usage.is_added_to() || !cell.adds.is_empty();
                if output && (cell.launch == NEVER || !added) {
                    return Err(Box::new(FailureKind::NeverWritten {
                        launch: launch as usize,
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
                let promised = match buffer.usage.at_end {
                    AtEnd::Sum { .. } => cell.tags.complete(setup.kernel, setup.world as u16),
                    AtEnd::Sent => cell.tags.sent_by(setup.kernel, slot as u16),
                    AtEnd::Accumulated => cell.tags.accumulates(),
                    AtEnd::Computed => cell.tags.sent_by(setup.kernel, owner(grid.rows[row])),
                    AtEnd::Gathered => {
                        let owner = owner(grid.rows[row]);
                        let own = Tags::one(Tag::Input(owner, TensorId(index as u16)));
                        if cell.tags != own {
                            return Err(Box::new(FailureKind::NotGathered {
                                launch: launch as usize,
                                what: place(),
                                owner,
                            }));
                        }
                        Ok(())
                    }
                    AtEnd::Nothing | AtEnd::Own => Ok(()),
                };
                if let Err((missing, twice)) = promised {
                    return Err(Box::new(FailureKind::Contribution {
                        launch: launch as usize,
                        what: place(),
                        missing,
                        twice,
                    }));
                }
            }
        }
        self.windows[usize::from(rank)] = Window::Before(launch + 1);
        Ok(())
    }

    /// Adds to a digest everything that decides later checks. Reads and adds commute, so their order is left out.
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
