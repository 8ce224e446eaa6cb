//! A sequence of API calls, drawn from a seed.

use counterflow_codegen::interp::Numbers;

/// Ranks of every sequence.
pub const WORLD: u32 = 2;
/// Rows that may be launched; the last is the most.
pub const ROWS: [usize; 3] = [4, 8, 12];
/// Columns, which are the depth as well.
pub const SIDE: usize = 8;

/// Streams of a rank's own.
pub const STREAMS: usize = 2;

/// One call, or a few, that all ranks make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Launches the schedule with that number, in the order of the rank's stream or of one of the caller's.
    Launch {
        op: usize,
        rows: usize,
        stream: Option<usize>,
    },
    /// Drops the gathered tensor, which launches may still use, and allocates another.
    Replace,
    /// Waits, and compares what the launches so far computed.
    Check,
    /// Two threads of each rank allocate at once.
    Twice,
    /// Waits for the other rank's thread.
    Barrier,
    /// Lets other threads run.
    Pause,
}

/// What one rank does differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It launches other rows.
    Rows,
    /// It launches another schedule.
    Op,
    /// It ends.
    Ends,
    /// It ends the communicator.
    Aborts,
}

/// A sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence {
    pub seed: u64,
    pub calls: Vec<Call>,
    /// At which call rank 1 does something else.
    pub fault: Option<(usize, Fault)>,
}

impl Sequence {
    /// The sequence of that seed. One in four has a fault.
    pub fn of(seed: u64, ops: usize) -> Sequence {
        let mut numbers = Numbers::new(seed);
        let mut draw = |end: usize| numbers.below(end as u64) as usize;
        let mut calls = Vec::new();
        for _ in 0..3 + draw(6) {
            calls.push(match draw(12) {
                0 => Call::Check,
                1 | 2 => Call::Replace,
                3 => Call::Twice,
                4 => Call::Barrier,
                5 => Call::Pause,
                _ => Call::Launch {
                    op: draw(ops),
                    rows: ROWS[draw(ROWS.len())],
                    stream: draw(STREAMS + 2).checked_sub(2),
                },
            });
        }
        let launches = calls.iter().enumerate();
        let launches: Vec<usize> = launches
            .filter(|(_, call)| matches!(call, Call::Launch { .. }))
            .map(|(at, _)| at)
            .collect();
        let fault = match (draw(4), launches.is_empty()) {
            (0, false) => {
                let faults = [Fault::Rows, Fault::Op, Fault::Ends, Fault::Aborts];
                Some((launches[draw(launches.len())], faults[draw(faults.len())]))
            }
            _ => None,
        };
        Sequence { seed, calls, fault }
    }
}
