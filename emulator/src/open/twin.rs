//! Kernels that no plan describes: a twin of each takes its steps on the machine's memory.

use super::bytes::{Fault, Memory};
use super::watch::{GaveUp, Watch};
use std::fmt;
use std::sync::Arc;

/// The steps of one rank's launch of a kernel. Ranks whose kernels wait for each other step in turns, in the machine's
/// order.
pub trait Twin: fmt::Debug + Send + Sync {
    /// Takes a step, the first of which is 0. A step that must wait changes nothing, unless `waits` is false: then the
    /// launch gave up, and takes the step with whatever is in memory.
    ///
    /// # Errors
    /// If the memory refuses an access.
    fn take(&self, step: u64, waits: bool, memory: &mut dyn Memory) -> Result<Stepped, Fault>;
}

/// Outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// It was taken, and another one follows.
    Next,
    /// It was taken, and ends the launch.
    Last,
    /// It waits, and is tried again.
    Waits(Awaited),
}

/// What a step waits for: the numbers of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// Index of what it waits for among all that its kernel waits for.
    pub what: u32,
    /// Index of the cell within that.
    pub index: u32,
    /// The count that it saw.
    pub seen: u64,
    /// The count that it waits for.
    pub wanted: u64,
}

/// One rank's launch of such a kernel. It takes no SMs of the machine.
#[derive(Clone, Debug)]
pub struct TwinLaunch {
    /// The steps.
    pub twin: Arc<dyn Twin>,
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Bytes from a rank's slot of the heap to the next.
    pub stride: u64,
    /// Place and limit for giving up.
    pub watch: Watch,
}

/// Progress of a launch.
#[derive(Debug, Default)]
pub(super) struct Progress {
    step: u64,
    /// Since when it has waited.
    pub since: Option<u64>,
    /// True if it gave up: nothing waits any more.
    drained: bool,
}

/// Outcome of a try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tried {
    Waits,
    Took,
    Ended,
}

impl TwinLaunch {
    /// Tries the next step. A wait that gives up is told.
    pub(super) fn take(
        &self,
        progress: &mut Progress,
        memory: &mut impl Memory,
        now: u64,
        told: &mut Vec<GaveUp>,
    ) -> Result<Tried, Fault> {
        let stepped = self
            .twin
            .take(progress.step, !progress.drained, &mut *memory)?;
        match stepped {
            Stepped::Next => {
                progress.step += 1;
                progress.since = None;
                Ok(Tried::Took)
            }
            Stepped::Last => Ok(Tried::Ended),
            Stepped::Waits(awaited) => {
                let since = *progress.since.get_or_insert(now);
                let at = (self.rank, self.stride);
                let Some(cause) = self.watch.cause(at, now.saturating_sub(since), memory)? else {
                    return Ok(Tried::Waits);
                };
                progress.drained = true;
                let Awaited {
                    what,
                    index,
                    seen,
                    wanted,
                } = awaited;
                told.push(GaveUp {
                    id: self.watch.id,
                    cause,
                    kernel: self.watch.kernel,
                    rank: self.rank,
                    role: 0,
                    counter: what,
                    cell: index,
                    seen,
                    wanted,
                    time: now,
                });
                self.watch.tell(self.world, self.stride, memory)?;
                Ok(Tried::Took)
            }
        }
    }
}
