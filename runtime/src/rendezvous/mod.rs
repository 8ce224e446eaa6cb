//! Rendezvous: ranks that are processes find each other, before they share anything.
//!
//! A [`Rendezvous`] gathers a few bytes of every rank, a handful of times. [`Threads`] does so within a process, [`Tcp`]
//! between processes, and [`Callbacks`] by whatever the program has already, such as its own MPI. [`Job`] reads what
//! torchrun, OpenMPI's and MPICH's mpirun, and Slurm tell a process of its job.
//!
//! Nothing here waits without a limit, and who does not know the job's secret neither joins nor delays those who do.

mod callbacks;
pub(crate) mod door;
mod exchange;
mod job;
mod lobby;
mod secret;
mod tcp;
mod threads;
pub(crate) mod wire;

pub use callbacks::Callbacks;
pub use job::{Job, Launcher};
pub use secret::Secret;
pub(crate) use secret::random;
pub use tcp::Tcp;
pub use threads::Threads;

use crate::error::Error;
use counterflow_codegen::shape::MAX_WORLD;
use std::time::{Duration, Instant};

/// The longest message of a rank, in bytes.
pub const LONGEST: usize = 1 << 16;

/// A place where the ranks of a job exchange small messages. All ranks make the same calls in the same order. After an error it
/// is of no more use.
///
/// ```
/// use counterflow_runtime::rendezvous::{Rendezvous, Threads};
/// use std::time::Duration;
/// let limit = Duration::from_secs(60);
/// std::thread::scope(|scope| {
///     for rank in Threads::of(2) {
///         scope.spawn(move || {
///             let mine = [rank.rank() as u8];
///             let all = rank.all_gather(&mine, limit).expect("both come");
///             assert_eq!((all, rank.world()), (vec![vec![0], vec![1]], 2));
///             rank.barrier(limit).expect("both come");
///         });
///     }
/// });
/// ```
pub trait Rendezvous: Send + Sync {
    /// This process's rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world(&self) -> u32;

    /// Every rank's message, in the order of the ranks. A message has at most [`LONGEST`] bytes.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with the ranks that did not come within `limit`.
    fn all_gather(&self, mine: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, Error>;

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// As [`Rendezvous::all_gather`].
    fn barrier(&self, limit: Duration) -> Result<(), Error> {
        self.all_gather(&[], limit).map(drop)
    }
}

/// Until when all steps of something may last together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub until: Instant,
    /// Time from the start to the end.
    pub limit: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn after(limit: Duration) -> Deadline {
        let until = Instant::now() + limit;
        Deadline { until, limit }
    }

    /// Time that is left.
    pub fn left(self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

/// The error of ranks that did not come in time.
pub(crate) fn absent(missing: &[u32], what: &str, limit: Duration) -> Error {
    let named: Vec<String> = missing.iter().map(u32::to_string).collect();
    let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
    Error::Rendezvous {
        what: format!("{ranks} {} did not {what} within {limit:?}", named.join(", ")),
        help: "see whether each rank's process started, and what it said; UB_TIMEOUT (seconds) sets the limit"
            .into(),
    }
}

/// The error of what a program does wrong, or what went wrong for good.
pub(crate) fn failed(what: impl Into<String>, help: &str) -> Error {
    Error::Rendezvous {
        what: what.into(),
        help: help.into(),
    }
}

/// Rejects a message that is too long.
fn must_fit(mine: &[u8]) -> Result<(), Error> {
    if mine.len() > LONGEST {
        return Err(Error::Usage {
            what: format!("a message of {} bytes", mine.len()),
            legal: format!("at most {LONGEST}: a rendezvous gathers addresses, no data"),
        });
    }
    Ok(())
}

/// Rejects a rank outside its world, and a world that no communicator has, before anything is made for it.
fn must_be_in(rank: u32, world: u32) -> Result<(), Error> {
    if world > MAX_WORLD {
        return Err(Error::Usage {
            what: format!("a rendezvous of {world} ranks"),
            legal: format!("1 to {MAX_WORLD}"),
        });
    }
    if rank >= world {
        return Err(Error::Usage {
            what: format!("rank {rank} of {world}"),
            legal: "ranks count from 0, below the number of ranks".into(),
        });
    }
    Ok(())
}
