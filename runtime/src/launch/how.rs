//! Options of a launch as it is enqueued.

use crate::attempt::Attempt;
use crate::driver::{Current, Stream};
use crate::recording::Keeps;

/// How a launch is enqueued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    /// Whether peers know of it yet.
    pub attempt: &'a Attempt<'a>,
    /// The rank's GPU.
    pub current: Current<'a>,
    /// Where: the rank's stream, or one that records a graph which is launched there.
    pub stream: &'a Stream,
    /// Whether it may be a programmatic dependent launch: all that is in the stream are kernels of ours.
    pub early: bool,
    /// The priority of the caller's stream.
    pub priority: i32,
    /// For the graph that it becomes part of. What it needs beside the kernel is enqueued in the rank's stream now.
    pub keeps: Option<&'a dyn Keeps>,
    /// Whether the stream records.
    pub records: bool,
}
