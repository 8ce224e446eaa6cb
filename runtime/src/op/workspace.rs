//! The memory of ops, before they are built.

use crate::group::PLACES;
use crate::launch::{HeapBytes, Loaded};
use crate::proof::Proof;

/// The memory that an op takes on each rank at most, beside the tensors that its launches are given. Ops of a communicator
/// share scratch: [`Workspace::together`].
///
/// ```
/// # use counterflow::{Communicator, op::Workspace, schedules::GemmOp};
/// # let rank = &Communicator::emulated(1)?[0];
/// let Workspace { heap, own, .. } = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).workspace()?;
/// println!("{heap} bytes to reserve, {own} bytes elsewhere");
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workspace {
    /// Bytes of the symmetric heap: scratch and counters.
    pub heap: u64,
    /// Bytes of the GPU's memory elsewhere: tables of arrivals.
    pub own: u64,
    /// Bytes of the GPU's memory beside both that [`OpBuilder::build`](crate::OpBuilder::build) takes while it measures candidates,
    /// and frees before it returns. None of it is to be reserved. Each rank's own tensors are there several times, so that they come
    /// from memory as in a program's layers; where there is too little for that, fewer times. Where there is none, nothing is measured.
    ///
    /// ```
    /// # use counterflow::{Communicator, schedules::AgGemmOp, tuning::Tuning};
    /// # let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<AgGemmOp>().tuning(Tuning::Quick).up_to(64, 64, 64);
    /// assert!(op.workspace()?.tuning > 3 * 64 * 64 * 2); // `x`, `w` and `y`, and what the candidates need
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub tuning: u64,
    /// Bytes of the heap in each place that ops share.
    shared: [u64; PLACES],
    /// Bytes of the same scratch if no op shares it.
    scratch: u64,
    /// Bytes of counters that must lie near each other for ops to share scratch.
    near: u64,
    /// Bytes that were free for those when this was asked.
    room: u64,
}

impl Workspace {
    /// The memory of several ops of one communicator, all alive at once: the counters of all, and the largest scratch instead
    /// of the sum. Ops share scratch while their counters fit into 1 MiB of the heap, beside those of ops that are there already; where
    /// they do not, it is the sum. Every rank is told the same. Build the op with the most scratch first: one that needs more than those
    /// before it takes memory of its own.
    ///
    /// ```
    /// use counterflow::{Communicator, op::Workspace, schedules::GemmRsOp};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     let layers = [4096, 1024, 512].map(|n| rank.op_of::<GemmRsOp>().first_options().up_to(256, n, 64));
    ///     let each = layers.iter().map(|op| op.workspace()).collect::<Result<Vec<_>, _>>()?;
    ///     let all = Workspace::together(each.iter().copied());
    ///     assert!(all.heap < each.iter().map(|one| one.heap).sum());
    ///     rank.reserve(all.heap + (1 << 20))?;
    ///     let ops = layers.map(|op| op.build());
    ///     assert!(ops.iter().all(|op| op.is_ok()));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    #[must_use]
    pub fn together(ops: impl IntoIterator<Item = Workspace>) -> Workspace {
        let mut all = Workspace::apart(0);
        for op in ops {
            all.tuning = op.tuning.max(all.tuning);
            all.heap += op.heap - op.held();
            all.own += op.own;
            for (most, bytes) in all.shared.iter_mut().zip(op.shared) {
                *most = bytes.max(*most);
            }
            all.scratch += op.scratch;
            all.near += op.near;
            all.room = all.room.min(op.room);
        }
        all.heap += all.held();
        all
    }

    /// True if all kernels have room to share scratch.
    fn shares(&self) -> bool {
        self.near <= self.room
    }

    /// Bytes of scratch that kernels may share. Where some find no room, it may be any of them: none is counted as shared.
    fn held(&self) -> u64 {
        match self.shares() {
            true => self.shared.iter().sum(),
            false => self.scratch,
        }
    }

    /// So many bytes of the heap that are shared with nothing.
    pub(crate) fn apart(heap: u64) -> Workspace {
        Workspace {
            heap,
            own: 0,
            tuning: 0,
            shared: [0; PLACES],
            scratch: 0,
            near: 0,
            room: u64::MAX,
        }
    }

    /// Enough for either of two, each by itself.
    pub(super) fn or(self, other: Workspace) -> Workspace {
        Workspace {
            heap: self.heap.max(other.heap),
            own: self.own.max(other.own),
            ..self
        }
    }

    /// Bytes of the heap and elsewhere beyond those of another.
    pub(super) fn beyond(&self, least: Workspace) -> [u64; 2] {
        [
            self.heap.saturating_sub(least.heap),
            self.own.saturating_sub(least.own),
        ]
    }

    /// Memory of one op, whose kernels are loaded in that order: one that needs more scratch than those before it
    /// takes memory of its own. `between` is what its stages hand over.
    pub(super) fn of_kernels(
        kernels: impl Iterator<Item = Workspace> + Clone,
        between: u64,
    ) -> Workspace {
        let mut held = [0; PLACES];
        let mut again = 0;
        for kernel in kernels.clone() {
            for (held, bytes) in held.iter_mut().zip(kernel.shared) {
                if bytes > *held {
                    again += *held;
                    *held = bytes;
                }
            }
        }
        let together = Workspace::together(kernels);
        let again = if together.shares() { again } else { 0 };
        Workspace {
            heap: together.heap + again,
            own: together.own + between,
            ..together
        }
    }

    /// Memory of one kernel, with `room` bytes for counters that are near the others'.
    pub(super) fn of(proof: &Proof, room: u64) -> Workspace {
        if let Some(collective) = proof.collective {
            return Workspace {
                own: Loaded::exchange_own_bytes(&proof.series),
                ..Workspace::apart(Loaded::exchange_heap_bytes(
                    collective,
                    &proof.series,
                    &proof.largest,
                ))
            };
        }
        let HeapBytes { own, shared, near } = Loaded::heap_bytes(&proof.series, &proof.largest);
        let scratch = shared.iter().sum::<u64>();
        Workspace {
            heap: own + scratch,
            own: Loaded::own_bytes(&proof.series),
            tuning: 0,
            shared,
            scratch,
            near,
            room,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::communicator::Communicator;
    use crate::schedules::{Sender, gather};

    #[test]
    fn a_shape_of_too_many_steps_is_refused_before_memory_is_taken() {
        let ranks = Communicator::emulated(2).expect("ranks");
        let told = Communicator::each(&ranks, |rank| {
            let program = gather(Sender::Ctas(4));
            let op = rank.op(&program).up_to(1 << 26, 8192, 8).first_options();
            let told = [op.workspace().map(drop), op.build().map(drop)];
            Ok(told.map(|told| told.expect_err("too many steps")))
        });
        for told in told.expect("no rank ends").into_iter().flatten() {
            assert_eq!(told.kind(), "rejected", "{told}");
            assert!(told.to_string().contains(" steps"), "{told}");
            let help = told.help().unwrap_or_default();
            assert!(
                format!("{told}{help}").contains("are checked at once"),
                "{told}"
            );
        }
    }
}
