//! Counts of builds and launches on a rank.

use super::Communicator;
use crate::metrics::OpCounts;

impl Communicator {
    /// Numbers of builds and launches on this rank so far, by schedule and variant. It waits for nobody.
    ///
    /// ```
    /// use counterflow::metrics::{OpCounts, Why};
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.time_launches(true);
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// op.on(rank).x(&x).w(&x).y(&mut y).rows(40).launch()?.wait()?;
    ///
    /// let gemm: &OpCounts = &rank.op_counts()[0];
    /// assert_eq!((&*gemm.schedule, gemm.why, gemm.fused), ("gemm", Why::FirstOptions, false));
    /// assert_eq!((gemm.built, gemm.launches, gemm.rows, gemm.bytes), (1, 1, 40, 0));
    /// println!("{} of {} launches took {:?}", gemm.timed, gemm.launches, gemm.gpu_time);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn op_counts(&self) -> Vec<OpCounts> {
        self.metrics().counts()
    }

    /// Times this rank's launches on the GPU from now on, or no more: [`OpCounts::gpu_time`]. Off at first, as two events that
    /// keep time cost the host some microseconds a launch, and a launch between them does not start before the one in front of it
    /// has ended. A launch in a [`Graph`](crate::Graph) is timed at its replays if it was recorded while this was on.
    ///
    /// [`Communicator::op_counts`] has an example.
    pub fn time_launches(&self, on: bool) {
        self.metrics().time(on);
    }
}
