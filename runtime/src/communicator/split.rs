//! Communicators of some of the ranks.

use super::Communicator;
use crate::error::Error;
use crate::group::Group;
use std::sync::Arc;
use tracing::debug;

impl Communicator {
    /// A communicator of all ranks that give this color, in the order of their keys, and of their ranks where keys are
    /// equal. Collective: every rank calls it, and is in one of the groups.
    ///
    /// A group has a heap of its own, and launches, ends and is dropped by itself. A rank may be in several groups, as of
    /// tensor-parallel ranks and of data-parallel ones. Launches of two groups on one GPU that do not fit there together
    /// run one after another: let all ranks that two groups share launch on them in the same order. Ranks of one process
    /// are refused otherwise. Nobody refuses two other cases of opposite orders: launches of two groups in one stream of
    /// the caller's, and ranks that are processes, which do not see each other's order. There a wait ends at its limit.
    ///
    /// ```
    /// use counterflow::Communicator;
    ///
    /// let ranks = Communicator::emulated(4)?;
    /// let places = Communicator::each(&ranks, |rank| {
    ///     let tensor = rank.split(rank.rank() / 2, 0)?; // 0 and 1, 2 and 3: they share each layer
    ///     let data = rank.split(rank.rank() % 2, 0)?; // 0 and 2, 1 and 3: they have the same part of each layer
    ///     tensor.reserve(2 << 20)?;
    ///     tensor.barrier()?;
    ///     Ok((tensor.rank(), data.rank(), data.world()))
    /// })?;
    /// assert_eq!(places, [(0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2)]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Stalled`]; as [`Communicator::on`] or [`Communicator::join`] for what a group needs.
    pub fn split(&self, color: u32, key: u32) -> Result<Communicator, Error> {
        self.own().must_not_have_turn("a call of all ranks")?;
        let (group, rank) = self.group.split(self.rank, (color, key))?;
        debug!(of = self.rank, color, rank, ranks = group.world(), "group");
        Ok(self.seat_in(&group, rank))
    }

    /// This rank's place in a group that was made of its communicator.
    pub(super) fn seat_in(&self, group: &Arc<Group>, rank: u32) -> Communicator {
        let stream = group.stream(rank);
        let mut made = Communicator::seat(group, rank, stream, &self.proven);
        let parent = (Arc::downgrade(&self.group), self.rank);
        made.ancestors = self.ancestors.iter().cloned().chain([parent]).collect();
        made
    }
}
