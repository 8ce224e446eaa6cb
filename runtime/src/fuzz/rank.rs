//! One rank's part of a sequence, and what its launches must compute.

use super::plan::{Call, Fault, MOST, Other, ROWS, SIDE, STREAMS, WORLD, Way};
use crate::communicator::Communicator;
use crate::driver::{self, Stream};
use crate::error::Error;
use crate::graph::Graph;
use crate::op::{Caller, Op};
use crate::tensor::Tensor;
use crate::user_buffer::UserBuffer;
use counterflow_codegen::program::Program;
use half::bf16;

/// Rows of the tensor that is gathered: more than a launch has, so that it may begin at one of them.
const GATHERED: usize = MOST + 2;

/// Finding that makes a sequence wrong, or an error of a call.
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
    let mut numbers = counterflow_emulator::Numbers::new(
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

/// Product that a launch computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The product of all ranks' rows.
    Gathers,
    /// The sum of all ranks' products, of which each rank has its rows.
    Scatters,
    /// The product of the rank's own rows.
    Alone,
}

struct Launched {
    kind: Kind,
    rows: usize,
    input: u64,
    y: Output,
}

/// A graph of ours, or one that the program captured.
enum Replays {
    Ours(Graph),
    Captured(driver::Graph),
}

/// A graph. The arguments of its launches stay: the graph has them, and this.
struct Recorded {
    graph: Replays,
    rows: usize,
    /// Operands of the launches that gather, and of the others.
    x: UserBuffer<bf16>,
    own: Tensor<bf16>,
    /// Product and output of each launch.
    launches: Vec<(Kind, Output)>,
}

/// One rank of one communicator.
pub struct Rank<'a> {
    comm: &'a Communicator,
    programs: &'a [(Program, Kind)],
    ops: Vec<Option<Op>>,
    alone: Op,
    /// Op and communicator of a group of this rank alone.
    lent: Option<(Op, Communicator)>,
    way: Way,
    streams: Vec<Stream>,
    w: Tensor<bf16>,
    x: Option<UserBuffer<bf16>>,
    /// For results in the heap. A new one would make the next launch wait until every rank has cleared it.
    results: Vec<UserBuffer<bf16>>,
    launched: Vec<Launched>,
    recorded: Option<Recorded>,
    /// Output that graphs scatter into: each replay's is copied before the next.
    scattered: Option<UserBuffer<bf16>>,
    allocated: usize,
    /// Places of two threads' allocations, call by call.
    pub twice: Vec<[u64; 2]>,
}

impl<'a> Rank<'a> {
    /// Builds those of the schedules that are used, and one that waits for nobody. Collective.
    pub fn new(
        comm: &'a Communicator,
        (programs, alone): (&'a [(Program, Kind)], &Program),
        used: &[bool],
        launches: usize,
        way: Way,
    ) -> Result<Rank<'a>, Error> {
        comm.reserve((1 << 20) + (1 << 17))?;
        let ops = programs.iter().zip(used);
        let ops = ops.map(|((program, _), used)| used.then(|| build(comm, program)).transpose());
        let ops = ops.collect::<Result<_, Error>>()?;
        let w = comm.zeros([SIDE, SIDE])?;
        let me = comm.rank() as usize;
        w.write(&matrix(SIDE, |row, column| number(0, me, row, column)))?;
        let memory = |at: usize, rows| comm.allocate(&format!("rows {at}"), [rows, SIDE]);
        Ok(Rank {
            comm,
            programs,
            ops,
            alone: build(comm, alone)?,
            lent: match way.lent {
                true => {
                    let group = comm.split(comm.rank(), 0)?;
                    Some((build(&group, alone)?, group))
                }
                false => None,
            },
            way,
            streams: (0..STREAMS)
                .map(|_| comm.gpu().stream())
                .collect::<Result<_, _>>()?,
            w,
            x: Some(memory(launches, GATHERED)?),
            results: (0..launches)
                .map(|at| memory(at, MOST))
                .collect::<Result<_, _>>()?,
            launched: Vec::new(),
            recorded: None,
            scattered: None,
            allocated: 0,
            twice: Vec::new(),
        })
    }

