//! The events of a traced kernel.

use counterflow_emitter::Site;
use std::fmt;

/// One event, as a kernel wrote it.
///
/// [`measured`](super::measured) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Nanoseconds by its GPU's clock.
    pub time: u64,
    /// Number of the probe in [`Traced::sites`](counterflow_emitter::Traced::sites).
    pub site: u32,
    /// The item, or the cell of a wait.
    pub number: u32,
    /// Rank and cell of a signal.
    pub cell: (u32, u32),
}

/// The events of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strand {
    /// Index of the CTA.
    pub block: u32,
    /// Events of the thread, in order.
    pub marks: Vec<Mark>,
    /// Later events, which were not kept.
    pub lost: u32,
}

/// The events of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Number of the clock: ranks with the same number share one, as ranks on one GPU do.
    pub clock: u32,
    /// Threads of the rank.
    pub strands: Vec<Strand>,
}

/// The events of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    /// The kernel's probes.
    pub sites: &'a [Site],
    /// Events of each rank, in their order.
    pub ranks: &'a [Recorded],
}

/// Events that are no trace of one launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Misread {
    /// A rank has no event.
    Nothing {
        /// The rank.
        rank: usize,
    },
    /// An event names a probe that the kernel does not have.
    Site {
        /// The rank.
        rank: usize,
        /// The number.
        site: u32,
    },
    /// A thread's events go back in time, or waits were met before their signals were sent.
    Clocks {
        /// The rank.
        rank: usize,
    },
}

impl fmt::Display for Misread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misread::Nothing { rank } => write!(f, "rank {rank} wrote no event"),
            Misread::Site { rank, site } => {
                write!(
                    f,
                    "rank {rank} wrote an event of probe {site}, which the kernel does not have"
                )
            }
            Misread::Clocks { rank } => write!(
                f,
                "the times of rank {rank} contradict its signals: the events are not of one launch"
            ),
        }
    }
}

impl std::error::Error for Misread {}
