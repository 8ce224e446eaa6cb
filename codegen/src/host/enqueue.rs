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
use crate::unroll::{self, EVERYWHERE, Span, StepKind};
use crate::warp::Pipeline;
use std::collections::BTreeMap;

/// One operation of a copy engine's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostOp {
    /// The op of the kernel.
    pub op: OpId,
    /// What it does.
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
        /// How much has arrived.
        arrivals: u32,
    },
    /// Moves lines of bytes.
    Copy {
        /// To where.
        to: Lines,
        /// From where.
        from: Lines,
        /// Bytes of a line.
        bytes: u64,
        /// How many lines.
        lines: u64,
    },
    /// Stores the arrivals in a cell, after everything enqueued before is visible to all.
    Signal {
        /// The set.
        counter: CounterId,
        /// Whose cell.
        home: u32,
        /// The cell.
        cell: u32,
        /// How much has arrived with this signal.
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
                    let homes = match dst.home {
                        EVERYWHERE => 0..plan.geometry.world as u16,
                        home => home..home + 1,
                    };
                    for dst in homes.map(|home| Span { home, ..dst }) {
                        // A multicast's data is already in place at home.
                        if dst != src && dst.elements() > 0 {
                            push(self.copy(plan, &dst, &src));
                        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{GemmOptions, ScheduleBuilder, me, ranks};
    use crate::dtype::Dtype::Bf16;
    use crate::lower::lower;
    use crate::machine::Machine;
    use crate::program::Program;
    use crate::shape::Shape;
    use crate::sm90;
    use crate::variant::Variant;
    use crate::verify;

    /// Rows fetched from the peers, or pushed to them.
    fn all_gather(push: bool) -> Program {
        let mut s = ScheduleBuilder::new("all_gather");
        let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
        let pieces = s.pieces("pieces", x, 256);
        let tiles = s.tiles("tiles", y, (128, 128));
        let arrived = s.counters("arrived", [pieces.into()]);
        s.copy_engine(|s| {
            s.for_ranks("peer", ranks().after_me(), |s, peer| {
                let of = if push { me() } else { peer.clone() };
                s.for_items("p", pieces.of(of), |s, p| {
                    if push {
                        s.copy(x.on(&peer).at(p), x.at(p));
                        s.signal(arrived.on(&peer).at(p), 1);
                    } else {
                        s.copy(x.at(p), x.on(&peer).at(p));
                        s.signal(arrived.at(p), 1);
                    }
                });
            });
        });
        s.gemm(GemmOptions::default(), |s| {
            s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
                s.for_items("t", tiles.of(&chunk).grouped(8), |s, t| {
                    s.wait(arrived.at(t.rows()));
                    let acc = s.dot(x.at(t), w.at(t));
                    s.store(y.at(t), acc);
                });
            });
        });
        s.finish()
    }

    fn ops(program: &Program, shape: &Shape, rank: u32) -> String {
        let kernel = lower(program, &Variant::new(3))
            .and_then(verify::kernel)
            .expect("a kernel");
        let pipeline = sm90::build(&kernel).expect("a pipeline");
        let plan = verify::plan(&kernel, shape, &Machine::h200()).expect("a plan");
        let name = |tensor: TensorId| &kernel.buffers[tensor.index()].name;
        let counter = |counter: CounterId| &kernel.counters[counter.index()].name;
        let line = |op: &HostOp| match op.kind {
            HostOpKind::Wait {
                counter: set,
                cell,
                arrivals,
            } => format!("wait {}[{cell}] +{arrivals}\n", counter(set)),
            HostOpKind::Copy {
                to,
                from,
                bytes,
                lines,
            } => format!(
                "copy {lines} x {bytes} to {}.on({}) {} / {} from .on({}) {} / {}\n",
                name(to.tensor),
                to.home,
                to.offset,
                to.pitch,
                from.home,
                from.offset,
                from.pitch
            ),
            HostOpKind::Signal {
                counter: set,
                home,
                cell,
                arrivals,
            } => format!("signal {}.on({home})[{cell}] +{arrivals}\n", counter(set)),
        };
        let ops = pipeline.host_ops(&plan, rank).expect("operations");
        ops.iter().map(line).collect()
    }

    /// Chunks of 334, 334 and 332 rows of 128 bytes; a peer's credit is waited for once.
    #[test]
    fn a_rank_fetches_its_peers_rows_and_says_when_it_has_read_them() {
        let text = ops(&all_gather(false), &Shape::new(1000, 128, 64), 1);
        insta::assert_snapshot!(text, @r"
        signal ready_x.on(2)[1] +1
        signal ready_x.on(0)[1] +1
        wait ready_x[2] +1
        copy 1 x 32768 to x.on(1) 85504 / 128 from .on(2) 85504 / 128
        signal arrived.on(1)[4] +1
        copy 1 x 9728 to x.on(1) 118272 / 128 from .on(2) 118272 / 128
        signal arrived.on(1)[5] +1
        wait ready_x[0] +1
        copy 1 x 32768 to x.on(1) 0 / 128 from .on(0) 0 / 128
        signal arrived.on(1)[0] +1
        copy 1 x 9984 to x.on(1) 32768 / 128 from .on(0) 32768 / 128
        signal arrived.on(1)[1] +1
        signal returned_x.on(2)[1] +1
        signal returned_x.on(0)[1] +1
        ");
    }

    /// Rows further apart than they are long are copied line by line, and a chunk may be empty.
    #[test]
    fn a_rank_pushes_its_rows_with_gaps_between_them() {
        let shape = Shape::new(4, 128, 64).up_to(1000).ld("x", 72);
        let text = ops(&all_gather(true), &shape, 1);
        insta::assert_snapshot!(text, @r"
        signal ready_x.on(2)[1] +1
        signal ready_x.on(0)[1] +1
        wait ready_x[2] +1
        copy 2 x 128 to x.on(2) 288 / 144 from .on(1) 288 / 144
        signal arrived.on(2)[2] +1
        wait ready_x[0] +1
        copy 2 x 128 to x.on(0) 288 / 144 from .on(1) 288 / 144
        signal arrived.on(0)[2] +1
        ");
        // A rank without rows sends none, and lets the others send theirs.
        let grants = "signal ready_x.on(0)[2] +1\nsignal ready_x.on(1)[2] +1\n";
        assert_eq!(ops(&all_gather(true), &shape, 2), grants);
    }
}
