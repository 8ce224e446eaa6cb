//! How an op's launches take their tensors: by name, or by the methods that `#[schedule]` writes.

use super::built::{ByName, Op};
use super::launch::Launch;
use crate::caller::Caller;
use counterflow_codegen::program::Program;

/// A way to give a launch its tensors.
pub trait Launcher {
    /// A launch that is being put together.
    type Launch<'a>;

    /// From one by name.
    fn from_named(launch: Launch<'_>) -> Self::Launch<'_>;
}

/// A launcher that `#[schedule]` wrote. Its methods are the parameters of one schedule.
pub trait Schedule: Launcher {
    /// That schedule.
    fn program() -> Program;
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
    pub fn on<'a>(&'a self, stream: impl Into<Caller<'a>>) -> S::Launch<'a> {
        S::from_named(Launch::new(&self.0, stream.into()))
    }
}
