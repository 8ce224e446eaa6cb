//! One rank's part of a sequence, and what its launches must compute.

use super::plan::{Call, Fault, ROWS, SIDE, STREAMS, Sequence, WORLD};
use crate::communicator::Communicator;
use crate::driver::Stream;
use crate::error::Error;
use crate::op::{Caller, Op};
use crate::tensor::Tensor;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::Program;
use half::bf16;

/// Why a sequence is wrong, or an error of a call.
pub enum Wrong {
    Told(Error),
    Value(String),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong::Told(error)
    }
}

/// A whole number of -1 to 1: sums are exact.
fn number(seed: u64, rank: usize, row: usize, column: usize) -> i32 {
    let mut numbers = counterflow_codegen::interp::Numbers::new(
        seed ^ (rank as u64) << 40 ^ (row as u64) << 20 ^ column as u64,
    );
    numbers.below(3) as i32 - 1
}

fn matrix(rows: usize, value: impl Fn(usize, usize) -> i32) -> Vec<bf16> {
    let at = |at| bf16::from_f32(value(at / SIDE, at % SIDE) as f32);
    (0..rows * SIDE).map(at).collect()
}

/// Memory that a launch writes.
enum Output {
    Own(Tensor<bf16>),
    Heap(UserBuffer<bf16>),
}

struct Launched {
    rows: usize,
    input: u64,
    y: Output,
}

/// One rank.
pub struct Rank<'a> {
    comm: &'a Communicator,
    ops: Vec<(Op, bool)>,
    streams: Vec<Stream>,
    w: Tensor<bf16>,
    x: Option<UserBuffer<bf16>>,
    /// For results in the heap. A new one would make the next launch wait until every rank has cleared it.
    results: Vec<UserBuffer<bf16>>,
    launched: Vec<Launched>,
    allocated: usize,
    /// Where two threads' allocations are, call by call.
    pub twice: Vec<[u64; 2]>,
}

