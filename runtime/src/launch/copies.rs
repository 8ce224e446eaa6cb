//! The host's part of a launch with copies by copy engine, which have a stream of their own.
//!
//! A launch's copies come after everything already in the rank's stream (they overwrite what the launch before read)
//! and before everything enqueued later, but run beside the kernel. The pipeline decides in which order the host
//! submits both: exactly this order was proven to get through the hardware queues.

use super::counts::Copies;
use super::which::Which;
use super::{How, Loaded, Tensors};
use crate::communicator::Communicator;
use crate::driver::{Address, Lines2d, MemoryOp};
use crate::error::Error;
use crate::streams::{CopyStream, Wait};
use counterflow_codegen::host::{HostOpKind, Lines, Submission};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::CounterId;

/// Adds an operation. Of two stores to one cell with nothing between them, nobody needs the first: a wait's mark right
/// behind the launch's, or behind that of the wait before.
fn add(batch: &mut Vec<MemoryOp>, next: MemoryOp) {
    let stored = |op: &MemoryOp| match op {
        MemoryOp::Store { cell, .. } => Some(*cell),
        MemoryOp::AtLeast { .. } => None,
    };
    let last = batch.last().and_then(stored);
    if last.is_some() && last == stored(&next) {
        batch.pop();
    }
    batch.push(next);
}

impl Loaded {
    /// Checks what a launch copies, before peers can know of it.
    pub(super) fn check_copies(
        &self,
        rank: &Communicator,
        records: bool,
        plan: &Plan,
        tensors: &Tensors,
        state: &mut Copies,
    ) -> Result<(), Error> {
        if records {
            self.may_be_recorded()?;
        }
        if state.broken {
            return Err(Error::Driver {
                what: format!("launch {}", self.pipeline.kernel.name),
                code: "an earlier launch was enqueued only in part".into(),
                help: "its peers wait for the rest: build a new communicator".into(),
            });
        }
        if state
            .program
            .as_ref()
            .is_none_or(|(known, _)| !known.is(Which::of(plan)))
        {
            let program = self.pipeline.submissions(plan, rank.rank())?;
            state.program = Some((Which::of(plan).kept(), program));
        }
        for submission in state.program.iter().flat_map(|(_, program)| program) {
            if let Submission::Copies(op) = submission
                && let HostOpKind::Copy { to, from, .. } = op.kind
            {
                self.lines(rank, plan, tensors, to)?;
                self.lines(rank, plan, tensors, from)?;
            }
        }
        // Here, since nobody waits for this rank yet.
        rank.copies()?.waits.catch_up()
    }

    /// Address of the lines, and bytes from one to the next.
    fn lines(
        &self,
        rank: &Communicator,
        plan: &Plan,
        tensors: &Tensors,
        at: Lines,
    ) -> Result<(Address, u64), Error> {
        let place = self.place(rank, tensors, plan, at.tensor)?;
        let start = place.on(at.home, rank, self.name(at.tensor))?;
        Ok((start.plus(at.offset), at.pitch))
    }

    /// Submits a launch that was checked in order: its copies, and the kernel by calling `kernel`.
    pub(super) fn submit(
        &self,
        rank: &Communicator,
        how: How<'_>,
        plan: &Plan,
        tensors: &Tensors,
        state: &mut Copies,
        kernel: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let CopyStream {
            stream,
            before,
            after,
            waits,
        } = rank.copies()?;
        let Some((_, program)) = &state.program else {
            return Ok(());
        };
        let place = |at: Lines| self.lines(rank, plan, tensors, at);
        state.broken = true;
        let current = how.current;
        let mut batch = vec![waits.begin()];
        let enqueue = |batch: &mut Vec<MemoryOp>| {
            let made = match batch.is_empty() {
                true => Ok(()),
                false => current.memory_ops(stream, batch),
            };
            batch.clear();
            made
        };
        for submission in program {
            let op = match submission {
                Submission::Copies(op) => op,
                Submission::CopiesFollow => {
                    current.record_again(before, rank.own_stream())?;
                    current.wait(stream, before)?;
                    continue;
                }
                Submission::Kernel => {
                    enqueue(&mut batch)?;
                    kernel()?;
                    continue;
                }
                Submission::RankFollows => {
                    enqueue(&mut batch)?;
                    current.record_again(after, stream)?;
                    current.wait(rank.own_stream(), after)?;
                    continue;
                }
            };
            match op.kind {
                HostOpKind::Wait {
                    counter,
                    cell,
                    arrivals,
                } => {
                    let wait = waits.wait(Wait {
                        cell: self.cell(rank.rank(), counter, cell),
                        wanted: state.counts[self.index(rank.rank(), counter, cell)]
                            + u64::from(arrivals),
                        counter: state.names[counter.index()].clone(),
                        index: cell,
                        at: self.pipeline.kernel.loc(op.op),
                    });
                    wait.into_iter().for_each(|next| add(&mut batch, next));
                }
                HostOpKind::Signal {
                    counter,
                    home,
                    cell,
                    arrivals,
                } => batch.push(MemoryOp::Store {
                    cell: self.cell(home, counter, cell),
                    value: state.counts[self.index(home, counter, cell)] + u64::from(arrivals),
                }),
                HostOpKind::Copy {
                    to,
                    from,
                    bytes,
                    lines,
                } => {
                    enqueue(&mut batch)?;
                    let (to, from) = (place(to)?, place(from)?);
                    current.copy_lines(
                        stream,
                        &Lines2d {
                            to,
                            from,
                            bytes,
                            lines,
                        },
                    )?;
                }
            }
        }
        // A program without copies still has a mark.
        enqueue(&mut batch)
    }

    /// Rejects what no graph can replay.
    pub(crate) fn may_be_recorded(&self) -> Result<(), Error> {
        if self.copies {
            return Err(Error::NotYet {
                what: "capturing copies by copy engine: the values that they wait for and store change with every launch".into(),
                help: "launch it uncaptured, or move the data in a #[comm] loop".into(),
            });
        }
        Ok(())
    }

    /// A cell's place among those of all ranks.
    fn index(&self, home: u32, counter: CounterId, cell: u32) -> usize {
        (home * self.cells.count() + self.cells.number(counter.index(), cell)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_marks_with_nothing_between_them_the_last_is_stored() {
        let store = |cell, value| MemoryOp::Store {
            cell: Address::of(cell),
            value,
        };
        let wait = MemoryOp::AtLeast {
            cell: Address::of(128),
            value: 1,
        };
        let mut batch = vec![store(0, 1)];
        let all = [
            store(0, 2),
            wait,
            store(0, 3),
            store(0, 4),
            store(64, 1),
            store(0, 5),
        ];
        all.into_iter().for_each(|next| add(&mut batch, next));
        let left = [store(0, 2), wait, store(0, 4), store(64, 1), store(0, 5)];
        assert_eq!(batch, left);
    }
}
