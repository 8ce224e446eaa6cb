//! The host's operations for a `#[copy_engine]` loop: copies, waits and signals in stream order.
//!
//! A copy engine cannot add, and compares with a number that is fixed when the comparison is enqueued. So the host
//! computes both the waited and the signalled value. It knows each cell's count before a launch (the arrivals of all
//! launches before, which are the same on every rank), and a launch's operations say how much to add. A signal stores
//! the sum, so a cell that a copy engine signals has no other writer; the verifier checks that. A cell in the GPU's
//! memory could hold the sum of a signal, but not the value that a wait compares with: for a replayed graph, both must
//! be set before each replay.

use crate::diag::Diagnostics;
use crate::kernel::OpId;
use crate::plan::Plan;
use crate::program::{CounterId, TensorId};
use crate::region::Span;
use crate::unroll::{self, StepKind};
use crate::warp::Pipeline;
use std::collections::BTreeMap;

/// One operation of a copy engine's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostOp {
    /// The op of the kernel.
    pub op: OpId,
    /// Action of the operation.
    pub kind: HostOpKind,
}

/// An operation of a copy engine's stream. Arrivals are those of this launch, in addition to the cell's count before
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostOpKind {
    /// The stream waits until a cell of this rank has that many arrivals.
    Wait {
        /// The set.
        counter: CounterId,
        /// The cell.
        cell: u32,
        /// Arrivals that are waited for.
        arrivals: u32,
    },
    /// Moves lines of bytes.
    Copy {
        /// To where.
        to: Lines,
        /// Source of the copy.
        from: Lines,
        /// Bytes of a line.
        bytes: u64,
        /// Number of lines.
        lines: u64,
    },
    /// Stores the arrivals in a cell, after everything enqueued before is visible to all.
    Signal {
        /// The set.
        counter: CounterId,
        /// Rank whose memory holds the cell.
        home: u32,
        /// The cell.
        cell: u32,
        /// Arrivals of this signal.
        arrivals: u32,
    },
}

/// The position of lines in a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lines {
    /// The tensor.
    pub tensor: TensorId,
    /// In whose memory.
    pub home: u32,
    /// Bytes from the tensor's start to the first line.
    pub offset: u64,
    /// Bytes from a line to the next.
    pub pitch: u64,
}

impl Pipeline {
    /// The operations that the host of `rank` enqueues in one launch, in order. None without a copy-engine role.
    ///
    /// # Errors
    /// A rank or cell that is out of bounds: never for a checked plan.
    pub fn host_ops(&self, plan: &Plan, rank: u32) -> Result<Vec<HostOp>, Diagnostics> {
        let kernel = &self.kernel;
        let Some(role) = kernel.roles.iter().position(|role| role.kind.sequential()) else {
            return Ok(Vec::new());
        };
        let agent = unroll::agent(kernel, &plan.geometry, rank, role)?;
        let mut ops = Vec::with_capacity(agent.steps.len());
        let mut passed: Vec<(CounterId, u32, u32)> = Vec::new();
        let mut signalled: BTreeMap<(CounterId, u16, u32), u32> = BTreeMap::new();
        for step in &agent.steps {
            let mut push = |kind| ops.push(HostOp { op: step.op, kind });
            match step.kind {
                StepKind::Wait {
                    counter,
                    cell,
                    at_least,
                } => {
                    let all = plan.arrivals.target(rank as u16, counter, cell, at_least);
                    let arrivals = match kernel.counters[counter.index()].purpose.lag() {
                        0 => all * self.scale(counter, plan),
                        _ => 0,
                    };
                    // Counters only grow, and the stream is one agent, so a wait need not be repeated.
                    if !passed.iter().any(|(known, at, seen)| {
                        (*known, *at) == (counter, cell) && *seen >= arrivals
                    }) {
                        passed.push((counter, cell, arrivals));
                        push(HostOpKind::Wait {
                            counter,
                            cell,
                            arrivals,
                        });
                    }
                }
                StepKind::Copy { dst, src } => {
                    for (dst, src) in dst.copied_from(&src, kernel, &plan.geometry) {
                        push(self.copy(plan, &dst, &src));
                    }
                }
                StepKind::Signal {
                    counter,
                    home,
                    cell,
                    amount,
                } => {
                    let arrivals = signalled.entry((counter, home, cell)).or_default();
                    *arrivals += amount * self.scale(counter, plan);
                    push(HostOpKind::Signal {
                        counter,
                        home: home.into(),
                        cell,
                        arrivals: *arrivals,
                    });
                }
                // A copy engine computes nothing: lowering rejects these in its loops.
                StepKind::Dot { .. }
                | StepKind::Reduce { .. }
                | StepKind::OwnTerm { .. }
                | StepKind::Load { .. }
                | StepKind::Store { .. } => {}
            }
        }
        Ok(ops)
    }

    fn copy(&self, plan: &Plan, dst: &Span, src: &Span) -> HostOpKind {
        let (to, bytes, lines) = self.lines(plan, dst);
        let (from, ..) = self.lines(plan, src);
        // Merge lines without a gap into one.
        if to.pitch == bytes && from.pitch == bytes {
            return HostOpKind::Copy {
                to,
                from,
                bytes: bytes * lines,
                lines: 1,
            };
        }
        HostOpKind::Copy {
            to,
            from,
            bytes,
            lines,
        }
    }

    /// A rectangle's lines, the bytes of one, and how many there are.
    fn lines(&self, plan: &Plan, span: &Span) -> (Lines, u64, u64) {
        let lines = plan.lines(&self.kernel, span);
        let at = Lines {
            tensor: span.buffer,
            home: u32::from(span.home),
            offset: lines.offset,
            pitch: lines.pitch,
        };
        (at, lines.bytes, lines.lines)
    }
}