impl<'a> Rank<'a> {
    /// Builds these schedules; `true` for those that gather. Collective.
    pub fn new(
        comm: &'a Communicator,
        programs: &[(Program, bool)],
        launches: usize,
    ) -> Result<Rank<'a>, Error> {
        comm.reserve((1 << 20) + (1 << 17))?;
        let build = |(program, gathers): &(Program, bool)| {
            let builder = comm.op(program).up_to(ROWS[2], SIDE, SIDE);
            Ok((builder.first_options().build()?, *gathers))
        };
        let ops = programs.iter().map(build).collect::<Result<_, Error>>()?;
        let w = comm.zeros([SIDE, SIDE])?;
        let me = comm.rank() as usize;
        w.write(&matrix(SIDE, |row, column| number(0, me, row, column)))?;
        let rows = |at: usize| comm.allocate(&format!("rows {at}"), [ROWS[2], SIDE]);
        Ok(Rank {
            comm,
            ops,
            streams: (0..STREAMS)
                .map(|_| comm.gpu().stream())
                .collect::<Result<_, _>>()?,
            w,
            x: Some(rows(launches)?),
            results: (0..launches).map(rows).collect::<Result<_, _>>()?,
            launched: Vec::new(),
            allocated: 0,
            twice: Vec::new(),
        })
    }

    fn name(&mut self) -> String {
        self.allocated += 1;
        format!("memory {}", self.allocated)
    }

    /// Makes the calls.
    pub fn run(&mut self, sequence: &Sequence) -> Result<(), Wrong> {
        for (at, call) in sequence.calls.iter().enumerate() {
            let fault = sequence.fault.filter(|(fault, _)| *fault == at);
            let fault = fault
                .map(|(_, fault)| fault)
                .filter(|_| self.comm.rank() == 1);
            match fault {
                Some(Fault::Ends) => return Ok(()),
                Some(Fault::Aborts) => {
                    self.comm.abort("enough");
                    return Ok(());
                }
                Some(Fault::Rows | Fault::Op) | None => {}
            }
            let input = sequence.seed ^ (at as u64 + 1) << 52;
            self.call(*call, fault, input)?;
        }
        self.check()?;
        self.comm.barrier()?;
        Ok(())
    }

    fn call(&mut self, call: Call, fault: Option<Fault>, input: u64) -> Result<(), Wrong> {
        match call {
            Call::Launch { op, rows, stream } => {
                let (op, rows) = match fault {
                    Some(Fault::Rows) => (op, if rows == ROWS[0] { ROWS[1] } else { ROWS[0] }),
                    Some(Fault::Op) => ((op + 1) % self.ops.len(), rows),
                    Some(Fault::Ends | Fault::Aborts) | None => (op, rows),
                };
                self.launch(op, rows, stream, input)?;
            }
            Call::Replace => {
                let name = self.name();
                // The old one is dropped first, so that its memory may be given out.
                drop(self.x.take());
                self.x = Some(self.comm.allocate(&name, [ROWS[2], SIDE])?);
            }
            Call::Check => self.check()?,
            Call::Twice => self.allocate_twice()?,
            Call::Barrier => self.comm.barrier()?,
            Call::Pause => std::thread::yield_now(),
        }
        Ok(())
    }

    /// Launches, and does not wait.
    pub fn launch(
        &mut self,
        op: usize,
        rows: usize,
        stream: Option<usize>,
        input: u64,
    ) -> Result<(), Wrong> {
        let (comm, me) = (self.comm, self.comm.rank() as usize);
        let gathers = self.ops[op].1;
        let x = matrix(rows, |row, column| number(input, me, row, column));
        let op = &self.ops[op].0;
        let caller: Caller<'_> = match stream {
            Some(stream) => (&self.streams[stream]).into(),
            None => comm.into(),
        };
        let y = if gathers {
            let gathered = self.x.as_ref().expect("one at any time");
            gathered.write(&x)?;
            let mut y = comm.zeros([ROWS[2], SIDE])?;
            let launch = op.on(caller).rows(rows).tensor("x", gathered);
            launch.tensor("w", &self.w).tensor("y", &mut y).launch()?;
            Output::Own(y)
        } else {
            let x_own = comm.zeros([rows, SIDE])?;
            x_own.write(&x)?;
            let mut y = self.results.pop().expect("one for each launch");
            let launch = op.on(caller).rows(rows).tensor("x", &x_own);
            launch.tensor("w", &self.w).tensor("y", &mut y).launch()?;
            Output::Heap(y)
        };
        self.launched.push(Launched { rows, input, y });
        Ok(())
    }

    /// Every launch since the last check has computed what it must.
    fn check(&mut self) -> Result<(), Wrong> {
        let me = self.comm.rank() as usize;
        for launched in std::mem::take(&mut self.launched) {
            let Launched { rows, input, y } = launched;
            let chunk = rows / WORLD as usize;
            let of = |rank: usize, x: usize, row: usize, column: usize| {
                let terms = 0..SIDE;
                let term = |k| number(input, x, row, k) * number(0, rank, column, k);
                terms.map(term).sum::<i32>()
            };
            let (got, expected) = match y {
                Output::Own(y) => {
                    let expected = |row, column| of(me, row / chunk, row, column);
                    (y.read()?, matrix(rows, expected))
                }
                Output::Heap(y) => {
                    let sum = |row: usize, column| {
                        let ranks = 0..WORLD as usize;
                        let part = |rank| of(rank, rank, me * chunk + row, column);
                        ranks.map(part).sum()
                    };
                    (y.read()?, matrix(chunk, sum))
                }
            };
            if let Some(at) = (0..expected.len()).find(|at| got[*at] != expected[*at]) {
                return Err(Wrong::Value(format!(
                    "rank {me}: [{}, {}] of a launch of {rows} rows is {}, expected {}",
                    at / SIDE,
                    at % SIDE,
                    got[at],
                    expected[at]
                )));
            }
        }
        Ok(())
    }

    /// Two threads of this rank allocate at once: each gets memory of its own, the same as on the other rank.
    fn allocate_twice(&mut self) -> Result<(), Wrong> {
        let name = self.name();
        let comm = self.comm;
        let undone = crate::undo::now();
        let one = || {
            crate::undo::undo(undone);
            comm.allocate::<bf16>(&name, [SIDE, SIDE])
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(one);
            let mine = one();
            [mine, other.join().expect("no panic")]
        });
        let [a, b] = both;
        let (a, b) = (a?, b?);
        let mut at = [a.offset(), b.offset()];
        at.sort_unstable();
        self.twice.push(at);
        Ok(())
    }
}
