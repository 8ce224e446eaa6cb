//! A sequence of API calls, drawn from a seed.

use counterflow_emulator::Numbers;

/// Ranks of every sequence.
pub const WORLD: u32 = 2;
/// Rows that may be launched.
pub const ROWS: [usize; 4] = [0, 4, 8, MOST];
/// The most of them.
pub const MOST: usize = 12;
/// Columns, which are the depth as well.
pub const SIDE: usize = 8;

/// Streams of a rank's own.
pub const STREAMS: usize = 2;

/// One call, or a few, that all ranks make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Launches the schedule with that number, in the order of the rank's stream or of one of the caller's, with some
    /// rows of a larger tensor as its own operand or result if `view`.
    Launch {
        op: usize,
        rows: usize,
        stream: Option<usize>,
        view: bool,
    },
    /// Records launches in a graph, in place of the graph before: of the first gathering schedule, and then of others.
    Record {
        rows: usize,
        others: [Option<Other>; 2],
    },
    /// Replays the graph, if there is one, in the order of the rank's stream or of one of the caller's.
    Replay { stream: Option<usize> },
    /// Drops the graph, whose replays may still run.
    Discard,
    /// Two threads of each rank launch the same gathering schedule at once.
    Both { rows: usize },
    /// One rank launches a schedule that waits for nobody.
    Alone { rank: u32, rows: usize },
    /// Drops the gathered tensor, which launches may still use, and allocates another.
    Replace,
    /// Drops results that launches are still to write, and uses as much memory otherwise.
    Forget,
    /// Drops a built schedule, whose launches may still run, and builds it again.
    Rebuild { op: usize },
    /// Waits, and compares what the launches so far computed.
    Check,
    /// Two threads of each rank allocate at once.
    Twice,
    /// Waits for the other rank's thread.
    Barrier,
    /// Lets other threads run.
    Pause,
}

/// Another launch in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Other {
    /// Of the gathering schedule once more, with the same operand.
    Gathers,
    /// Of the first schedule that scatters.
    Scatters,
    /// Of a schedule that waits for nobody.
    Alone,
}

/// Fault of rank 1, in place of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Launches other rows.
    Rows,
    /// Launches another schedule.
    Op,
    /// Gives one tensor for an operand and for the result.
    Overlap,
    /// Ends.
    Ends,
    /// Panics.
    Panics,
    /// Ends the communicator.
    Aborts,
}

impl Other {
    const ALL: [Option<Other>; 4] = [
        None,
        Some(Other::Gathers),
        Some(Other::Scatters),
        Some(Other::Alone),
    ];
}

impl Fault {
    const ALL: [Fault; 6] = [
        Fault::Rows,
        Fault::Op,
        Fault::Overlap,
        Fault::Ends,
        Fault::Panics,
        Fault::Aborts,
    ];
}

/// Manner in which all calls of a sequence are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// The program captures its graphs in a stream of its own, and replays them there.
    pub captured: bool,
    /// Each launch is tried with more rows than the schedule was built for before: that is refused, and ends nothing.
    pub refused: bool,
    /// Schedules that wait for nobody are launched by a group of the rank alone, with tensors of the rank.
    pub lent: bool,
}

impl Way {
    /// Of that seed, by numbers of its own.
    fn of(seed: u64) -> Way {
        let mut numbers = Numbers::new(seed ^ 0x7761_7973);
        let mut one_in = |count: u64| numbers.below(count) == 0;
        Way {
            captured: one_in(3),
            refused: one_in(4),
            lent: one_in(3),
        }
    }
}

/// A sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    pub seed: u64,
    pub way: Way,
    /// Number of communicators of the ranks, on the same GPUs.
    pub comms: usize,
    /// Each with the communicator that it is made on.
    pub calls: Vec<(usize, Call)>,
    /// At which call rank 1 does something else.
    pub fault: Option<(usize, Fault)>,
}

impl Sequence {
    /// The sequence of that seed, with so many schedules whose ranks wait for each other. One in four has a fault, and
    /// one in eight two communicators.
    pub fn of(seed: u64, ops: usize) -> Sequence {
        let mut numbers = Numbers::new(seed);
        let mut draw = |end: usize| numbers.below(end as u64) as usize;
        let comms = if draw(8) == 0 { 2 } else { 1 };
        let mut calls = Vec::new();
        for _ in 0..3 + draw(6) {
            let rows = ROWS[draw(ROWS.len())];
            let call = match draw(20) {
                0 => Call::Check,
                1 | 2 => Call::Replace,
                3 => Call::Twice,
                4 => Call::Barrier,
                5 => Call::Pause,
                6 => Call::Both { rows },
                7 => Call::Alone {
                    rank: draw(WORLD as usize) as u32,
                    rows,
                },
                8 => Call::Forget,
                9 if draw(2) == 0 => Call::Rebuild { op: draw(ops) },
                10 | 11 => Call::Record {
                    rows,
                    others: [(); 2].map(|()| Other::ALL[draw(Other::ALL.len())]),
                },
                12 | 13 => Call::Replay {
                    stream: draw(STREAMS + 2).checked_sub(2),
                },
                14 => Call::Discard,
                _ => Call::Launch {
                    op: draw(ops),
                    rows,
                    stream: draw(STREAMS + 2).checked_sub(2),
                    view: draw(2) == 0,
                },
            };
            calls.push((draw(comms), call));
        }
        let launches = calls.iter().enumerate();
        let launches: Vec<usize> = launches
            .filter(|(_, (_, call))| matches!(call, Call::Launch { .. }))
            .map(|(at, _)| at)
            .collect();
        let fault = match (draw(4), launches.is_empty()) {
            (0, false) => Some((
                launches[draw(launches.len())],
                Fault::ALL[draw(Fault::ALL.len())],
            )),
            _ => None,
        };
        let way = Way::of(seed);
        // Of a rank that leaves, nobody but `each` and a process's end tells how many replays are missing.
        let leaves = matches!(fault, Some((_, Fault::Ends | Fault::Panics)));
        Sequence {
            seed,
            way: Way {
                captured: way.captured && !leaves,
                ..way
            },
            comms,
            calls,
            fault,
        }
    }

    /// The schedules that are launched on a communicator, if there are so many. A fault launches the next one.
    pub fn used(&self, comm: usize, ops: usize) -> Vec<bool> {
        let mut used = vec![false; ops];
        for (_, call) in self.calls.iter().filter(|(on, _)| *on == comm) {
            match call {
                Call::Launch { op, .. } | Call::Rebuild { op } => {
                    used[*op] = true;
                    used[(op + 1) % ops] |= self.fault.is_some_and(|(_, fault)| fault == Fault::Op);
                }
                Call::Both { .. } => used[0] = true,
                Call::Record { others, .. } => {
                    used[0] = true;
                    used[1] |= others.contains(&Some(Other::Scatters));
                }
                Call::Alone { .. }
                | Call::Replay { .. }
                | Call::Discard
                | Call::Replace
                | Call::Forget
                | Call::Check
                | Call::Twice
                | Call::Barrier
                | Call::Pause => {}
            }
        }
        used
    }
}