    fn name(&mut self) -> String {
        self.allocated += 1;
        format!("memory {}", self.allocated)
    }

    /// Makes a call of a sequence. False if the rank ends here.
    pub fn call(&mut self, call: Call, fault: Option<Fault>, input: u64) -> Result<bool, Wrong> {
        match fault {
            Some(Fault::Ends) => return Ok(false),
            Some(Fault::Aborts) => {
                self.comm.abort("enough");
                return Ok(false);
            }
            // Nothing is printed.
            Some(Fault::Panics) => std::panic::resume_unwind(Box::new("on purpose")),
            Some(Fault::Rows | Fault::Op | Fault::Overlap) | None => {}
        }
        match call {
            Call::Launch {
                op,
                rows,
                stream,
                view,
            } => match fault {
                Some(Fault::Rows) => {
                    let rows = if rows == ROWS[0] { ROWS[1] } else { ROWS[0] };
                    self.launch(op, rows, stream, view, input)?;
                }
                Some(Fault::Op) => {
                    self.launch((op + 1) % self.ops.len(), rows, stream, view, input)?;
                }
                Some(Fault::Overlap) => self.overlap(op, rows)?,
                _ => self.launch(op, rows, stream, view, input)?,
            },
            Call::Record { rows, others } => self.record(rows, others)?,
            Call::Replay { stream } => self.replay(stream, input)?,
            Call::Discard => drop(self.recorded.take()),
            Call::Both { rows } => self.launch_both(rows, input)?,
            Call::Alone { rank, rows } if rank == self.comm.rank() => {
                self.launch_alone(rows, input)?
            }
            Call::Alone { .. } => {}
            Call::Replace => {
                let name = self.name();
                // The old one is dropped first, so that its memory may be given out.
                drop(self.x.take());
                self.x = Some(self.comm.allocate(&name, [GATHERED, SIDE])?);
            }
            Call::Forget => {
                self.launched.clear();
                self.comm.zeros::<bf16>([MOST, SIDE])?.fill(0xff)?;
            }
            Call::Rebuild { op } => {
                drop(self.ops[op].take());
                self.ops[op] = Some(build(self.comm, &self.programs[op].0)?);
            }
            Call::Check => self.check()?,
            Call::Twice => self.allocate_twice()?,
            Call::Barrier => self.comm.barrier()?,
            Call::Pause => std::thread::yield_now(),
        }
        Ok(true)
    }

    /// Compares the rest, and waits for the other rank.
    pub fn end(&mut self) -> Result<(), Wrong> {
        self.check()?;
        Ok(self.comm.barrier()?)
    }

    /// Rows of this rank's own: a tensor, or some rows in the middle of one.
    fn own(&self, rows: usize, view: bool) -> Result<Tensor<bf16>, Error> {
        if !view {
            return self.comm.zeros([rows, SIDE]);
        }
        let larger = self.comm.zeros([rows + 2 * SIDE, SIDE])?;
        larger.fill(0xff)?;
        larger.rows(SIDE..SIDE + rows)
    }

    /// At least one row: no tensor has none.
    fn operand(&self, rows: usize, view: bool, input: u64) -> Result<Tensor<bf16>, Error> {
        let rows = rows.max(1);
        let (x, me) = (self.own(rows, view)?, self.comm.rank() as usize);
        x.write(&matrix(rows, |row, column| number(input, me, row, column)))?;
        Ok(x)
    }

