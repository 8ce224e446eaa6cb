//! Tensors of an op's launches: by name, or by the methods that `#[schedule]` writes.

use super::built::{ByName, Op};
use super::launch::Launch;
use crate::caller::Caller;
use crate::family::Family;
use counterflow_codegen::program::Program;

/// A way to give a launch its tensors.
///
/// `#[schedule]` writes one beside every schedule. This is one by hand:
///
/// ```
/// use counterflow::op::{Input, Launch, Launcher, Output, Schedule};
/// use counterflow::{Communicator, Error, Pending, Program, prelude::bf16, schedules};
///
/// struct Product<'a>(Launch<'a>);
///
/// impl Launcher for Product<'_> {
///     type Launch<'a> = Product<'a>;
///
///     fn from_named(launch: Launch<'_>) -> Product<'_> {
///         Product(launch)
///     }
/// }
///
/// impl Schedule for Product<'_> {
///     fn program() -> Program {
///         schedules::gemm()
///     }
/// }
///
/// impl<'a> Product<'a> {
///     fn of(self, x: impl Input<'a>, w: impl Input<'a>, y: impl Output<'a>) -> Result<Pending, Error> {
///         self.0.tensor("x", x).tensor("w", w).tensor("y", y).launch()
///     }
/// }
///
/// # let rank = &Communicator::emulated(1)?[0];
/// let op = rank.op_of::<Product>().first_options().up_to(64, 64, 64).build()?;
/// let (x, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
/// op.on(rank).of(&x, &x, &mut y)?.wait()?;
/// # Ok::<(), counterflow::Error>(())
/// ```
pub trait Launcher {
    /// A launch that is being put together.
    type Launch<'a>;

    /// From one by name.
    fn from_named(launch: Launch<'_>) -> Self::Launch<'_>;
}

/// A launcher that `#[schedule]` wrote. Its methods are the parameters of one schedule.
///
/// ```
/// use counterflow::{op::Schedule, schedules::AgGemmOp};
///
/// assert_eq!(AgGemmOp::program().name, "ag_gemm");
/// ```
pub trait Schedule: Launcher {
    /// Program of the schedule.
    fn program() -> Program;
}

/// A launcher of a family: one for all of its schedules, which take the same tensors.
///
/// ```
/// use counterflow::{families::AllGatherGemm, op::Computes};
///
/// assert_eq!(AllGatherGemm::family().name(), "all_gather_gemm");
/// ```
pub trait Computes: Launcher {
    /// Family of the op.
    fn family() -> Family;
}

impl Launcher for ByName {
    type Launch<'a> = Launch<'a>;

    fn from_named(launch: Launch<'_>) -> Launch<'_> {
        launch
    }
}

impl<S: Launcher> Op<S> {
    /// A launch on that stream: after everything that is in it now, and before everything that comes later. On the rank
    /// itself ([`Communicator`](crate::Communicator)): in the order of its own stream alone.
    ///
    /// On a stream of the caller's it has that stream's priority. Graphs and the rank's own stream have the default one.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let stream = rank.gpu().stream()?; // or `Stream::from` one of cudarc's
    /// op.on(&stream).x(&x).w(&w).y(&mut y).launch()?; // after what is in that stream now
    /// stream.synchronize()?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn on<'a>(&'a self, stream: impl Into<Caller<'a>>) -> S::Launch<'a> {
        S::from_named(Launch::new(&self.0, stream.into()))
    }
}
