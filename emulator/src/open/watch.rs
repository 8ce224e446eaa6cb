//! Time limits of a kernel's waits, and its report when it gives up.

use super::bytes::{Fault, Memory};

/// Place and limit for a kernel's waits to give up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// Number that the caller knows the report by.
    pub id: u64,
    /// The kernel's number, for the report.
    pub kernel: u32,
    /// The 32-bit flag of rank 0 that says that a rank gave up. Rank r's is `r * stride` further.
    pub abort: u64,
    /// A 32-bit word that the host sets to end all kernels.
    pub host: Option<u64>,
    /// Longest wait in nanoseconds.
    pub limit: u64,
}

impl Watch {
    /// Reason that a wait of a rank gives up that has lasted so long, if it does. `stride`: bytes from a rank's slot to the
    /// next.
    pub(super) fn cause(
        &self,
        (rank, stride): (u32, u64),
        waited: u64,
        memory: &impl Memory,
    ) -> Result<Option<Cause>, Fault> {
        let is_set = |at: u64| -> Result<bool, Fault> {
            Ok(memory.bytes(at, 4)?.iter().any(|byte| *byte != 0))
        };
        Ok(if is_set(self.abort + u64::from(rank) * stride)? {
            Some(Cause::Peer)
        } else if self.host.map_or(Ok(false), is_set)? {
            Some(Cause::Host)
        } else {
            (waited >= self.limit).then_some(Cause::Limit)
        })
    }

    /// Tells all ranks that one gave up.
    pub(super) fn tell(
        &self,
        world: u32,
        stride: u64,
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        (0..u64::from(world))
            .try_for_each(|rank| memory.write(self.abort + rank * stride, &1u32.to_le_bytes()))
    }
}

/// Reason that a wait gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The wait lasted too long.
    Limit,
    /// A rank gave up before.
    Peer,
    /// The host ended all kernels.
    Host,
    /// A peer launches something else: `counter` is the peer, `cell` the launch's place, `seen` and `wanted` are what both
    /// launch. If `role` is 1, they differ in replays before it.
    Differs,
}

/// The first wait of a launch that gave up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GaveUp {
    /// [`Watch::id`].
    pub id: u64,
    /// Reason that it gave up.
    pub cause: Cause,
    /// [`Watch::kernel`].
    pub kernel: u32,
    /// The rank.
    pub rank: u32,
    /// The index of its role.
    pub role: u32,
    /// The index of the counter.
    pub counter: u32,
    /// The cell among all of the rank's.
    pub cell: u32,
    /// The count that it saw.
    pub seen: u64,
    /// The count that it waited for.
    pub wanted: u64,
    /// Time in nanoseconds.
    pub time: u64,
}