    /// Launches, and does not wait.
    pub fn launch(
        &mut self,
        op: usize,
        rows: usize,
        stream: Option<usize>,
        view: bool,
        input: u64,
    ) -> Result<(), Wrong> {
        let (comm, me) = (self.comm, self.comm.rank() as usize);
        let kind = self.programs[op].1;
        let caller: Caller<'_> = match stream {
            Some(stream) => (&self.streams[stream]).into(),
            None => comm.into(),
        };
        let op = self.ops[op].as_ref().expect("built");
        if self.way.refused {
            match op.on(caller.clone()).rows(MOST + 1).launch() {
                Err(Error::Rejected(_)) => {}
                Err(other) => return Err(other.into()),
                Ok(_) => return Err(Wrong::Value("more rows than it was built for".into())),
            }
        }
        let y = if kind == Kind::Gathers {
            let gathered = self.x.as_ref().expect("one at any time");
            let gathered = gathered.rows(if view { 2..GATHERED } else { 0..MOST })?;
            gathered.write(&matrix(rows, |row, column| number(input, me, row, column)))?;
            let mut y = self.own(MOST, view)?;
            let launch = op.on(caller).rows(rows).tensor("x", &gathered);
            launch.tensor("w", &self.w).tensor("y", &mut y).launch()?;
            Output::Own(y)
        } else {
            let x = self.operand(rows, view, input)?;
            let mut y = self.results.pop().expect("one for each launch");
            let launch = op.on(caller).rows(rows).tensor("x", &x);
            launch.tensor("w", &self.w).tensor("y", &mut y).launch()?;
            Output::Heap(y)
        };
        self.launched.push(Launched {
            kind,
            rows,
            input,
            y,
        });
        Ok(())
    }

    /// Each rank does so by itself, so the ranks make different numbers of launches.
    fn launch_alone(&mut self, rows: usize, input: u64) -> Result<(), Wrong> {
        let x = self.operand(rows, true, input)?;
        let mut y = self.own(rows.max(1), true)?;
        let launch = match &self.lent {
            Some((op, group)) => op.on(group),
            None => self.alone.on(self.comm),
        };
        let launch = launch.rows(rows).tensor("x", &x);
        launch.tensor("w", &self.w).tensor("y", &mut y).launch()?;
        self.launched.push(Launched {
            kind: Kind::Alone,
            rows,
            input,
            y: Output::Own(y),
        });
        Ok(())
    }

    /// Nothing of it runs. The gathered tensor may be dropped and replaced under the graph.
    fn record(&mut self, rows: usize, others: [Option<Other>; 2]) -> Result<(), Wrong> {
        let x = self.x.as_ref().expect("one at any time").clone();
        let own = self.own(MOST, true)?;
        let kinds = others.into_iter().flatten().map(|other| match other {
            Other::Gathers => Kind::Gathers,
            Other::Scatters => Kind::Scatters,
            Other::Alone => Kind::Alone,
        });
        let mut launches = Vec::new();
        for kind in std::iter::once(Kind::Gathers).chain(kinds) {
            let y = match (kind, &mut self.scattered) {
                (Kind::Gathers | Kind::Alone, _) => Output::Own(self.own(MOST, true)?),
                (Kind::Scatters, Some(y)) => Output::Heap(y.clone()),
                (Kind::Scatters, none) => {
                    let y = self.results.pop().expect("one for each launch");
                    Output::Heap(none.insert(y).clone())
                }
            };
            launches.push((kind, y));
        }
        let mut record = |on: Caller<'_>| {
            for (kind, y) in &mut launches {
                let op = match kind {
                    Kind::Gathers => self.ops[0].as_ref().expect("built"),
                    Kind::Scatters => self.ops[1].as_ref().expect("built"),
                    Kind::Alone => &self.alone,
                };
                let launch = op.on(on.clone()).rows(rows).tensor("w", &self.w);
                let launch = match kind {
                    Kind::Gathers => launch.tensor("x", &x),
                    Kind::Scatters | Kind::Alone => launch.tensor("x", &own),
                };
                match y {
                    Output::Own(y) => launch.tensor("y", y).launch()?,
                    Output::Heap(y) => launch.tensor("y", y).launch()?,
                };
            }
            Ok(())
        };
        let graph = match self.way.captured {
            false => Replays::Ours(self.comm.capture(|s| record(s.into()))?),
            true => {
                let stream = &self.streams[0];
                driver::Graph::record(stream)?;
                let recorded = record(stream.into());
                let graph = driver::Graph::recorded(stream)?;
                recorded?;
                Replays::Captured(graph)
            }
        };
        self.recorded = Some(Recorded {
            graph,
            rows,
            x,
            own,
            launches,
        });
        Ok(())
    }

    /// Replays a graph, and copies its result at once: the next replay writes it again.
    fn replay(&mut self, stream: Option<usize>, input: u64) -> Result<(), Wrong> {
        let Some(recorded) = &self.recorded else {
            return Ok(());
        };
        let Recorded {
            graph,
            rows,
            x,
            own,
            launches,
        } = recorded;
        let me = self.comm.rank() as usize;
        let values = |rows| matrix(rows, |row, column| number(input, me, row, column));
        x.write(&values(*rows))?;
        own.write(&values(MOST))?;
        match (graph, stream) {
            (Replays::Ours(graph), Some(stream)) => drop(graph.launch(&self.streams[stream])?),
            (Replays::Ours(graph), None) => drop(graph.launch(self.comm)?),
            (Replays::Captured(graph), stream) => {
                graph.launch(&self.streams[stream.unwrap_or(0)])?;
            }
        }
        for (kind, y) in launches {
            let copied = self.comm.zeros([MOST, SIDE])?;
            match y {
                Output::Own(y) => copied.copy_from(y)?,
                Output::Heap(y) => y.copy_to(&copied)?,
            }
            self.launched.push(Launched {
                kind: *kind,
                rows: *rows,
                input,
                y: Output::Own(copied),
            });
        }
        Ok(())
    }

    /// Two threads launch the same, each with a result of its own.
    fn launch_both(&mut self, rows: usize, input: u64) -> Result<(), Wrong> {
        let me = self.comm.rank() as usize;
        let gathered = self.x.as_ref().expect("one at any time");
        gathered.write(&matrix(rows, |row, column| number(input, me, row, column)))?;
        let op = self.ops[0].as_ref().expect("built");
        let (rank, undone) = (&*self, crate::undo::now());
        let one = || {
            crate::undo::undo(undone);
            let mut y = rank.own(MOST, false)?;
            let launch = op.on(rank.comm).rows(rows).tensor("x", gathered);
            launch.tensor("w", &rank.w).tensor("y", &mut y).launch()?;
            Ok::<_, Error>(y)
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(one);
            let mine = one();
            [mine, other.join().expect("no panic")]
        });
        for y in both {
            self.launched.push(Launched {
                kind: Kind::Gathers,
                rows,
                input,
                y: Output::Own(y?),
            });
        }
        Ok(())
    }

    /// Makes a launch that is refused: the result is an operand, too. A launch of no rows has neither.
    fn overlap(&mut self, op: usize, rows: usize) -> Result<(), Wrong> {
        let rows = rows.max(ROWS[1]);
        let op = self.ops[op].as_ref().expect("built");
        let (x, w) = (self.x.as_ref().expect("one at any time"), &self.w);
        let launch = op.on(self.comm).rows(rows).tensor("x", x);
        launch.tensor("w", w).tensor("y", &mut x.clone()).launch()?;
        Err(Wrong::Value("an operand was taken as the result".into()))
    }

    /// Every launch since the last check has computed what it must.
    fn check(&mut self) -> Result<(), Wrong> {
        let me = self.comm.rank() as usize;
        for launched in std::mem::take(&mut self.launched) {
            let Launched {
                kind,
                rows,
                input,
                y,
            } = launched;
            let shard = rows / WORLD as usize;
            let of = |rank: usize, x: usize, row: usize, column: usize| {
                let terms = 0..SIDE;
                let term = |k| number(input, x, row, k) * number(0, rank, column, k);
                terms.map(term).sum::<i32>()
            };
            let got = match y {
                Output::Own(y) => y.read()?,
                Output::Heap(y) => y.read()?,
            };
            let expected = match kind {
                Kind::Gathers => matrix(rows, |row, column| of(me, row / shard, row, column)),
                Kind::Alone => matrix(rows, |row, column| of(me, me, row, column)),
                Kind::Scatters => matrix(shard, |row, column| {
                    let part = |rank| of(rank, rank, me * shard + row, column);
                    (0..WORLD as usize).map(part).sum()
                }),
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

fn build(comm: &Communicator, program: &Program) -> Result<Op, Error> {
    let builder = comm.op(program).up_to(MOST, SIDE, SIDE);
    builder.first_options().build()
}
